"""Generated data: the same example at every access, and numbers that look random."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from linrnn.tasks._kinds.generated import Generated, uniforms


def pairs(uniform):
    return torch.from_numpy(uniform(5)), torch.from_numpy(uniform(1)[:, 0])


def test_an_example_depends_on_its_index_alone():
    data = Generated(100, "train", pairs, seed=3)
    x, target = data[[7, 99, 0]]
    assert torch.equal(x[1], data[99][0])
    assert torch.equal(target[2], data[0][1])
    assert torch.equal(Generated(100, "train", pairs, seed=3)[7][0], x[0])


@pytest.mark.parametrize("other", [("test", 3), ("validation", 3), ("train", 4)])
def test_splits_and_seeds_differ(other):
    split, seed = other
    x = Generated(100, "train", pairs, seed=3)[range(100)][0]
    y = Generated(100, split, pairs, seed=seed)[range(100)][0]
    assert not torch.isin(x, y).any()


def test_numbers_are_uniform_and_uncorrelated():
    u = uniforms(5, np.arange(2000), 1, 50)
    assert kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert u.min() >= 0
    assert u.max() < 1
    for other in (u[1:, :], np.roll(u, 1, 1)[:-1], uniforms(5, np.arange(1999), 2, 50)):
        assert abs(np.corrcoef(u[:-1].ravel(), other.ravel())[0, 1]) < 0.02


def test_an_index_outside_is_an_index_error():
    with pytest.raises(IndexError):
        Generated(3, "train", pairs)[3]
