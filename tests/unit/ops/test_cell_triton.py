"""Cells in Triton: in the interpreter against a float64 loop, and compiled for a GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from linrnn.cells import Cell, block_linear
from linrnn.errors import BackendError
from linrnn.ops import backend_report, cell_scan, explain
from linrnn.ops.cell.cell_scan import _triton
from linrnn.ops.cell.cell_scan._arguments import prepare

sys.path.append(str(Path(__file__).parents[1] / "cells"))
from literature import CELLS

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)

SETUP = """
import sys, torch
torch.set_num_threads(1)
for folder in ("ops", "cells"):
    sys.path.insert(0, {folder!r} + folder)
import test_cell_machine as machine
from literature import CELLS, draw
from linrnn.cells import Cell
from linrnn.engine.graph import ELEMENTWISE
from linrnn.ops import cell_scan, use_backend
from linrnn.ops.cell.cell_scan import _triton, _triton_code
from linrnn.testing import _op_laws as laws

# lengths below have whole groups of steps, a rest, or less than one
_triton_code.MOST_STEPS, _triton_code.MOST_AHEAD = 2, 6

def check(*given):
    with use_backend("triton"), laws._PoisonedMemory():
        machine.check(*given)

def in_turn(names, every=machine.MARKS):
    for i, name in enumerate(names):
        resets, packed, reverse = every[i % len(every)]
        yield name, (resets, packed and bool(CELLS[name].inputs), reverse)
"""


@pytest.fixture
def interpreted(warm, root):
    def run(code):
        setup = SETUP.format(folder=f"{root}/tests/unit/")
        assert warm(f"{setup}{code}\nresult = 1", TRITON_INTERPRET="1") == 1

    return run


slow = pytest.mark.slow


@needs_triton
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=slow)])
def test_operations(interpreted, dtype):
    """All of those with as many arguments are outputs of one program."""
    interpreted(f"""
dtype = torch.{dtype}
three, two = ["where"], "add sub mul div maximum minimum lt le eq ne".split()
lacking = {{op for op, row in ELEMENTWISE.items() if row.triton is None}}
assert lacking == set("atan2 fmod pow".split())
one = [op for op in ELEMENTWISE if op not in lacking and op not in (*two, *three)]
machine._cpu = _triton
for ops, arity in ((one, 1), (two, 2), (three, 3)):
    build = lambda g, c, *args: [g(op, *args[:arity]) for op in ops]
    inputs = [x.flatten()[:300].view(1, 1, -1) for x in machine.operands(dtype, arity)]
    inputs = inputs if arity > 1 else [torch.cat([inputs[0], torch.linspace(-1e4, 1e4, 100)
                                                  .to(dtype).view(1, 1, -1)], -1)]
    found = machine.run(machine.of_inputs(build, arity), inputs)
    for op, got in zip(ops, found, strict=True):
        want = ELEMENTWISE[op](*(x.double() for x in inputs))
        rounded = want.to(dtype)
        assert torch.equal(got.isnan(), rounded.isnan()), op
        assert torch.equal(got[rounded.isinf()], rounded[rounded.isinf()]), op
        finite = rounded.isfinite()
        size = torch.maximum(want.abs(), inputs[0].double().abs()) if op == "gelu" else want
        # where exp(-x) overflows, PyTorch's own sigmoid is 0
        size = size.clamp(min=1e-300) if op == "sigmoid" else size
        error = ((got.double() - want).abs() / machine.ulp(size, dtype))[finite]
        assert error.max() <= 3, (op, inputs[0][finite][error.argmax()], error.max())
        if op in ("neg", "relu", "sin", "tanh", "expm1", "erf", "log1p"):
            zero = inputs[0] == 0
            assert torch.equal(got[zero].signbit(), want[zero].signbit()), op
""")


@needs_triton
def test_cells_equal_the_loop(interpreted):
    """Outputs, final states and all gradients; memory that nothing is written to is NaN."""
    interpreted("""
for name, marks in in_turn(["slstm", "gru", "mingru", "heads", "modrelu", "oscillator"]):
    check(name, (1, 3, 6), marks, torch.float64)
""")


@needs_triton
def test_rows_of_many_groups_on_their_way_arrive_in_order(interpreted):
    """Three groups of two steps are on their way; there are seven, and a rest."""
    interpreted("""
for name, marks in in_turn(["slstm", "mingru"]):
    check(name, (2, 15, 5), marks, torch.float64)
""")


@needs_triton
@slow
@pytest.mark.parametrize("stored", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("first", range(0, 18, 3))
def test_every_layout_equals_the_loop(interpreted, first, stored):
    """Complex numbers of half precision there are none."""
    interpreted(f"""
