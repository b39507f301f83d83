"""Errors and messages of `linrnn.fit`: the advice is right, and nothing is said in vain."""

import logging
import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import linrnn
from linrnn import recipes
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    LinrnnError,
    ShapeError,
    UnknownNameError,
)
from linrnn.lightning import RecurrentModule
from linrnn.train import OptimConfig

pytestmark = pytest.mark.unchecked
BATCH, TIME = 4, 6
QUIET = {"enable_progress_bar": False}


def model(**options):
    options = {"d_model": 8, "n_layers": 1, "norm": "layer"} | options
    return linrnn.SequenceModel(2, 3, **options)


def fit(*parts, net=None, loss="cross_entropy", **options):
    options = {"epochs": 1, "threads": None, "trainer": QUIET} | options
    return linrnn.fit(net or model(), [parts], loss=loss, **options)


@pytest.fixture
def x():
    return torch.randn(BATCH, TIME, 2)


@pytest.fixture
def y():
    return torch.randint(3, (BATCH,))


LENGTHS = torch.tensor([6, 1, 3, 2])
MASK = torch.arange(TIME) < LENGTHS[:, None]


@pytest.mark.parametrize("mask", [MASK, ~MASK, torch.ones(BATCH, TIME, dtype=torch.bool)])
def test_a_mask_of_padding_is_no_mask_of_resets(x, y, mask):
    with pytest.raises(ArgumentError, match=r"looks like a mask of padding.*\.sum\(1\)"):
        fit(x, y, mask)


def resets(*places):
    mask = torch.zeros(BATCH, TIME, dtype=torch.bool)
    for row, step in places:
        mask[row, step] = True
    return mask


@pytest.mark.parametrize(
    "mask",
    [
        resets(),
        resets(*((row, 0) for row in range(BATCH))),
        resets((0, 0), (0, 1), (1, 3)),
        resets((0, 4), (0, 5), (1, 2)),
        resets(*((row, 5) for row in range(BATCH))),
    ],
)
def test_resets_are_read(x, y, mask):
    assert fit(x, y, mask).history


def test_a_mask_is_read_as_resets_by_that_name(x, y):
    net = model()
    batch = {"x": x, "y": y, "reset": MASK}
    assert linrnn.fit(net, [batch], loss="cross_entropy", epochs=1, trainer=QUIET).history


def test_what_the_advice_for_a_mask_gives_is_read(x, y):
    for mask in (MASK, ~~MASK):
        assert fit(x, y, mask.sum(1)).history


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda y: y[:, None], ShapeError, r"Use y\.squeeze\(-1\)\."),
        (lambda y: y[:, None].float(), DTypeError, r"Use y\.squeeze\(-1\)\.long\(\)"),
        (lambda y: F.one_hot(y, 3).float(), DTypeError, r"y\.argmax\(-1\)"),
        (lambda y: y.float(), DTypeError, r"Use y\.long\(\)"),
        (lambda y: y[:, None].expand(-1, TIME), ShapeError, "pool='none'"),
    ],
)
def test_the_advice_for_targets_of_classes(x, y, change, kind, words):
    with pytest.raises(kind, match=words):
        fit(x, change(y))


def test_the_advice_is_right(x, y):
    for good in (y[:, None].squeeze(-1), F.one_hot(y, 3).float().argmax(-1), y.float().long()):
        assert fit(x, good).history
    assert fit(x, y[:, None].expand(-1, TIME), net=model(pool="none")).history
    with pytest.raises(ShapeError, match="pool='mean' or 'last'"):
        fit(x, y, net=model(pool="none"))


@pytest.mark.parametrize("extra", [LENGTHS.float(), MASK.long()])
def test_lengths_of_another_kind_are_named(x, y, extra):
    with pytest.raises(ArgumentError, match=r"lengths\.long\(\)|mask\.sum\(1\)"):
        fit(x, y, extra)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"optim": {"learning_rate": 0.1}}, UnknownNameError, "mean 'optim.lr'"),
        ({"optim": "adam"}, ArgumentTypeError, "got 'adam'. Say optim="),
        ({"optim": 1e-3}, ArgumentTypeError, "got 0.001. Say optim="),
        ({"metrics": ["acc"]}, UnknownNameError, "mean 'accuracy'"),
        ({"metrics": ["f1"]}, UnknownNameError, r"metrics=\{'f1': function\}"),
        ({"loss": "ce"}, UnknownNameError, "mean 'cross_entropy'"),
        ({"net": linrnn.SequenceModel}, ArgumentTypeError, r"Say SequenceModel\(\.\.\.\)"),
    ],
)
def test_the_advice_for_settings(x, y, options, kind, words):
    with pytest.raises(kind, match=words):
        fit(x, y, **options)


def test_an_optimiser_is_none_before_there_is_a_fit(x, y):
    net = model()
    with pytest.raises(LinrnnError, match=r"got an optimiser, Adam\. Say .*lambda model"):
        fit(x, y, net=net, optim=torch.optim.Adam(net.parameters()))


def test_a_result_is_one_line(x, y):
    result = fit(x, y, epochs=2)
    assert repr(result) == (f"FitResult(best={result.best}, epochs=2, model=SequenceModel(...))")


def test_nothing_is_said_in_vain(x, y, tmp_path):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loader = DataLoader(TensorDataset(x, y), batch_size=2)
            linrnn.fit(
                model(), loader, loss="cross_entropy", epochs=1, out=tmp_path / "a", trainer=QUIET
            )
    finally:
        logger.removeHandler(handler)
    assert any("max_epochs=1" in line for line in lines)
    for word in ("litlogger", "TPU", "estimate number", "weights_only"):
        assert not any(word in line for line in lines), word
    for words in ("val_dataloader", "LeafSpec"):
        assert not any(words in str(one.message) for one in said), words


def test_fit_and_a_task_without_a_recipe_have_one_set_of_optimiser_defaults():
    untuned = recipes.untuned("table").optim
    for optim in (None, {}, OptimConfig()):
        assert RecurrentModule(model(), "mse", optim=optim).optim == untuned
    named = RecurrentModule(model(), "mse", optim={"clip": 2.0}).optim
    assert named == replace(untuned, clip=2.0)
