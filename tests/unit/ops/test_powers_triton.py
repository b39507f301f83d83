"""Products of two channels by Triton: numbers in its interpreter, and machine code for a GPU."""

import pytest
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE


@needs_triton
@pytest.mark.parametrize("d", [1, 2, 33, pytest.param(150, marks=pytest.mark.slow)])
def test_a_kernel_has_every_product_in_its_place(warm, d):
    """Their channels come from a root, which rounds; gradients go back in two ways."""
    error = warm(
        f"""
import torch
from linrnn.nn.features import _POWERS
from linrnn.ops import use_backend

torch.manual_seed(0)
x = torch.randn(3, {d}, dtype=torch.float64, requires_grad=True)

def evaluated(function):
    (y,) = function(x, {d != 2}, 0.7, 1.3)
    into = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    (first,) = torch.autograd.grad(y, x, into, create_graph=True)
    return y, first, *torch.autograd.grad(first.square().sum(), x)

with use_backend("triton"):
    ours = evaluated(_POWERS)
exact = evaluated(_POWERS.definition)
result = max((a - b).abs().max().item() for a, b in zip(ours, exact))
""",
        TRITON_INTERPRET="1",
    )
    assert error < 1e-11


@needs_triton
def test_kernels_spill_nothing(warm):
    codes = warm(
        f"""{OFFLINE}
from linrnn.nn.features import second_taylor
from linrnn.ops import use_backend

def taylor():
    x = calls._leaf(8, 64, 4, 16)
    def run():
        with use_backend("triton"):
            return second_taylor(x)
    return run, (x,)

result = codes(taylor)
""",
        TRITON_INTERPRET="0",
    )
    assert [name for name, *_ in codes] == ["run_forward", "run_backward"]
    for name, registers, spills, *_ in codes:
        assert (spills, registers <= 64) == (0, True), (name, registers)