half = torch.{stored} in (torch.bfloat16, torch.float16)
for name in list(CELLS)[{first}:{first} + 3]:
    for marks in machine.MARKS if torch.{stored} == torch.float64 else machine.MARKS[1::3]:
        if (CELLS[name].inputs or not marks[1]) and not (half and CELLS[name].is_complex):
            check(name, (2, 5, 6), marks, torch.{stored})
""")


@needs_triton
@slow
@pytest.mark.parametrize("gate", [50.0, -50.0])
def test_exponential_gates_near_their_limits(interpreted, gate):
    interpreted(f"""
given, state = draw(CELLS["slstm"], 1, 5, 4)
given = {{n: x + ({gate} if n in "if" else 0) for n, x in given.items()}}
state = (state[0], state[1].abs() + 1, state[2])
options = {{"reset": None, "cu_seqlens": None, "reverse": False}}
def found(dtype, backend):
    with use_backend(backend):
        return machine.computed("slstm", given, state, options, dtype, dtype,
                                "loop" if backend == "reference" else "native")
exact = found(torch.float64, "reference")
for dtype in (torch.float32, torch.float64):
    ours, loop = (machine.errors(found(dtype, b), exact) for b in ("triton", "reference"))
    for one, other in zip(ours, loop, strict=True):
        assert one <= 3 * other + 8 * torch.finfo(dtype).eps, (one, other)
""")


def test_every_cell_has_its_turn():
    assert set(CELLS) == {name for first in range(0, 18, 3) for name in list(CELLS)[first:][:3]}


@needs_triton
@slow
def test_matrices_that_are_read_at_every_step_and_blocks_of_channels(interpreted):
    interpreted("""
_triton_code.RESIDENT = 0
for name, marks in in_turn(["gru", "lem", "heads", "cornn"]):
    check(name, (2, 4, 10), marks, torch.float64)
_triton_code.AT_ONCE, _triton._cells = 128, {}  # four rows of sixteen
for name, marks in in_turn(["lem", "heads", "gru"]):
    check(name, (1, 3, 10), marks, torch.float64)
    check(name, (1, 3, 16), marks, torch.float64)
for name, marks in in_turn(["slstm", "lru", "unicornn"]):
    check(name, (2, 3, 70), marks, torch.float32)
""")


@needs_triton
def test_channels_repeated_and_summed_up(interpreted):
    """Also where widths are no powers of 2, next to a matrix and of widths that no argument has."""
    interpreted("""
import test_cell_widths as several
check("synapses", (2, 5, 5), machine.MARKS[1], torch.float64)
check("ring", (2, 5, 5), machine.MARKS[1], torch.float64)
for name in ("pairs", "unseen"):
    given = several.arguments(name, 3, 7)
    want = several.results(name, given, torch.float64, form="loop")
    got = several.results(name, given, torch.float64, backend="triton")
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)
""")


@needs_triton
@slow
def test_matrices_may_change_the_width(interpreted):
    interpreted("""
def step(h, g, x, U, V, R):
    h = torch.tanh(F.linear(x, U) + h)
    return (h @ V, g), (h, g + (h @ V) * 0.5)

def heads(h, x, R):
    y = block_linear(torch.log(h * h), R)  # of what lies beyond a width it is infinite
    return y, 0.5 * h + x

from linrnn.cells import block_linear
import torch.nn.functional as F
wide = Cell(step, state="h g", matrix="U V R")
x, u, v = (torch.randn(s, dtype=torch.float64) for s in ((2, 5, 3), (4, 3), (4, 7)))
cells = [(wide, {"x": x, "U": u, "V": v, "R": u}),
         (Cell(heads, state="h", matrix="R", start=0.3),
          {"x": torch.rand(2, 5, 6).double(), "R": torch.randn(2, 5, 3).double()})]
for cell, given in cells:
    found = []
    for backend in ("reference", "triton"):
        given = {n: x.detach().requires_grad_() for n, x in given.items()}
        y, last = cell_scan(cell, **given, backend=backend)
        flat = [x for some in (y, last) for x in (some if isinstance(some, tuple) else [some])]
        loss = sum((x * x).sum() for x in flat)
        grads = torch.autograd.grad(loss, list(given.values()), materialize_grads=True)
        found.append([*flat, *grads])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
""")


@needs_triton
@slow
def test_grown_cells_equal_their_steps(interpreted):
    interpreted("""
from hypothesis import HealthCheck, given, settings, strategies as st
from test_cell_scan import by_steps, gradients, scanned
from test_grown import cells

@settings(max_examples=25, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))
@given(cells(), st.booleans())
def compare(cell, reverse):
    arguments, state = draw(cell, time=3, channels=3)
    reset = torch.tensor([[False, False, True], [False] * 3])
    sources = [x.requires_grad_() for x in (*arguments.values(), *state)]
    want = gradients(by_steps(cell, arguments, state, reset, None, reverse), sources)
    options = dict(reset=reset, reverse=reverse, backend="triton")
    found = gradients(scanned(cell, arguments, state, **options), sources)
    for kind, true in zip(found, want, strict=True):
        for x, y in zip(kind, true, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)

