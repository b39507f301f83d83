"""Cells that a function makes from sizes: made once, copied and pickled by name."""

import copy
import pickle

import torch

from linrnn.cells import Cell, cell_factory, fold
from linrnn.ops import cell_scan


@cell_factory
def sums(n):
    """The running sum, and the sum over n parts of it."""

    def step(h, x):
        h = h + x
        return fold(h, n), h

    return Cell(step, state="h", name="sums")


def test_each_cell_is_made_once_and_copies_are_the_same_cell():
    assert sums(2) is sums(2) is not sums(3)
    assert copy.deepcopy(sums(2)) is sums(2)
    assert pickle.loads(pickle.dumps(sums(2))) is sums(2)  # noqa: S301 - our own bytes
    assert sums.__doc__ == "The running sum, and the sum over n parts of it."


def test_it_computes_as_any_cell():
    x = torch.randn(2, 7, 6)
    y, last = cell_scan(sums(3), x=x)
    expected = x.cumsum(1)
    torch.testing.assert_close(y, expected.unflatten(-1, (3, 2)).sum(-2))
    torch.testing.assert_close(last, expected[:, -1])
