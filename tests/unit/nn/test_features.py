"""Feature maps against numbers by hand and their definitions."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.nn import LearnedFeatures, dpfp, second_powers
from linrnn.nn.features import second_taylor


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


def test_learned_features_start_as_published_and_take_a_float32_in_half_precision():
    x = torch.randn(5, 2, 3)
    hedgehog = LearnedFeatures(3, "hedgehog")
    torch.testing.assert_close(hedgehog(x), torch.cat([2 * x, -2 * x], -1).softmax(-1))
    assert (LearnedFeatures(3, "t2r")(x) >= 0).all()
    product = LearnedFeatures(3, "product", dtype=torch.bfloat16)
    assert product(x).dtype == torch.float32
    torch.testing.assert_close(product(x), product.float()(x))


def test_second_powers_make_products_of_keys_powers():
    q, k = torch.randn(2, 5, 7, dtype=torch.float64)
    product = (q * k).sum(-1)
    powers = second_powers(q, 0.5) * second_powers(k, 0.5)
    torch.testing.assert_close(powers.sum(-1), product**2 / 4)
    polynomial = second_taylor(q) * second_taylor(k)
    torch.testing.assert_close(polynomial.sum(-1), 1 + product + product**2 / 2)
