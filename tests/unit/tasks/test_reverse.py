import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.reverse import Reverse, ReverseOptions


def test_tokens_then_blanks_then_markers():
    x, target = Reverse(ReverseOptions(length=5, delay=7)).datasets().train[range(300)]
    assert x.shape == (300, 17)
    assert set(x[:, :5].unique().tolist()) == set(range(1, 9))
    assert (x[:, 5:12] == 0).all()
    assert (x[:, 12:] == 9).all()
    assert (target[:, :12] == IGNORE).all()


@pytest.mark.parametrize("delay", [0, 20])
def test_reading_backward_solves_it(delay):
    task = Reverse(ReverseOptions(delay=delay))
    x, target = task.datasets().test[range(300)]
    y = np.zeros((*x.shape, 10), np.float32)
    y[:, -10:] = np.eye(10)[x.numpy()[:, 9::-1]]
    assert task.scores(torch.from_numpy(y), target).min() == 1


def test_chance_is_that_of_a_constant_token():
    task = Reverse()
    x, target = task.datasets().train[range(2000)]
    y = torch.zeros(*x.shape, 10)
    y[..., 8] = 1
    assert task.scores(y, target).mean() == pytest.approx(task.chance, abs=0.01)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("length", 0, "an integer of at least 1"),
        ("delay", -1, "at least 0"),
        ("vocabulary", 2, "at least 3"),
    ],
)
def test_bad_options(option, value, rule):
    with pytest.raises(ArgumentError, match=f"Reverse: {option} must be {rule}, got {value}"):
        Reverse(ReverseOptions(**{option: value}))
