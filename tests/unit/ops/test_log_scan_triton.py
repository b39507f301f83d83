"""`log_linear_scan` on Triton, in its interpreter: the float64 loop's numbers."""

import pytest
from test_cell_triton import needs_triton

SETUP = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {folder!r})
from test_log_scan import log_loop, results
from linrnn.ops import log_linear_scan, use_backend
import interpreted_scan
from linrnn.ops.linear.linear_scan import triton_plan, triton_scan
triton_scan.MOST_LOG_STEPS = triton_scan.MOST_LOG_STEPS_BACK = 2
from linrnn.testing import _op_laws as laws, check_close
"""
# rows so short that a tile of two stretches has few channels, as in `test_triton`
TILE = """
triton_plan.ROW, triton_plan.BUSY_WARPS, triton_plan.FEWEST_TENTHS = 128, 2, 0
triton_plan.gpu.processors = lambda device: 64
"""
# so many multiprocessors to fill that each tile is a program, in groups of two
CHAIN = """
triton_plan.ROW, triton_plan.CHAINED, triton_plan.GROUP, triton_plan.FEWEST_TILES = 128, 2, 2, 1
triton_plan.gpu.processors = lambda device: 64
"""
REGIMES = {"walk": "", "tile": TILE, "chain": CHAIN}


@pytest.fixture
def interpreted(warm, root):
    """Run code in Triton's interpreter, in one of the regimes."""

    def run(code, regime="walk"):
        setup = SETUP.format(folder=f"{root}/tests/unit/ops")
        return warm(f"{setup}{REGIMES[regime]}{code}", TRITON_INTERPRET="1")

    return run


@needs_triton
@pytest.mark.parametrize(("turn", "regime"), enumerate(REGIMES))
@pytest.mark.parametrize(
    ("dtype", "turns"),
    [
        pytest.param("float64", len(REGIMES), id="float64 in turns"),
        pytest.param("float64", 1, id="float64", marks=pytest.mark.slow),
        pytest.param("float32", 1, id="float32", marks=pytest.mark.slow),
    ],
)
def test_outputs_and_gradients_are_those_of_the_loop_in_every_layout(
    interpreted, regime, turn, dtype, turns
):
    """Resets, packed, reversed, constant; a part of a tile, and several tiles.

    In turns, each regime has layouts of its own.
    """
    code = f"""
names = ("h", "final", "grad log_a", "grad log_b", "grad initial")
for case in [*laws.layouts(is_complex=False, times=(1, 19))][{turn % turns}::{turns}]:
    truth = results(log_loop, case, torch.float64)
    with use_backend("triton"), laws._PoisonedMemory():
        got = results(log_linear_scan, case, torch.{dtype})
    for name, x, y in zip(names, got, truth, strict=False):
        check_close(f"{{case.name}} {{name}}", x, y, roundings=64)
result = 1
"""
    interpreted(code, regime)


@needs_triton
@pytest.mark.parametrize(
    "regime", [pytest.param(x, marks=() if x == "chain" else pytest.mark.slow) for x in REGIMES]
)
def test_roundings_of_many_steps_do_not_add_up(interpreted, regime):
    """Each of 800 steps rounds a logarithm of size 1000; a plain loop shows it.

    From tile to tile, too, what its last digit lost goes with a logarithm.
    """
    code = """
torch.manual_seed(0)
log_a, log_b = -1e-3 * torch.rand(1, 800, 8), 1000 + torch.randn(1, 800, 8)
layout = {"reset": None, "cu_seqlens": None, "reverse": False}
exact, _ = log_loop(log_a.double(), log_b.double(), None, **layout)
found, _ = log_linear_scan(log_a, log_b, backend="triton")
plain, _ = log_loop(log_a, log_b, None, **layout)
eps = torch.finfo(torch.float32).eps
result = [((x - exact).abs().max() / (1000 * eps)).item() for x in (found, plain)]
"""
    ours, plain = interpreted(code, regime)
    assert ours <= 2
    assert plain > 4


@needs_triton
@pytest.mark.parametrize("regime", REGIMES)
def test_zeros_nan_and_bits(interpreted, regime):
    """A state of nothing stays it; NaN stops at a reset; two runs have the same bits."""
    code = """
nothing = -torch.inf
log_a = torch.tensor([nothing, -1.0])
log_b = torch.full((1, 5, 2), nothing)
log_b[0, 3] = 1.0
with use_backend("triton"):
    log_h, final = log_linear_scan(log_a, log_b)
    assert log_h[0, :, 0].tolist() == [nothing] * 3 + [1.0, nothing]
    assert final[0, 1].item() == 0.0
    b = torch.randn(2, 9, 40)
    b[:, 2] = torch.nan
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[:, 5] = True
    leak = torch.full((40,), -1.0)
    one, _ = log_linear_scan(leak, b, reset=reset)
    assert one[:, 2:5].isnan().all() and one[:, 5:].isfinite().all()
    assert torch.equal(one.nan_to_num(), log_linear_scan(leak, b, reset=reset)[0].nan_to_num())
    cut = [log_linear_scan(leak, b[:, 5:7])]
    cut.append(log_linear_scan(leak, b[:, 7:], cut[0][1]))
    check_close("pieces", torch.cat([x for x, _ in cut], 1), one[:, 5:], roundings=8)
result = 1
"""
    interpreted(code, regime)


@needs_triton
@pytest.mark.parametrize("regime", REGIMES)
def test_terms_of_zero_have_no_gradient_and_make_no_nan(interpreted, regime):
    """Decays, inputs and states of -inf, at a tile's first step, inside it, and everywhere."""
    code = """
torch.manual_seed(0)
log_a, log_b, first = -torch.rand(1, 19, 40), torch.randn(1, 19, 40), torch.randn(1, 40)
log_a[:, [4, 5, 8]] = log_b[:, [4, 9, 10]] = -torch.inf
log_b[:, :, 3] = first[:, 3] = first[:, 7] = -torch.inf
into = torch.randn_like(log_b)

def both(function, dtype, **how):
    leaves = [x.to(dtype).requires_grad_() for x in (log_a, log_b, first)]
    h, _ = function(*leaves, **how)
    return [h, *torch.autograd.grad(torch.where(h.isfinite(), h, 0), leaves, into.to(dtype))]

layout = {"reset": None, "cu_seqlens": None, "reverse": False}
truth = both(log_loop, torch.float64, **layout)
found = both(log_linear_scan, torch.float32, backend="triton")
for x, y in zip(found, truth, strict=True):
    y = y.nan_to_num(0) if y is not truth[0] else y
    assert torch.equal(x.isinf(), y.isinf()) and not x.isnan().any()
    torch.testing.assert_close(x.double(), y, rtol=2e-5, atol=2e-5)
result = 1
"""
    interpreted(code, regime)