compare()
""")


@needs_triton
def test_edges_and_bits(interpreted):
    """NaN stops at resets in both directions; ties; strides; equal bits; a decay near 1."""
    interpreted("""
def largest(h, x, p):
    h = torch.maximum(h, x) + torch.relu(x - p)
    return h, h

cell = Cell(largest, state="h", constant="p")
def results(backend, x, reset, into, p=torch.tensor([0.0, 0.0, -0.5])):
    x, p = x.clone().requires_grad_(), p.clone().requires_grad_()
    y, last = cell_scan(cell, x=x, p=p, reset=reset, backend=backend)
    return [y, last, *torch.autograd.grad((y, last), (x, p), (into, torch.ones_like(last)))]

reset = torch.zeros(2, 5, dtype=torch.bool)
reset[:, 3] = True
tied = torch.tensor([0.0, 1.0, 1.0, 0.0, 2.0]).view(1, 5, 1).expand(2, 5, 3)
bad = tied.clone()
bad[:, 1] = torch.nan
into = torch.linspace(-1, 1, 30).view(2, 5, 3)
for x in (tied, bad):
    ours, again, loop = (results(b, x, reset, into) for b in ("triton", "triton", "reference"))
    for one, other, want in zip(ours, again, loop, strict=True):
        torch.testing.assert_close(one, want, equal_nan=True)
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
assert ours[0][:, 1:3].isnan().all() and ours[0][:, 3:].isfinite().all()
into[:, 4] = torch.nan
assert results("triton", tied, reset, into)[2][:, :3].isfinite().all()

u = torch.randn(3, 8, 2, 4).transpose(0, 2)[1].transpose(0, 1)[:, ::2]  # strides of all kinds
leak = Cell(lambda h, u, a: ((a * h + u,) * 2), state="h", constant="a")
a = torch.full((4,), 1 - 1e-7)
for low in (torch.float32, torch.bfloat16):
    got, want = (cell_scan(leak, u=u.to(low), a=a, backend=b) for b in ("triton", "reference"))
    torch.testing.assert_close(got, want)
# what is kept, and what a product is made of, is not rounded to what inputs are stored in
dense = Cell(lambda h, u, W: ((torch.tanh(u + h @ W),) * 2), state="h", matrix="W")
for cell, more in ((leak, {"a": a - 0.1}), (dense, {"W": torch.randn(4, 4)})):
    (x,) = (x.requires_grad_() for x in more.values())
    ys = (cell_scan(cell, u=u.bfloat16(), **more, backend=b)[0] for b in ("triton", "reference"))
    ours, loop = (torch.autograd.grad(y, x, torch.ones_like(y)) for y in ys)
    torch.testing.assert_close(ours, loop, rtol=1e-5, atol=1e-5)
""")


COMPILE = """
import re, torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from linrnn.ops.cell.cell_scan._arguments import prepare
_triton.gpu.processors = lambda device: 132

def kinds(code, storage, wide):
    for name in code.kernel.arg_names:
        kind, *rest = name.split("_")
        whole = code.heads and kind == "width"
        if name.isupper() or kind == "BLOCK" or whole or name in ("arrived", "published"):
            yield "constexpr"
        elif rest[-1:] in (["seq"], ["step"]) or kind in ("time", "parts", "sequences", "width"):
            yield "i32"
        else:
            special = {"reset": "i1", "cu": "i64", "sum": "fp64"}
            yield "*" + special.get(kind, storage if kind in ("input", "stored") else wide)

def codes(name, channels, dtype):
    cell, (given, state) = CELLS[name], draw(CELLS[name], 8, 4, channels)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    given = {n: machine.cast(x, dtype if n in cell.inputs else wide) for n, x in given.items()}
    state = tuple(machine.cast(h, wide) for h in state)
    call = prepare(cell, given, state, None, None, False, None if cell.inputs else 4)
    assert _triton.declines(cell.program, call.leaves, call.layout) is None
    made = _triton._cell(cell.program, call.leaves, call.layout)
    return made.keeping(dtype == wide)[0], made.backward(dtype == wide)[0], call.leaves

def compiled(name, channels, dtype):
    short = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16"}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    *both, leaves = codes(name, channels, dtype)
    for code in both:
        _, options = code.tile(8, leaves)
        warps = {"num_warps": options.pop("num_warps")}
        types = dict(zip(code.kernel.arg_names, kinds(code, short[dtype], short[wide])))
        values = {**options, "FLIP": True, "arrived": None, "published": None}
        values |= {f"width_{k}": n for k, n in enumerate(code.widths) if code.heads}
        pointers = [i for i, kind in enumerate(types.values()) if "*" in kind]
        aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
        values = {n: values[n] for n in types if n in values}
        source = ASTSource(code.kernel, types, values, aligned)
        yield triton.compile(source, target=GPUTarget("cuda", 90, 32), options=warps).asm["ptx"]

