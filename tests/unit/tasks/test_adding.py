import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.tasks.adding import Adding, AddingOptions


@pytest.fixture(scope="module")
def batch():
    return Adding(AddingOptions(length=51)).datasets().train[range(4000)]


def test_two_marks_one_in_each_half(batch):
    marks = batch[0][..., 1]
    assert set(marks.unique().tolist()) == {0.0, 1.0}
    assert (marks[:, :25].sum(1) == 1).all()
    assert (marks[:, 25:].sum(1) == 1).all()
    assert (marks.sum(0) > 0).all()  # every place


def test_values_are_uniform(batch):
    values = batch[0][..., 0]
    assert 0 <= values.min() < 0.001
    assert 0.999 < values.max() <= 1
    assert values.mean() == pytest.approx(0.5, abs=0.003)
    assert values.var() == pytest.approx(1 / 12, rel=0.02)


def test_adding_the_marked_numbers_solves_it(batch):
    x, target = (v.numpy() for v in batch)
    y = [[sequence[sequence[:, 1] == 1, 0].sum()] for sequence in x]
    assert np.abs(np.array(y) - target).max() < 1e-6


def test_chance_is_the_error_of_always_answering_one(batch):
    task, target = Adding(), batch[1]
    assert target.mean() == pytest.approx(1, abs=0.02)
    assert task.scores(torch.ones_like(target), target).mean() == pytest.approx(
        task.chance, rel=0.05
    )
    assert task.loss(target, target) == 0
    assert (task.metric, task.higher_is_better) == ("mse", False)


@pytest.mark.parametrize("length", [2, 3, 1000])
def test_any_length(length):
    x, target = Adding(AddingOptions(length=length)).datasets().test[range(100)]
    assert (x[..., 1].sum(1) == 2).all()
    assert torch.allclose((x[..., 0] * x[..., 1]).sum(1, keepdim=True), target)


@pytest.mark.unchecked
def test_too_short():
    with pytest.raises(ArgumentError, match="Adding: length must be at least 2, got 1"):
        Adding(AddingOptions(length=1))
