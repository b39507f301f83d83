"""Affine cells in tiles of time: a float64 loop's numbers in the interpreter, and compiled code.

What the interpreter leaves out is that tiles which hand over run at the same time.
"""

import pytest
import torch
from test_cell_triton import SETUP as OF_CELLS
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE

from linrnn.cells import Cell
from linrnn.mixers.hgrn import hgrn
from linrnn.mixers.rg_lru import rg_lru
from linrnn.ops.cell.cell_scan._triton_tiles import solution

slow = pytest.mark.slow

# one step a stretch: tiles are full, have a tail or are missing already at short lengths
TILE = f"""{OF_CELLS}
import interpreted_scan
from linrnn.mixers.hgrn import hgrn
from linrnn.mixers.rg_lru import rg_lru
from linrnn.ops.cell.cell_scan import _triton_form
from linrnn.ops.linear.linear_scan import triton_plan

CELLS["hgrn"] = hgrn
_triton_form.SHORTEST, triton_plan.ROW, triton_plan.BUSY_WARPS = 1, 128, 2
triton_plan.FEWEST_TENTHS = 0
triton_plan.gpu.processors = lambda device: 64
"""
# so many multiprocessors to fill that each tile is a program, in groups of two
CHAIN = f"""{TILE}
triton_plan.FEWEST_TENTHS, triton_plan.MOST_STEPS = 9, 1
triton_plan.CHAINED, triton_plan.GROUP, triton_plan.FEWEST_TILES = 1, 2, 1
"""
REGIMES = {"tile": TILE, "chain": CHAIN}
each_regime = pytest.mark.parametrize("regime", REGIMES)
AFFINE = ("mingru", "rg_lru", "cascade", "lru", "hgrn")


@pytest.fixture
def interpreted(warm, root):
    """Run code in Triton's interpreter, in one of the regimes, and check that it was that one."""

    def run(regime, code):
        setup = REGIMES[regime].replace("{folder!r}", repr(f"{root}/tests/unit/"))
        ends = f"""
plans = [form.plan for _, form in _triton._forms.values()]
assert plans and all(x is not None and x.chained == ({regime!r} == "chain") for x in plans), plans
result = 1"""
        assert warm(f"{setup}{code}{ends}", TRITON_INTERPRET="1") == 1

    return run


@needs_triton
@each_regime
@pytest.mark.parametrize("name", ["cascade", pytest.param("hgrn", marks=slow)])
def test_cells_in_tiles_equal_the_loop(interpreted, regime, name):
    """Outputs, final states and all gradients, of an initial state, resets, packed, reversed."""
    interpreted(
        regime,
        f"""
for marks in ((True, True, False), (True, False, True)):
    check({name!r}, (2, 11, 5), marks, torch.float64)
""",
    )


@needs_triton
@slow
@each_regime
@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("stored", ["float64", "float32", "bfloat16"])
def test_every_layout_equals_the_loop(interpreted, regime, name, stored):
    """Complex numbers of half precision there are none; HGRN's inputs are real."""
    interpreted(
        regime,
        f"""
_triton_code.MOST_STEPS = 2
if {name!r} != "lru" or {stored!r} != "bfloat16":
    for marks in machine.MARKS:
        check({name!r}, (2, 21, 6), marks, torch.{stored})
else:
    check("mingru", (2, 21, 6), machine.MARKS[0], torch.bfloat16)
""",
    )


@needs_triton
@each_regime
def test_hawks_first_step_is_marked_by_a_state_that_needs_no_scan(interpreted, regime):
    """Its last value is 0, which has no gradient, so the loop cannot be asked for one."""
    interpreted(
        regime,
        """
given, (h, first) = draw(rg_lru, 2, 11, 5)
reset = torch.rand(2, 11) < 0.2

def results(**way):
    leaves = {n: x.clone().requires_grad_() for n, x in given.items()}
    start = h.clone().requires_grad_()
    y, (last, after) = cell_scan(rg_lru, **leaves, state=(start, first * 0 + 1), reset=reset, **way)
    assert (after == 0).all()
    into = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
    return [y, last, *torch.autograd.grad((y, last), [*leaves.values(), start], (into, last))]

for x, true in zip(results(backend="triton"), results(form="loop"), strict=True):
    torch.testing.assert_close(x, true, rtol=1e-11, atol=1e-11)
""",
    )