"""


@needs_triton
@pytest.mark.parametrize(
    ("name", "channels", "dtype"),
    [
        ("mingru", 64, "float32"),
        *(
            pytest.param(*case, marks=slow)
            for case in (
                ("mingru", 300, "bfloat16"),
                ("slstm", 256, "float32"),
                ("slstm", 256, "float64"),
                ("lru", 64, "float32"),
                ("unicornn", 64, "bfloat16"),
                ("cornn", 64, "float32"),
                ("cornn", 50, "float64"),
                ("gru", 128, "float32"),
                ("cornn", 256, "float32"),
                ("heads", 64, "bfloat16"),
            )
        ),
    ],
)
def test_kernels_compile_for_a_gpu(warm, root, name, channels, dtype):
    """A cell without matrices never waits for another thread, nor for its stack."""
    setup = SETUP.format(folder=f"{root}/tests/unit/")
    words = ("st.global", "shfl", "bar.sync", ".local", "ex2.approx", "sqrt.approx")
    result = warm(
        f"""{setup}{COMPILE}
result = [[ptx.count(word) for word in {words}]
          for ptx in compiled({name!r}, {channels}, torch.{dtype})]
if not CELLS[{name!r}].matrices:  # of another width it is the same kernel
    one, other = (codes({name!r}, n, torch.{dtype})[1] for n in ({channels}, {channels} // 2))
    assert one is not other and one.kernel is other.kernel
""",
        TRITON_INTERPRET="0",
    )
    for stores, shuffles, barriers, local, *inexact in result:
        assert stores > 0
        assert inexact == [0, 0]
        if name not in ("cornn", "gru", "heads"):
            assert (shuffles, barriers, local) == (0, 0, 0)


def sized(channels, heads=None, dtype=torch.float32):
    """A call of a cell with one matrix."""

    def step(h, x, W):
        h = torch.tanh(x + (block_linear(h, W) if heads else h @ W))
        return h, h

    shape = (heads, channels // heads, channels // heads) if heads else (channels, channels)
    given = {"x": torch.zeros(1, 2, channels), "W": torch.zeros(shape)}
    given = {n: x.to(dtype) for n, x in given.items()}
    cell = Cell(step, state="h", matrix="W")
    call = prepare(cell, given, None, None, None, False, None)
    return cell, call.leaves, call.layout


def test_what_is_too_large_is_declined():
    def reason(*sizes):
        cell, leaves, layout = sized(*sizes)
        return _triton.declines(cell.program, leaves, layout)

    assert reason(256) is None
    assert reason(1024, 16) is None
    assert reason(300) == "W, 300 x 300, does not fit in the registers of a program"
    assert reason(128, None, torch.float64) is None
    assert "150 x 150" in reason(150, None, torch.float64)  # a side is rounded up to 256


def test_heads_of_different_numbers_are_declined():
    def step(h, x, R, S):
        h = block_linear(h, R) + block_linear(x, S)
        return h, h

    cell = Cell(step, state="h", matrix="R S")
    given = {"x": torch.zeros(1, 2, 4), "R": torch.zeros(2, 2, 2), "S": torch.zeros(4, 1, 1)}
    call = prepare(cell, given, None, None, None, False, None)
    reason = _triton.declines(cell.program, call.leaves, call.layout)
    assert reason == "what mixes its channels divides them into different numbers of heads"


@pytest.mark.unchecked
def test_a_choice_that_cannot_be_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "needs a CUDA tensor" in backend_report("cell_scan")["triton"]
    x = torch.zeros(1, 2, 3)
    for options in ({}, {"form": "native"}):
        with pytest.raises(BackendError, match="needs a CUDA tensor, got cpu"):
            cell_scan(CELLS["mingru"], a=x, z=x, backend="triton", **options)


@needs_triton
def test_explain_tells_what_would_run(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x, mingru = torch.zeros(1, 2, 3), CELLS["mingru"]
    text = explain(mingru, a=x, z=x, backend="triton")
    assert text.startswith("native: triton requested by the argument backend=, as walks along time")
    assert explain("cell_scan", mingru, a=x, z=x, backend="triton") == text
    text = explain(mingru, a=x, z=x, backend="triton", form="native")
    assert text.startswith(
        "native: requested by the argument form=, on triton, as walks along time"
    )
    assert "triton" not in explain(mingru, a=x, z=x, backend="auto")
    cell, leaves, _ = sized(300)
    with pytest.raises(BackendError, match="W, 300 x 300, does not fit"):
        explain(cell, x=leaves.inputs[0], W=leaves.matrices[0], backend="triton")
