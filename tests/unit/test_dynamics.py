"""Jacobians of steps and Lyapunov exponents against what is known of them."""

import math

import pytest
import torch

from linrnn import mixers
from linrnn.dynamics import MOST, lyapunov_exponents, spectrum, step_jacobians
from linrnn.errors import ArgumentError, ShapeError

STEPS = 12


def signal(width=3):
    return torch.randn(STEPS, width, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def test_a_gru_has_the_jacobian_of_pytorch():
    torch.manual_seed(0)
    layer = mixers.load("gru")(3, d_state=4, dtype=torch.double)
    cell = torch.nn.GRUCell(3, 4, dtype=torch.double)
    own = layer.state_dict()
    cell.load_state_dict({name: own[f"{name}_l0"] for name in cell.state_dict()})
    h = torch.zeros(4, dtype=torch.double)
    x = signal()
    for x_t, J in zip(x, step_jacobians(layer, x), strict=True):
        expected = torch.autograd.functional.jacobian(lambda s, x_t=x_t: cell(x_t, s), h)
        torch.testing.assert_close(J, expected, rtol=1e-12, atol=1e-14)
        h = cell(x_t, h).detach()


def test_a_linear_recurrence_has_the_logarithms_of_its_eigenvalues():
    torch.manual_seed(0)
    layer = mixers.load("lru")(3, d_state=5, dtype=torch.double)
    found = lyapunov_exponents(step_jacobians(layer, signal()))
    logs = layer.eigenvalues().abs().log().repeat_interleave(2)  # a complex number is two
    torch.testing.assert_close(found, logs.sort(descending=True).values, rtol=1e-9, atol=1e-12)
    J = next(step_jacobians(layer, signal()))
    both = torch.cat([layer.eigenvalues(), layer.eigenvalues().conj()])
    torch.testing.assert_close(
        spectrum(J).abs(), both.abs().sort(descending=True).values, rtol=1e-9, atol=1e-12
    )


def test_the_henon_map_has_its_known_exponents():
    """a = 1.4, b = 0.3: 0.419, and ln 0.3 less that (Sprott 2003)."""

    def jacobians():
        x, y = 0.1, 0.1
        for _ in range(6000):
            yield torch.tensor([[-2.8 * x, 1.0], [0.3, 0.0]], dtype=torch.double)
            x, y = 1 - 1.4 * x * x + y, 0.3 * x

    found = lyapunov_exponents(jacobians(), warm_up=100)
    assert found[0].item() == pytest.approx(0.419, abs=0.01)
    assert found.sum().item() == pytest.approx(math.log(0.3), abs=1e-9)


def test_counters_and_constants_are_no_numbers_of_the_state():
    layer = mixers.load("rg_lru")(4, dtype=torch.double)
    J = next(step_jacobians(layer, signal(4)))
    assert J.shape == (4 + 3 * 4,) * 2  # h, and the inputs of the convolution
    state = layer(signal(4)[None])[1]
    J = next(step_jacobians(layer, signal(4), state))
    shifted = J[4:, 4:]  # the past moves on by one step
    assert torch.equal(shifted.sort().values, shifted.abs().sort().values)
    assert shifted.sum() == 2 * 4


def test_what_is_forgotten_at_once_is_minus_infinity():
    found = lyapunov_exponents([torch.diag(torch.tensor([0.0, 0.5]))] * 2)
    assert found.tolist() == [pytest.approx(math.log(0.5)), -math.inf]


@pytest.mark.unchecked
def test_what_cannot_be_followed_is_an_error():
    with pytest.raises(ArgumentError, match="constant size, got a Attention"):
        next(step_jacobians(mixers.load("attention")(4, n_heads=2), torch.zeros(3, 4)))
    with pytest.raises(ArgumentError, match=rf"1 to {MOST:,} numbers, got 4,096 of GRU"):
        next(step_jacobians(mixers.load("gru")(2, d_state=4096), torch.zeros(3, 2)))
    with pytest.raises(ShapeError, match="d_model"):
        next(step_jacobians(mixers.load("lru")(4), torch.zeros(3, 5)))
    with pytest.raises(ArgumentError, match="more steps than warm_up=2, got 2"):
        lyapunov_exponents([torch.eye(2)] * 2, warm_up=2)
