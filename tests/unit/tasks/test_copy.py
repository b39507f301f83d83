from math import log

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.copy import Copy, CopyOptions

each_convention = pytest.mark.parametrize("markers", ["one", "all"])


def make(**options):
    return Copy(CopyOptions(**({"length": 30} | options)))


def batch(task, n=500):
    return task.datasets().train[range(n)]


@each_convention
def test_tokens_then_blanks_then_markers(markers):
    task = make(markers=markers)
    x, target = batch(task)
    assert x.shape == target.shape == (500, 50)
    assert set(x[:, :10].unique().tolist()) == set(range(1, 9))
    assert (x[:, 10:40] == 0).all()
    assert (x[:, 40] == 9).all()
    assert (x[:, 41:] == (9 if markers == "all" else 0)).all()
    assert (target[:, :40] == (IGNORE if markers == "all" else 0)).all()


@each_convention
def test_remembering_the_first_tokens_solves_it(markers):
    task = make(markers=markers)
    x, target = batch(task)
    answer = np.zeros((*x.shape, 10), np.float32)
    answer[..., 0] = 1
    tokens = np.eye(10, dtype=np.float32)[x[:, :10].numpy()]
    answer[:, -10:] = tokens
    y = 100 * torch.from_numpy(answer)
    assert task.scores(y, target).min() == 1
    assert task.loss(y, target) < 1e-4


def test_a_model_without_memory_reaches_the_stated_loss():
    one, every = make(), make(markers="all")
    x, target = batch(one)
    y = torch.full((*x.shape, 10), -1e4)
    y[:, :40, 0] = 0
    y[:, 40:, 1:9] = 0
    assert one.loss(y, target) == pytest.approx(10 * log(8) / 50, rel=1e-5)
    assert every.loss(y, batch(every)[1]) == pytest.approx(log(8), rel=1e-5)


@each_convention
def test_chance_is_that_of_a_constant_token(markers):
    task = make(markers=markers)
    x, target = batch(task, 2000)
    y = torch.zeros(*x.shape, 10)
    y[..., 3] = 1
    assert task.chance == 1 / 8
    assert task.scores(y, target).mean() == pytest.approx(task.chance, abs=0.01)


def test_sizes_can_be_chosen():
    x, target = batch(make(n_tokens=1, vocabulary=3, length=4), 5)
    assert x.tolist() == [[1, 0, 0, 0, 0, 2]] * 5
    assert target.tolist() == [[0, 0, 0, 0, 0, 1]] * 5


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"length": 0}, ArgumentError, "Copy: length must be an integer of at least 1, got 0"),
        ({"n_tokens": 0}, ArgumentError, "Copy: n_tokens must be an integer of at least 1, got 0"),
        ({"vocabulary": 2}, ArgumentError, "Copy: vocabulary must be at least 3, got 2"),
        ({"markers": "al"}, UnknownNameError, "no Copy markers named 'al'. Did you mean 'all'"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)
