"""Word problems against products of matrices, their sizes and errors."""

import itertools

import numpy as np
import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.tasks.group_words import GroupWords, GroupWordsOptions
from linrnn.tasks.modular_sums import ModularSums, ModularSumsOptions
from linrnn.tasks.parity import Parity, ParityOptions


def test_parity_is_that_of_all_bits_so_far():
    task = Parity(ParityOptions(length=50))
    x, target = task.datasets().test[range(100)]
    assert x.unique().tolist() == [0, 1]
    assert torch.equal(target, x.cumsum(1) % 2)
    assert task.chance == 1 / 2


@pytest.mark.parametrize("modulus", [2, 5, 7])
def test_sums_go_round(modulus):
    task = ModularSums(ModularSumsOptions(length=40, modulus=modulus))
    x, target = task.datasets().train[range(100)]
    assert x.unique().tolist() == list(range(modulus))
    assert torch.equal(target, x.cumsum(1) % modulus)


SIZES = {"S3": 6, "A4": 12, "S4": 24, "A5": 60, "S5": 120}


@pytest.mark.parametrize("group", SIZES)
def test_products_are_those_of_permutation_matrices(group):
    task = GroupWords(GroupWordsOptions(length=30, group=group))
    assert task.d_input == task.d_output == SIZES[group]
    x, target = task.datasets().test[range(20)]
    things = int(group[1])
    # each element by what it makes of the identity, read off words of two elements
    elements = [np.array(p) for p in itertools.permutations(range(things))]
    matrices = [np.eye(things)[:, p] for p in elements]
    if group[0] == "A":
        matrices = [m for m in matrices if np.linalg.det(m) > 0]
    for word, products in zip(x.tolist(), target.tolist(), strict=True):
        product = np.eye(things)
        for element, expected in zip(word, products, strict=True):
            product = matrices[element] @ product
            assert np.array_equal(product, matrices[expected])


def test_order_matters_where_the_group_is_not_abelian():
    table = GroupWords(GroupWordsOptions(group="S3"))._products
    assert (table != table.T).any()
    assert sorted(table[0]) == list(range(6))
    assert np.array_equal(table[0], np.arange(6))  # 0 is the identity


def test_longer_words_are_another_task_of_the_same_symbols():
    task = GroupWords().at_length(512)
    assert task.sequence_length == 512
    x, target = task.datasets().test[range(4)]
    assert x.shape == target.shape == (4, 512)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Parity(ParityOptions(length=0)), "Parity: length must be an integer of at least"),
        (
            lambda: ModularSums(ModularSumsOptions(modulus=1)),
            "ModularSums: modulus must be at least 2, got 1",
        ),
        (lambda: GroupWords(GroupWordsOptions(group="S6")), "no GroupWords group named 'S6'"),
    ],
)
def test_bad_options(build, message):
    with pytest.raises(LinrnnError, match=message):
        build()
