"""The Triton kernels of diagonal systems in steps: numbers, gradients, machine code."""

from pathlib import Path

import pytest
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE

HERE = Path(__file__).parents[1] / "nn"


@needs_triton
def test_kernels_are_those_of_the_definition(warm):
    """In Triton's interpreter, also rounded to single precision, and of parameters of it."""
    worst = warm(
        f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch
from linrnn.nn.diagonal import _PRODUCT, _steps
from linrnn.ops import use_backend
from test_diagonal import KINDS, SIZES, both, parameters

def errors(arguments, how):
    with use_backend("triton"):
        ours = both(lambda *x: _PRODUCT(*x, how), arguments)
    definition = both(lambda *x: _steps(*x, how), arguments)
    for x, y in zip(ours, definition, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        yield ((x - y).abs() / (y.abs() + 1e-3)).max().item()

exact, rounded = [], []
for sizes in SIZES.values():
    for i, how in enumerate(KINDS.values()):  # of real modes, or of complex ones
        exact.append(max(errors(parameters(sizes, (i + len(exact)) % 2 == 1), how)))
    how = KINDS["logarithms"]._replace(dtype=torch.complex64)
    rounded.append(max(errors(parameters(sizes, dtype=torch.float32), how)))
result = max(exact), max(rounded)
""",
        TRITON_INTERPRET="1",
    )
    assert worst[0] < 1e-10
    assert worst[1] < 1e-6


@needs_triton
@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_one_kernel_each_way_in_few_registers(warm, rule):
    counted, codes = warm(
        f"""{OFFLINE}
from linrnn.nn.diagonal import diagonal_steps
from linrnn.ops import use_backend

leaves = [torch.zeros(64, 32, requires_grad=True), torch.zeros(64, 32, requires_grad=True)]
leaves.append(torch.zeros(64, 1, requires_grad=True))

def run():
    with use_backend("triton"):
        return diagonal_steps(*leaves, rule={rule!r})[0]

call = run, tuple(leaves)
result = counts(lambda: call), [offline.code(x.cubin) for x in offline.launched(calls.both(call))]
""",
        TRITON_INTERPRET="0",
    )
    assert counted == [1, 0, 2, 1]  # an operator makes the zeros that are the gradient of ``gain``
    for registers, spills, _, _, barriers, *_ in codes:
        assert (registers <= 64, barriers) == (True, 0)
        # sine and cosine of angles beyond 1e5 have tables in memory
        assert spills <= (12 if rule == "zoh" else 0)
