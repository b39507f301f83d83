"""`log_linear_scan` on Triton, in its interpreter: the float64 loop's numbers."""

import pytest
from test_cell_triton import needs_triton

SETUP = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {folder!r})
from test_log_scan import log_loop, results
from linrnn.ops import log_linear_scan, use_backend
from linrnn.ops.linear.log_linear_scan import _triton
from linrnn.testing import _op_laws as laws, check_close
"""


@pytest.fixture
def interpreted(warm, root):
    def run(code):
        setup = SETUP.format(folder=f"{root}/tests/unit/ops")
        return warm(f"{setup}{code}", TRITON_INTERPRET="1")

    return run


@needs_triton
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_outputs_and_gradients_are_those_of_the_loop_in_every_layout(interpreted, dtype):
    """Fewer steps than are on their way, and more."""
    interpreted(f"""
names = ("h", "final", "grad log_a", "grad log_b", "grad initial")
for case in laws.layouts(is_complex=False, times=(1, 7, 33)):
    truth = results(log_loop, case, torch.float64)
    with use_backend("triton"), laws._PoisonedMemory():
        got = results(log_linear_scan, case, torch.{dtype})
    for name, x, y in zip(names, got, truth, strict=False):
        check_close(f"{{case.name}} {{name}}", x, y, roundings=64)
result = 1
""")


@needs_triton
def test_roundings_of_many_steps_do_not_add_up(interpreted):
    """Each of 3,000 steps rounds a logarithm of size 1000; a plain loop shows it."""
    ours, plain = interpreted("""
torch.manual_seed(0)
log_a, log_b = -1e-3 * torch.rand(1, 3000, 8), 1000 + torch.randn(1, 3000, 8)
layout = {"reset": None, "cu_seqlens": None, "reverse": False}
exact, _ = log_loop(log_a.double(), log_b.double(), None, **layout)
found, _ = log_linear_scan(log_a, log_b, backend="triton")
plain, _ = log_loop(log_a, log_b, None, **layout)
eps = torch.finfo(torch.float32).eps
result = [((x - exact).abs().max() / (1000 * eps)).item() for x in (found, plain)]
""")
    assert ours <= 2
    assert plain > 10


@needs_triton
def test_zeros_nan_and_bits(interpreted):
    """A state of nothing stays it; NaN stops at a reset; two runs have the same bits."""
    interpreted("""
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
""")