@needs_triton
@each_regime
def test_nan_stops_at_a_reset_tiles_later_and_runs_give_the_same_bits(interpreted, regime):
    interpreted(
        regime,
        """
torch.manual_seed(0)
a, z = torch.randn(1, 16, 5), torch.randn(1, 16, 5)
a[:, 1] = torch.nan
reset = torch.zeros(1, 16, dtype=torch.bool)
reset[:, 9] = True

def run():
    leaves = [a.clone().requires_grad_(), z.clone().requires_grad_()]
    y, last = cell_scan(CELLS["mingru"], **dict(zip(CELLS["mingru"].inputs, leaves)), reset=reset,
                        backend="triton")
    into = torch.ones_like(y)
    into[:, 14] = torch.nan
    return [y, last, *torch.autograd.grad(y, leaves, into)]

found, again = run(), run()
y, _, grad_a, _ = found
assert y[:, 2:9].isnan().all() and y[:, 9:].isfinite().all()
assert grad_a[:, 9:14].isnan().all() and grad_a[:, 2:9].isfinite().all()
for x, other in zip(found, again, strict=True):
    assert torch.equal(x.nan_to_num(7), other.nan_to_num(7))
""",
    )


@needs_triton
@pytest.mark.parametrize("regime", ["tile", pytest.param("chain", marks=slow)])
def test_a_long_memory_survives_many_tiles(interpreted, regime):
    """A decay near 1 over 300 tiles, in float32, is as near to float64 as a loop."""
    interpreted(
        regime,
        """
def leak(h, u, a):
    return ((a * h + u,) * 2)

CELLS["leak"] = Cell(leak, state="h", constant="a")
u, a = torch.rand(1, 600, 5), torch.full((5,), 1 - 1e-6)
exact = cell_scan(CELLS["leak"], u=u.double(), a=a.double(), form="loop")[0]
loop = cell_scan(CELLS["leak"], u=u, a=a, form="loop")[0]
y = cell_scan(CELLS["leak"], u=u, a=a, backend="triton")[0]
assert (y - exact).abs().max() <= 2 * (loop - exact).abs().max()
""",
    )


def test_which_cells_are_solved_in_tiles():
    assert solution(rg_lru.program).constant == (1,)  # whether it is the first step
    assert solution(hgrn.program).is_complex
    shift = Cell(lambda h, x: (h + x, x), state="h")
    assert solution(shift.program).scanned

    def two_kinds(h, z, x, w):
        return (h, z.real), (0.5 * h + x, z * w + x)

    both = Cell(two_kinds, state="h z", constant="w", complex="z w")
    assert solution(both.program) == "its states are real and complex"
    bent = Cell(lambda h, x: (torch.tanh(h + x),) * 2, state="h")
    assert solution(bent.program) == "tanh of h makes its step no affine function"
    dense = Cell(lambda h, x, W: (h + x @ W,) * 2, state="h", matrix="W")
    assert solution(dense.program) == "its channels are mixed"
    still = Cell(lambda h, x: (x + h, torch.zeros_like(h)), state="h")
    assert solution(still.program) == "no state of it depends on the one before"


@pytest.fixture
def offline(warm):
    """Run code where launches compile and do not run."""

    def run(code):
        return warm(OFFLINE + code, TRITON_INTERPRET="0")

    return run


