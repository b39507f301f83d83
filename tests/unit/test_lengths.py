"""Lengths of padded rows: as a tensor, an array, or a list as of `pack_padded_sequence`."""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import torch

import linrnn
from linrnn import SequenceModel, nn
from linrnn.block import Block
from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.mixers import Bidirectional
from linrnn.nn import Pool

MODULES = ("backbone", "block", "rnn", "rnn._last_output", "mixers._contract.bidirectional", "nn")


def model(**options):
    torch.manual_seed(0)
    return SequenceModel(3, 2, d_model=4, n_layers=1, **options).eval()


def bidirectional():
    torch.manual_seed(0)
    return Bidirectional.build("lru", 4)


def block():
    return Block(bidirectional(), kind="bare", norm="none")


X, Z = torch.randn(2, 6, 3), torch.randn(2, 6, 4)
READERS = {
    "SequenceModel.forward": lambda n: model(bidirectional=True)(X, lengths=n)[0],
    "SequenceModel.features": lambda n: model().features(X, lengths=n)[0],
    "SequenceModel.features_of": lambda n: model().features_of(Z, lengths=n)[0],
    "Block.forward": lambda n: block()(Z, lengths=n)[0],
    "Bidirectional.forward": lambda n: bidirectional()(Z, lengths=n)[0],
    "Pool.forward": lambda n: Pool("mean")(Z, lengths=n)[0],
    "RNN.last_output": lambda n: linrnn.RNN("lru", 3, 4, batch_first=True).last_output(Z, n),
    "last_output": lambda n: linrnn.last_output(Z, n, batch_first=True),
}
FORMS = {
    "list": lambda n: n,
    "tuple": tuple,
    "array": np.array,
    "int32": lambda n: torch.tensor(n, dtype=torch.int32),
    "uint8": lambda n: torch.tensor(n, dtype=torch.uint8),
    "numpy's in a list": lambda n: [np.int64(k) for k in n],
}


def public(module):
    """Its functions and the methods of its classes that take lengths of rows."""
    for name, found in vars(module).items():
        if getattr(found, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        members = vars(found) if inspect.isclass(found) else {"": found}
        for part, function in members.items():
            known = not part.startswith("_") and inspect.isfunction(function)
            if known and "lengths" in inspect.signature(function).parameters:
                yield ".".join(filter(None, (name, part)))


def test_every_argument_of_that_name_is_known():
    names = list(MODULES)
    names += [
        f"nn.{one.name}" for one in pkgutil.iter_modules(nn.__path__) if one.name != "lengths"
    ]
    found = {n for m in names for n in public(importlib.import_module(f"linrnn.{m}"))}
    assert found == set(READERS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_all_forms_are_one(reader, form):
    torch.manual_seed(0)
    expected = READERS[reader](torch.tensor([6, 3]))
    assert torch.equal(READERS[reader](FORMS[form]([6, 3])), expected)


def test_of_pairs_of_documents():
    pairs = model(documents=2)
    x, lengths = torch.randn(2, 2, 6, 3), [[6, 3], [2, 5]]
    assert torch.equal(pairs(x, lengths=lengths)[0], pairs(x, lengths=torch.tensor(lengths))[0])


def test_of_a_batch_without_rows():
    assert model()(X[:0], lengths=[])[0].shape == (0, 2)


@pytest.mark.unchecked
@pytest.mark.parametrize("reader", READERS)
def test_wrong_ones_are_named(reader):
    wrong = [([6.0, 3.0], DTypeError), (["6", "3"], DTypeError), ("63", DTypeError)]
    wrong += [([[6], [3, 2]], DTypeError), ([True, False], DTypeError), (object(), DTypeError)]
    wrong += [([6, 3, 3], ShapeError), (6, ShapeError), ([7, 3], ArgumentError)]
    for lengths, kind in wrong:
        with pytest.raises(kind, match="lengths must"):
            READERS[reader](lengths)
