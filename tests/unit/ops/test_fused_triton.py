"""`causal_conv` and `gated_scan` on Triton, in its interpreter: the float64 loop's numbers."""

import importlib
import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)

# stretches and groups of steps so short that there are several, and full, cut and missing ones
SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
"""
SETUP += """
import interpreted_scan
import itertools
import torch
torch.set_num_threads(1)
from linrnn.ops import causal_conv, gated_scan
from linrnn.ops.conv.causal_conv import _triton as _conv
from linrnn.ops.linear.gated_scan import _triton as _gated
from linrnn.ops.linear.linear_scan import triton_plan as _scan
_conv.SHORTEST = _conv.LONGEST = 8
_conv.STEPS = _conv.STEPS_BACK = _gated.MOST_STEPS = _gated.MOST_STEPS_BACK = 2
torch.manual_seed(0)
TOLERANCE = {torch.float32: 4e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 2e-3}

def evaluate(function, inputs, options, backend, dtype, compute):
    leaves = [None if x is None else x.to(compute if i else dtype).requires_grad_()
              for i, x in enumerate(inputs)]
    results = function(*leaves, **options, backend=backend)
    cotangents = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in results]
    leaves = [x for x in leaves if x is not None]
    grads = torch.autograd.grad(results, leaves, cotangents, allow_unused=True)
    return *results, *grads

def compare(function, inputs, options, dtype):
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = [None if x is None else x.to(compute if i else dtype) for i, x in enumerate(inputs)]
    exact = evaluate(function, inputs, options, "reference", torch.float64, torch.float64)
    found = evaluate(function, inputs, options, "triton", dtype, compute)
    again = evaluate(function, inputs, options, "triton", dtype, compute)
    for number, (x, y, z) in enumerate(zip(found, exact, again, strict=True)):
        assert torch.equal(x, z), "another run gives other bits"
        scale = max(1.0, y.abs().max().item())
        error = (x.double() - y).abs().max().item()
        assert error <= TOLERANCE[dtype] * scale, (options, dtype, number, error)

def layouts(batch, time):
    reset = torch.rand(batch, time) < 0.3
    packed = torch.tensor([0, 2, 2, time])
    return [
        {}, {"reset": reset}, {"reverse": True}, {"reset": reset, "reverse": True},
        {"cu_seqlens": packed}, {"cu_seqlens": packed, "reset": reset[:1], "reverse": True},
    ]

def random(*shape):
    return torch.randn(shape, dtype=torch.float64)
"""

CONV = """
for (time, channels, width, dtype), number in zip(CASES, itertools.count()):
    for i, options in enumerate(layouts(2, time)):
        seqs = 3 if "cu_seqlens" in options else 2
        x = random(1 if seqs == 3 else 2, time, channels)
        bias = random(channels) if (i + number) % 3 else None
        past = random(seqs, width - 1, channels) if (i + number) % 2 else None
        silu = (i + number) % 4 > 0
        compare(causal_conv, (x, random(channels, width), bias, past), options | {"silu": silu},
                getattr(torch, dtype))
"""

GATED = """
for (time, channels, parts, dtype), number in zip(CASES, itertools.count()):
    for i, options in enumerate(layouts(2, time)):
        seqs = 3 if "cu_seqlens" in options else 2
        x = 2 * random(1 if seqs == 3 else 2, time, parts, channels)
        state = random(seqs, channels) if (i + number) % 2 else None
        options = options | {
            "positive": (i + number) % 3 > 0, "normalise": (i + number) % 4 < 2,
            "start": 0.5 if (i + number) % 5 < 3 else 0.0,
        }
        compare(gated_scan, (x, state), options, getattr(torch, dtype))
"""

# as in test_triton.py: two stretches of two steps a tile, and programs that hand over
TILE = (
    "_scan.gpu.processors = lambda device: 64\n_scan.ROW, _scan.BUSY_WARPS = 128, 2\n"
    "_scan.FEWEST_TENTHS = 0\n"
)
CHAIN = (
    "_scan.gpu.processors = lambda device: 64\n_scan.ROW, _scan.CHAINED = 128, 2\n"
    "_scan.GROUP, _scan.FEWEST_TILES = 2, 0\n"
)
each_form = pytest.mark.parametrize("regime", ["", TILE, CHAIN], ids=["walk", "tile", "chain"])


@pytest.fixture
def interpreted(warm):
    """Run code in Triton's interpreter."""

    def run(code):
        assert warm(f"{SETUP}{code}\nresult = 1", TRITON_INTERPRET="1") == 1

    return run


def test_convolutions_equal_the_loop(interpreted):
    interpreted(f"CASES = [(9, 5, 4, 'float32')]{CONV}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [(9, 33, 2, "float64"), (17, 3, 8, "float32"), (2, 5, 4, "bfloat16"), (9, 4, 3, "float16")],
)
def test_convolutions_of_every_width_and_dtype(interpreted, case):
    interpreted(f"CASES = [{case!r}]{CONV}")


@each_form
def test_gated_scans_equal_the_loop(interpreted, regime):
    interpreted(f"{regime}CASES = [(7, 5, 3, 'float32')]{GATED}")


@pytest.mark.slow
@each_form
@pytest.mark.parametrize(
    "case", [(9, 33, 2, "float64"), (9, 3, 3, "float64"), (5, 5, 2, "bfloat16")]
)
def test_gated_scans_of_every_kind_and_dtype(interpreted, regime, case):
    interpreted(f"{regime}CASES = [{case!r}]{GATED}")


def test_nan_stops_at_a_reset(interpreted):
    interpreted(
        """
reset = torch.zeros(1, 12, dtype=torch.bool)
reset[:, 6] = True
x = random(1, 12, 3).float()
x[:, 4] = torch.nan
x.requires_grad_()
y, _ = causal_conv(x, random(3, 4).float(), silu=True, reset=reset, backend="triton")
assert y[:, 4:6].isnan().all() and y[:, 6:].isfinite().all()
into = torch.ones_like(y)
into[:, 7] = torch.nan
(grad,) = torch.autograd.grad(y, x, into)
assert grad[:, :1].isfinite().all() and grad[:, 6:8].isnan().all() and grad[:, 8:].isfinite().all()
"""
    )


def test_wide_kernels_are_left_to_operators():
    conv = importlib.import_module("linrnn.ops.conv.causal_conv._triton")
    x = torch.zeros(1, 4, 2)
    assert "2 to 8 taps" in conv.declines(x, x[:, :0], torch.zeros(2, 1))
    assert "not 9" in conv.declines(x, x, torch.zeros(2, 9))
    assert conv.declines(x, x, torch.zeros(2, 4)) is None
