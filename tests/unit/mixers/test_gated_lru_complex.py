"""The gated LRU of complex numbers, against a loop, and its start."""

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import GatedLRU


@pytest.mark.parametrize("timed", [False, True])
def test_equals_a_loop_of_complex_numbers(timed):
    torch.manual_seed(0)
    layer = GatedLRU(3, d_state=4, d_out=5, decay="complex", dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.bias.normal_()
        layer.out_gates.bias.normal_()
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    dt = 0.2 + torch.rand(1, 9, dtype=torch.float64)
    h, outputs = torch.zeros(4, dtype=torch.complex128), []
    for x_t, step in zip(x[0], dt[0], strict=True):
        rate = torch.complex(-layer.nu_log.exp(), layer.theta)
        m, v = layer.in_proj(x_t).chunk(2)
        re, im = (m * v).chunk(2)
        h = (rate * (step if timed else 1)).exp() * h + torch.complex(re, im)
        m, v = layer.out_gates(torch.cat([h.real, h.imag])).chunk(2)
        outputs.append(layer.out_proj(m * v))
    y, state = layer(x, dt=dt) if timed else layer(x)
    torch.testing.assert_close(y[0], torch.stack(outputs))
    torch.testing.assert_close(state[0], h)


def test_starts_on_a_ring_with_states_of_variance_one():
    torch.manual_seed(0)
    layer = GatedLRU(32, d_state=400, decay="complex", r_min=0.3, r_max=0.9, max_phase=1.0)
    lam = layer.eigenvalues()
    assert 0.3 < lam.abs().min() < 0.4 < 0.85 < lam.abs().max() < 0.9
    assert 0 < lam.angle().min() < 0.1 < 0.9 < lam.angle().max() < 1
    _, h = layer(torch.randn(300, 60, 32))
    for part in (h.real, h.imag):
        assert part.square().mean().item() == pytest.approx(1, abs=0.1)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="GatedLRU: max_phase must be at least 0"):
        GatedLRU(4, decay="complex", max_phase=-1.0)
