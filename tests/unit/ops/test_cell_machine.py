"""The native machine that runs cells: its operations, then whole cells against a loop."""

import itertools
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.engine.graph import ELEMENTWISE, SPREADS, Graph, Program, evaluate, finish
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _cpu
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves

sys.path.append(str(Path(__file__).parents[1] / "cells"))
from literature import CELLS, draw

from linrnn.cells import Cell

pytestmark = pytest.mark.skipif(
    _cpu.unavailable(torch.device("cpu"), torch.float32) is not None,
    reason="the native kernels are not installed, or not these",
)

DTYPES = [torch.float32, torch.float64]
SPECIAL = [
    *(0.0, -0.0, 1e-45, -1e-45, 1e-39, 1e-30, -1e-30, 1e-8, -1e-8, 1e-4, -1e-4, 0.3, -0.3),
    *(0.5, 1.0, -1.0, 2.0, math.pi / 2, -math.pi, 5.0, -5.0, 17.0, -17.0, 19.99, 20.01, 50.0),
    *(-50.0, 88.5, 88.8, -88.0, -103.0, 200.0, -200.0, 709.0, -745.0, 800.0, -800.0, 1e4, -1e4),
    *(3e5, 1e6, 1e7, -1e10, 1e30, -1e30, math.inf, -math.inf, math.nan),
]


# ------------------------------------------------------------------------------- one operation

#: What the machine computes as one operation, written with several; three inputs.
FUSED: dict[str, Callable[[Graph, Any, int, int, int], int]] = {
    "add_v": lambda g, c, x, y, z: g("add", x, c(0.7)),
    "rsub_v": lambda g, c, x, y, z: g("sub", c(0.7), x),
    "mul_v": lambda g, c, x, y, z: g("mul", x, c(0.7)),
    "rdiv_v": lambda g, c, x, y, z: g("div", c(0.7), x),
    "mul_v_add": lambda g, c, x, y, z: g("add", g("mul", x, c(0.7)), y),
    "rsub_v_mul": lambda g, c, x, y, z: g("mul", g("sub", c(0.7), x), y),
    "mul_add": lambda g, c, x, y, z: g("add", g("mul", x, y), z),
    "mul_sub": lambda g, c, x, y, z: g("sub", g("mul", x, y), z),
    "neg_mul_add": lambda g, c, x, y, z: g("sub", z, g("mul", x, y)),
    "add_add": lambda g, c, x, y, z: g("add", g("add", x, y), z),
    "mul_mul": lambda g, c, x, y, z: g("mul", g("mul", x, y), z),
    "sub_mul": lambda g, c, x, y, z: g("mul", g("sub", x, y), z),
    "add_mul": lambda g, c, x, y, z: g("mul", g("add", x, y), z),
    "lerp": lambda g, c, x, y, z: g("add", x, g("mul", z, g("sub", y, x))),
    "one_minus_square": lambda g, c, x, y, z: g("sub", c(1.0), g("square", x)),
    "mul_one_minus_square": lambda g, c, x, y, z: g("mul", x, g("sub", c(1.0), g("square", y))),
}


def of_inputs(build: Callable[[Graph, Any, int, int, int], Any], n: int = 3) -> Program:
    """A program of `n` inputs that gives out what is built of them; its state stays."""
    graph = Graph()
    inputs = [graph.leaf("input", i) for i in range(n)]
    found = build(graph, graph.constant, *(inputs * 3)[:3])
    outputs = found if isinstance(found, list) else [found]
    return finish(
        graph, [["s"], [f"x{i}" for i in range(n)], [], []], outputs, [graph.leaf("state", 0)]
    )


def run(program: Program, inputs: list[Tensor]) -> list[Tensor]:
    width = inputs[0].shape[-1]
    state = inputs[0].new_zeros(inputs[0].shape[0], width)
    layout = Layout(
        None, None, inputs[0].shape[1], False, [0.0], state.dtype, [width] * len(program.outputs)
    )
    return _cpu.forward(program, Leaves([state], inputs, [], []), layout, False)[0]


def codes_of(program: Program) -> set[str]:
    """The operations a program is assembled to."""
    code = _cpu._Code(program, [0.0]).assembled.code
    _, slots, matrices, *counts = struct.unpack_from("=7q", code)
    names = {number: name for name, number in _cpu.operations().items()}
    first = 56 + 32 * slots + 32 * matrices
    return {names[struct.unpack_from("=i", code, first + 32 * i)[0]] for i in range(sum(counts))}


