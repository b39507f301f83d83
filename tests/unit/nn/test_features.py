"""DPFP against numbers by hand and its definition."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.nn import dpfp


def test_dpfp_by_hand():
    assert dpfp(torch.tensor([1.0, -2.0])).tolist() == [2, 0, 0, 0]
    x = torch.tensor([1.0, 2.0, -3.0])  # r = 1, 2, 0, 0, 0, 3
    assert dpfp(x, 2).tolist() == [3, 2, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0]


def test_dpfp_of_many_rows_is_that_of_each():
    x = torch.randn(3, 5, 4)
    assert torch.equal(dpfp(x, 7)[1, 2], dpfp(x[1, 2], 7))
    assert dpfp(x, 7).shape == (3, 5, 56)


@pytest.mark.unchecked
@pytest.mark.parametrize("nu", [0, 8])
def test_dpfp_has_no_more_shifts_than_places(nu):
    with pytest.raises(ArgumentError, match=f"dpfp: nu must be from 1 to 2 d - 1 = 7, got {nu}"):
        dpfp(torch.zeros(4), nu)