#: Cells whose warps share tiles, and whose tiles hand over.
CODES = {
    "minGRU": "calls.cell('minGRU', (8, 64, 2048))",
    "minLSTM": "calls.cell('minLSTM', (8, 64, 2048))",
    "RG-LRU": "calls.cell('RG-LRU', (8, 64, 2048))",
    "HGRN": "calls.cell('HGRN', (8, 64, 2048))",
    "half of a row": "calls.cell('RG-LRU', (8, 64, 1024))",
    "bfloat16": "calls.cell('minLSTM', (8, 64, 2048), torch.bfloat16)",
    "RG-LRU, bfloat16": "calls.cell('RG-LRU', (8, 64, 2048), torch.bfloat16)",
    "HGRN, bfloat16": "calls.cell('HGRN', (8, 64, 2048), torch.bfloat16)",
    "handed over": "calls.cell('minGRU', (1, 1024, 256))",
    "RG-LRU, handed over": "calls.cell('RG-LRU', (1, 1024, 256))",
    "HGRN, handed over": "calls.cell('HGRN', (1, 1024, 256))",
    "RG-LRU, with resets": "calls.cell('RG-LRU', (8, 64, 2048), marks=True)",
    "handed over, packed, with resets": "calls.cell('RG-LRU', (1, 1024, 256), marks=True)",
}


@needs_triton
@pytest.mark.parametrize(
    "call", [x if x == "minGRU" else pytest.param(x, marks=slow) for x in CODES]
)
def test_tiles_load_128_bits_spill_nothing_and_meet_at_few_barriers(offline, call):
    """Ten barriers a tile; a hand-over has its own, outside of the loops that wait."""
    codes = offline(f"result = codes(lambda: {CODES[call]})")
    for name, registers, spills, widest, _, _, loop_barriers, _ in [
        x for x in codes if x[0] == "run"
    ]:
        # RG-LRU's gradient has registers for 64 channels a warp, so its loads have half the width
        assert (spills, widest) in ((0, 128), (0, 64 if call == "half of a row" else 128)), name
        assert loop_barriers <= 10, name
        assert registers <= 255, name


@needs_triton
@pytest.mark.parametrize(
    "name", ["minGRU", *(pytest.param(x, marks=slow) for x in ("minLSTM", "RG-LRU", "HGRN"))]
)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=slow)])
def test_walks_of_many_sequences_load_128_bits_and_spill_nothing(offline, name, dtype):
    """Where all parameters of 8 channels fit in a thread's registers; else half as many do."""
    codes = offline(f"result = codes(lambda: calls.cell({name!r}, (512, 4, 512), torch.{dtype}))")
    for number, (kernel, registers, spills, _, loads, barriers, *_) in enumerate(codes[:2]):
        half = dtype == "bfloat16" and (name == "RG-LRU" or (name == "HGRN" and number == 1))
        narrowest = min(int(bits) for bits in loads)
        assert (kernel, spills, narrowest, barriers) == ("run", 0, 64 if half else 128, 0), name
        assert registers <= 255, name


@needs_triton
@pytest.mark.parametrize(
    ("name", "forward", "backward"), [("minGRU", 3, 6), ("RG-LRU", 6, 10), ("HGRN", 5, 10)]
)
def test_cells_in_tiles_move_every_number_once(offline, name, forward, backward):
    """Inputs and outputs, and RG-LRU's state beside its output; no decay, no gate."""
    moved = offline(f"""
from linrnn.compute.launch import Launch
offline.launch_uncompiled()
moved, launch = [], Launch.__call__

def size(x):  # of a row that stands for all steps that row, of a view what it shows
    return min(x.nbytes, x.untyped_storage().nbytes())

def measured(self, *tensors):
    moved.append(sum(size(x) for x in tensors if x is not None))
    launch(self, *tensors)

Launch.__call__ = measured
calls.both(calls.cell({name!r}, (8, 64, 2048)))()
result = moved[-2:]
""")
    size = 4 * 8 * 64 * 2048
    for found, tensors in zip(moved, (forward, backward), strict=True):
        assert tensors * size <= found <= 1.05 * tensors * size