def operands(dtype: torch.dtype, arity: int) -> list[Tensor]:
    """Numbers of all sizes, and random ones, (1, time, 37)."""
    torch.manual_seed(0)
    plain = torch.randn(37 * 20, dtype=torch.float64)
    if arity == 1:
        values = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), plain, 40 * plain])
    else:
        few = torch.tensor([0.0, -0.0, 1e-3, 0.5, -3.0, math.inf, -math.inf, math.nan])
        mixed = torch.stack(torch.meshgrid(*[few.double()] * arity, indexing="ij")).flatten(1)
        rows = [torch.cat([x, plain.roll(i)]) for i, x in enumerate(mixed)]
        values = torch.stack(rows)
    values = values.reshape(arity, -1)
    values = F.pad(values, (0, -values.shape[1] % 37), value=1.0)
    return [x.reshape(1, -1, 37).to(dtype) for x in values]


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    return x.abs().clamp(min=info.tiny) * info.eps


#: Operations of two numbers.
TWO = {
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "lt",
    "le",
    "eq",
    "ne",
    "atan2",
    "fmod",
    "pow",
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", sorted(ELEMENTWISE))
def test_elementwise(op: str, dtype: torch.dtype) -> None:
    arity = 3 if op == "where" else 2 if op in TWO else 1
    program = of_inputs(lambda g, c, *args: g(op, *args[:arity]), arity)
    inputs = operands(dtype, arity)
    (got,) = run(program, inputs)
    want = ELEMENTWISE[op](*(x.double() for x in inputs))
    rounded = want.to(dtype)
    assert codes_of(program) == {op}
    assert torch.equal(got.isnan(), rounded.isnan())
    assert torch.equal(got[rounded.isinf()], rounded[rounded.isinf()])
    finite = rounded.isfinite()
    size = want if op != "gelu" else torch.maximum(want.abs(), inputs[0].double().abs())
    error = ((got.double() - want).abs() / ulp(size, dtype))[finite]
    assert error.max() <= 3, inputs[0][finite][error.argmax()]


#: Of rows of bfloat16 the machine computes these by functions of its own.
OF_HALVES: dict[str, Callable[[Any], Any]] = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "rest": lambda x: torch.sigmoid(-x) * torch.sigmoid(x),
}


@pytest.mark.parametrize("channels", [8, 37])
@pytest.mark.parametrize("name", OF_HALVES)
def test_states_of_bfloat16_rows_are_right_to_a_millionth(name: str, channels: int) -> None:
    step = Cell(lambda h, x: (x, OF_HALVES[name](x)), state="h", name=name)
    x = operands(torch.bfloat16, 1)[0].flatten()
    x = F.pad(x, (0, -len(x) % channels)).reshape(-1, 1, channels)  # a sequence has one step
    _, state = cell_scan(step, x=x)
    want = OF_HALVES[name](x[:, 0].double())
    rounded = want.float()
    assert state.dtype is torch.float32
    assert torch.equal(state.isnan(), rounded.isnan())
    assert torch.equal(state[rounded.isinf()], rounded[rounded.isinf()])
    size = want.abs().clamp(min=torch.finfo(torch.float32).tiny)
    error = ((state.double() - want).abs() / size)[rounded.isfinite()]
    assert error.max() <= 1e-6, x[:, 0][rounded.isfinite()][error.argmax()]


@pytest.mark.parametrize("op", ["neg", "relu", "sin", "tanh", "expm1", "erf", "log1p"])
def test_the_sign_of_zero_stays(op: str) -> None:
    x = torch.tensor([0.0, -0.0]).expand(1, 1, 2)
    (got,) = run(of_inputs(lambda g, c, *args: g(op, args[0]), 1), [x])
    assert torch.equal(got.signbit(), ELEMENTWISE[op](x).signbit())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", FUSED)
def test_fused(op: str, dtype: torch.dtype) -> None:
    program = of_inputs(FUSED[op])
    inputs = operands(dtype, 3)
    (got,) = run(program, inputs)
    wide = [x.double() for x in inputs]
    want = evaluate(program, [wide[0]], wide, [], []).outputs[0]
    size = torch.stack([1 + x.nan_to_num(0, 0, 0).abs() for x in wide]).prod(0)
    size = size + want.abs()
    finite = want.isfinite()
    assert codes_of(program) == {op}
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[want.isinf()].double(), want[want.isinf()])
    assert ((got.double() - want).abs()[finite] <= 4 * torch.finfo(dtype).eps * size[finite]).all()


