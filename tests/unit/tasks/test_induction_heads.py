import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.tasks.induction_heads import InductionHeads, InductionHeadsOptions


@pytest.fixture(scope="module")
def batch():
    return InductionHeads(InductionHeadsOptions(length=20)).datasets().train[range(3000)]


def test_the_special_token_comes_twice_and_last(batch):
    special = batch[0] == 15
    assert (special.sum(1) == 2).all()
    assert special[:, -1].all()
    first = special.long().argmax(1)
    assert set(first.tolist()) == set(range(18))  # its successor is never the last token


def test_looking_up_the_successor_solves_it(batch):
    x, target = (v.numpy() for v in batch)
    y = [row[list(row).index(15) + 1] for row in x]
    assert np.array_equal(y, target)


def test_chance_is_that_of_a_constant_token(batch):
    task, target = InductionHeads(), batch[1]
    y = torch.zeros(len(target), 16)
    y[:, 4] = 1
    assert task.chance == 1 / 15
    assert task.scores(y, target).mean() == pytest.approx(task.chance, abs=0.015)


def test_a_million_steps():
    x, target = InductionHeads().at_length(2**20).datasets().test[0]
    assert x.shape == (2**20,)
    assert x[(x == 15).long().argmax() + 1] == target


def test_a_large_vocabulary_has_an_example():
    text = InductionHeads(InductionHeadsOptions(length=8, vocabulary=100)).example()
    assert text.split("\n")[0].endswith(" *")


@pytest.mark.unchecked
@pytest.mark.parametrize("option", ["length", "vocabulary"])
def test_bad_options(option):
    with pytest.raises(ArgumentError, match=f"InductionHeads: {option} must be at least 3, got 2"):
        InductionHeads(InductionHeadsOptions(**{option: 2}))
