"""Inputs of a model have the dtype of its parameters, or are integers; errors name the rest."""

import numpy as np
import pytest
import torch

from linrnn import SequenceModel
from linrnn.errors import ArgumentTypeError, DTypeError
from linrnn.tokenizers import ByteTokenizer

REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OTHERS = (torch.bool, torch.complex64)
CALLS = ("forward", "features", "step")


def model(dtype=torch.float32, **options):
    torch.manual_seed(0)
    options = {"d_model": 4, "n_layers": 1, "norm": "layer", "pool": "none"} | options
    return SequenceModel(options.pop("d_input", 3), 2, dtype=dtype, **options).eval()


def tokens():
    return model(d_input=256, encoder="tokens")


def call(of, name, x):
    if name == "step":
        return of.step(x[:, 0], of.init_state(2))[0]
    return getattr(of, name)(x)[0]


@pytest.mark.unchecked
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("own", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", REAL + WHOLE + OTHERS)
def test_numbers_of_another_dtype_are_named(own, given, name):
    x = torch.ones(2, 5, 3).to(given)
    if given == own:
        assert call(model(own), name, x).dtype == own
        return
    with pytest.raises(DTypeError, match=rf"x(_t)? must be {own} like the parameters, got {given}"):
        call(model(own), name, x)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_autocast_casts(given):
    with torch.autocast("cpu", torch.bfloat16):
        assert model()(torch.ones(2, 5, 3, dtype=given))[0].dtype == torch.bfloat16


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("given", WHOLE)
def test_tokens_of_any_integers_are_one(given, name):
    x = torch.randint(100, (2, 5), generator=torch.Generator().manual_seed(0))
    assert torch.equal(call(tokens(), name, x.to(given)), call(tokens(), name, x))


def test_bytes_are_read_as_they_come():
    text = torch.as_tensor(np.array(ByteTokenizer().encode("ÿ and so on")))
    assert torch.equal(tokens()(text[None])[0], tokens()(text[None].long())[0])


@pytest.mark.unchecked
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("given", REAL + OTHERS)
def test_tokens_that_are_none_are_named(given, name):
    with pytest.raises(DTypeError, match=rf"x(_t)? must be integer token ids, got {given}"):
        call(tokens(), name, torch.ones(2, 5).to(given))


@pytest.mark.unchecked
@pytest.mark.parametrize("make", [model, tokens])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_tensor_is_named(name, make):
    with pytest.raises(DTypeError, match=r"x(_t)? must be a tensor, got ndarray\. Convert it with"):
        call(make(), name, np.ones((2, 5, 3), np.float32))


@pytest.mark.unchecked
@pytest.mark.parametrize("tiers", [4, "4", None, 4.0])
def test_tiers_that_are_no_tuple_are_named(tiers):
    with pytest.raises(ArgumentTypeError, match="tiers must be a tuple of integers of at least 2"):
        model(tiers=tiers)