#: Nearly what one operation computes; these are two or three.
NEARLY: dict[str, Callable[[Graph, Any, int, int, int], int]] = {
    "square(x) - 1": lambda g, c, x, y, z: g("sub", g("square", x), c(1.0)),
    "(0.7 - square(x)) * y": lambda g, c, x, y, z: g("mul", y, g("sub", c(0.7), g("square", x))),
    "0.7 * x - y": lambda g, c, x, y, z: g("sub", g("mul", x, c(0.7)), y),
    "x + z * (x - y)": lambda g, c, x, y, z: g("add", x, g("mul", z, g("sub", x, y))),
    "(x - 0.7) * y": lambda g, c, x, y, z: g("mul", g("sub", x, c(0.7)), y),
}


@pytest.mark.parametrize("text", NEARLY)
def test_nearly_fused(text: str) -> None:
    torch.manual_seed(0)
    program = of_inputs(NEARLY[text])
    inputs = list(torch.randn(3, 1, 5, 7, dtype=torch.float64))
    (got,) = run(program, inputs)
    assert len(codes_of(program)) > 1
    torch.testing.assert_close(got, evaluate(program, [inputs[0]], inputs, [], []).outputs[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turned", [False, True], ids=["-x first", "x first"])
def test_both_sigmoids(turned: bool, dtype: torch.dtype) -> None:
    def build(g: Graph, c: Any, x: int, y: int, z: int) -> list[int]:
        pair = [x, g("neg", x)]
        return [g("sigmoid", a) for a in (pair if turned else pair[::-1])]

    program = of_inputs(build, 1)
    (x,) = operands(dtype, 1)
    assert codes_of(program) == {"sigmoid_both"}
    for got, a in zip(run(program, [x]), (x, -x) if turned else (-x, x), strict=True):
        want = torch.sigmoid(a.double())
        assert torch.equal(got.isnan(), want.isnan())
        assert ((got.double() - want).abs() <= 3 * ulp(want, dtype))[~want.isnan()].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ops", [("sin", "cos"), ("cos", "sin")], ids=" ".join)
def test_sine_and_cosine(ops: tuple[str, str], dtype: torch.dtype) -> None:
    program = of_inputs(lambda g, c, x, y, z: [g(op, x) for op in ops], 1)
    near = torch.linspace(-1e4, 1e4, 37 * 40, dtype=torch.float64).reshape(1, -1, 37).to(dtype)
    assert codes_of(program) == {"sin_cos"}
    for x in (near, *operands(dtype, 1)):
        for got, op in zip(run(program, [x]), ops, strict=True):
            want = ELEMENTWISE[op](x.double())
            assert torch.equal(got.isnan(), want.isnan())
            assert ((got.double() - want).abs() <= 3 * ulp(want, dtype))[~want.isnan()].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ops", [["sin"], ["cos"], ["sin", "cos"]], ids=" ".join)
def test_a_number_far_away_changes_no_other(ops: list[str], dtype: torch.dtype) -> None:
    program = of_inputs(lambda g, c, x, y, z: [g(op, x) for op in ops], 1)
    x = torch.linspace(-9, 9, 37, dtype=dtype).expand(1, 1, 37)
    far = x.index_fill(-1, torch.tensor([3]), 1e9)
    others = torch.arange(37) != 3
    for alone, beside in zip(run(program, [x]), run(program, [far]), strict=True):
        assert torch.equal(alone[..., others], beside[..., others])


def test_every_operation_is_tried() -> None:
    others = {"move", "sigmoid_both", "sin_cos", "product"}
    assert set(_cpu.operations()) == {*ELEMENTWISE, *FUSED, *SPREADS, *others}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", SPREADS)
def test_repeats_and_sums(op: str, dtype: torch.dtype) -> None:
    """Rows that are parts of a vector register and many, for several sequences at once."""
    back = (-1, -40) if op == "roll" else ()
    for n, narrow, seqs in itertools.product((2, 3, 16, 21, *back), (1, 5, 16, 19), (1, 3)):
        width = n * narrow if op.startswith("fold") else narrow
        graph = Graph()
        found = graph.spread(op, graph.leaf("input", 0), n)
        program = finish(graph, [["s"], ["x"], [], []], [found], [graph.leaf("state", 0)])
        x = torch.randn(seqs, 4, width, generator=torch.Generator().manual_seed(n + 40)).to(dtype)
        x[0, 1, 0] = math.nan
        want = SPREADS[op](x.double(), n)
        size = SPREADS[op](x.double().abs(), n)
        layout = Layout(None, None, 4, False, [0.0], dtype, [want.shape[-1]])
        leaves = Leaves([x.new_zeros(seqs, 7)], [x], [], [])
        (got,), _, _ = _cpu.forward(program, leaves, layout, False)
        assert codes_of(program) == {op}
        assert torch.equal(got.isnan(), want.isnan())
        error = ((got.double() - want).abs() / size).nan_to_num()
        assert error.max() <= (n if op.startswith("fold") else 0) * torch.finfo(dtype).eps


# ----------------------------------------------------------------------------------- the cells

MARKS = list(itertools.product((False, True), repeat=3))  # reset, packed, reverse


def drawn(name: str, batch: int, time: int, channels: int, marks: Any) -> Any:
    """Arguments, a state and options of a call."""
    cell, (resets, packed, reverse) = CELLS[name], marks
    batch = 1 if packed else batch
    cuts = [0, 0, time // 3, time // 3 + 1, time] if packed else None
    given, state = draw(cell, batch, time, channels, sequences=4 if packed else None)
    given = {n: x / (1 + channels / 8) if n in cell.matrices else x for n, x in given.items()}
    generator = torch.Generator().manual_seed(3)
    options = {
        "reset": torch.rand(batch, time, generator=generator) < 0.2 if resets else None,
        "cu_seqlens": None if cuts is None else torch.tensor(cuts),
        "reverse": reverse,
    }
    if not cell.inputs:
        options["time"] = time
        if packed:
            pytest.skip("a cell without inputs is not packed")
    if name == "slstm":
        state = (state[0], state[1].abs() + 1, state[2])
    return given, state, options


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.is_complex():
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    return x.detach().to(dtype).requires_grad_()


def computed(
    name: str,
    given: Any,
    state: Any,
    options: Any,
    dtype: torch.dtype,
    stored: torch.dtype,
    form: str,
) -> list[Tensor]:
    """Results and gradients of a call in some dtype, inputs stored in another."""
    cell = CELLS[name]
    given = {n: cast(x, stored if n in cell.inputs else dtype) for n, x in given.items()}
    state = tuple(cast(h, dtype) for h in state)
    found = cell_scan(cell, state=state, **given, **options, form=form)
    flat = [y for some in found for y in (some if isinstance(some, tuple) else (some,))]
    into = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in flat]
    sources = [*given.values(), *state]
    return [*flat, *torch.autograd.grad(flat, sources, into, materialize_grads=True)]


def errors(got: list[Tensor], want: list[Tensor]) -> list[float]:
    wide = torch.complex128
    return [
        float(
            (x.detach().to(wide) - y.detach().to(wide)).abs().max()
            / (y.detach().abs().max() + 1e-30)
        )
        if y.numel()
        else 0.0
        for x, y in zip(got, want, strict=True)
    ]


def check(name: str, sizes: tuple[int, int, int], marks: Any, stored: torch.dtype) -> None:
    """The machine against the float64 loop, as near as a loop in its own dtype."""
    given, state, options = drawn(name, *sizes, marks)
    dtype = torch.float64 if stored == torch.float64 else torch.float32
    rounded = {n: x.to(stored).to(x.dtype) if not x.is_complex() else x for n, x in given.items()}
    given = {n: rounded[n] if n in CELLS[name].inputs else x for n, x in given.items()}
    exact = computed(name, given, state, options, torch.float64, torch.float64, "loop")
    got = computed(name, given, state, options, dtype, stored, "native")
    if dtype == torch.float64:
        assert max(errors(got, exact)) <= 1e-12
        return
    same = computed(name, given, state, options, dtype, stored, "loop")
    floor = 4 * torch.finfo(stored).eps
    for ours, theirs in zip(errors(got, exact), errors(same, exact), strict=True):
        assert ours <= 3 * theirs + floor


@pytest.mark.parametrize(
    "marks", MARKS, ids=lambda m: "".join("rpb"[i] for i in range(3) if m[i]) or "-"
)
@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str, marks: Any) -> None:
    check(name, (3, 11, 20), marks, torch.float64)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_cells_in_float32(name: str, stored: torch.dtype) -> None:
    if stored != torch.float32 and CELLS[name].is_complex:
        pytest.skip("there are no complex numbers of half precision")
    check(name, (3, 40, 36), (True, False, False), stored)


@pytest.mark.parametrize("name", ["slstm", "unicornn", "heads", "oscillator"])
@pytest.mark.parametrize(
    "sizes",
    [(2, 1, 64), (1, 70, 256), (2, 35, 64), (2, 9, 300), (2, 9, 2), (150, 3, 6), (2, 37, 128)],
    ids=str,
)
def test_sizes(name: str, sizes: tuple[int, int, int]) -> None:
    """Whole and broken lines, chunks of time, several sequences at once, blocks of channels."""
    for marks in ((True, False, False), (False, False, True), (True, True, True)):
        if name != "oscillator" or not marks[1]:
            check(name, sizes, marks, torch.float64)


@pytest.mark.parametrize("name", ["mingru", "slstm", "unicornn"])
def test_one_channel(name: str) -> None:
    check(name, (2, 9, 1), (True, False, False), torch.float64)


@pytest.mark.parametrize("name", ["slstm", "unicornn", "gru", "oscillator"])
def test_no_step_leaves_the_state(name: str) -> None:
    given, state, options = drawn(name, 2, 0, 5, (False, False, False))
    _, last = cell_scan(CELLS[name], state=state, **given, **options)
    for got, want in zip(last if isinstance(last, tuple) else (last,), state, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["slstm", "unicornn", "gru", "heads"])
@pytest.mark.parametrize("sizes", [(1, 300, 512), (9, 300, 64), (5, 200, 48)], ids=str)
def test_threads_change_no_bit(name: str, sizes: tuple[int, int, int]) -> None:
    matrices = CELLS[name].matrices
    if matrices:
        sizes = (sizes[0], 60, 96)
    given, state, options = drawn(name, *sizes, (True, False, False))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            args = (name, given, state, options, torch.float32, torch.float32)
            found.append(computed(*args, "native"))
    finally:
        torch.set_num_threads(before)
    shapes = {tuple(given[m].shape) for m in matrices}  # their gradients are PyTorch's products
    for one, *others in zip(*found, strict=True):
        if tuple(one.shape) not in shapes:
            assert all(torch.equal(one, other) for other in others)


def test_strides_and_parameters_of_one_number() -> None:
    """Inputs that are parts of one tensor, in another order, or one number for all channels."""
    cell = CELLS["unicornn"]
    u = torch.randn(3, 40, 2, 64).transpose(0, 2)[1].transpose(0, 1)  # (3, 40, 64) somehow
    given = {"u": u, "w": torch.randn(64), "rate": torch.randn(1), "alpha": torch.tensor(0.3)}
    got, _ = cell_scan(cell, **given, form="native")
    want, _ = cell_scan(cell, **{n: x.double() for n, x in given.items()}, form="loop")
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


def test_states_that_change_places() -> None:
    """The next state of one is the state of the other, and an output is a state before the step."""
    swap = Cell(lambda a, b, c, x: (a + 0.0 * x, (b, a, x)), state="a b c", name="swap")
    x = torch.randn(2, 7, 20, dtype=torch.float64)
    state = tuple(torch.randn(2, 20, dtype=torch.float64) for _ in range(3))
    for form in ({}, {"reverse": True}):
        native = cell_scan(swap, x=x, state=state, form="native", **form)
        loop = cell_scan(swap, x=x, state=state, form="loop", **form)
        assert torch.equal(native[0], loop[0])
        assert all(map(torch.equal, native[1], loop[1]))


def test_an_output_that_needs_the_old_state_and_the_new() -> None:
    """Outputs computed after a chunk of steps read the state of each step."""

    def step(h: Any, x: Any) -> Any:
        new = torch.tanh(h + x)
        return h + torch.tanh(new), new

    cell, x = Cell(step, state="h"), torch.randn(2, 70, 5, dtype=torch.float64)
    for got, want in zip(
        cell_scan(cell, x=x, form="native"), cell_scan(cell, x=x, form="loop"), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
