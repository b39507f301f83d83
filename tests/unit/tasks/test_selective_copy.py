import numpy as np
import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.selective_copy import SelectiveCopy, SelectiveCopyOptions


def make(**options):
    return SelectiveCopy(SelectiveCopyOptions(**({"length": 64} | options)))


@pytest.fixture(scope="module")
def batch():
    return make().datasets().train[range(2000)]


def test_tokens_among_blanks_then_markers(batch):
    x, target = batch
    assert x.shape == (2000, 64 + 16 + 16)
    content = x[:, :80]
    assert ((content > 0).sum(1) == 16).all()
    assert ((content == 0).sum(1) == 64).all()
    assert set(content.unique().tolist()) == set(range(15))  # 14 tokens and the blank
    assert (x[:, 80:] == 15).all()
    assert (target[:, :80] == IGNORE).all()


def test_places_are_uniform(batch):
    places = (batch[0][:, :80] > 0).nonzero()[:, 1].numpy()
    u = (places + np.random.RandomState(0).rand(len(places))) / 80
    assert kstest(u, "uniform").pvalue > 1e-3


def test_dropping_the_blanks_solves_it(batch):
    x, target = batch
    kept = np.stack([row[row > 0] for row in x[:, :80].numpy()])
    y = np.zeros((*x.shape, 16), np.float32)
    y[:, 80:] = np.eye(16)[kept]
    assert make().scores(torch.from_numpy(y), target).min() == 1


def test_chance_is_that_of_a_constant_token(batch):
    x, target = batch
    y = torch.zeros(*x.shape, 16)
    y[..., 3] = 1
    assert make().chance == 1 / 14
    assert make().scores(y, target).mean() == pytest.approx(make().chance, abs=0.005)


def test_published_setting():
    task = SelectiveCopy()
    assert task.sequence_length == 4096 + 16 + 16
    assert task.d_input == 16
    best = max(task.published, key=lambda p: p.value)
    assert (best.value, best.model) == (0.998, "S6 in a Mamba block (Mamba)")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("length", 0, "an integer of at least 1"),
        ("n_tokens", 0, "an integer of at least 1"),
        ("vocabulary", 2, "at least 3"),
    ],
)
def test_bad_options(option, value, rule):
    with pytest.raises(ArgumentError, match=f"SelectiveCopy: {option} must be {rule}, got {value}"):
        make(**{option: value})
