"""The native machine that runs cells: its operations, then whole cells against a loop."""

import inspect
import itertools
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells._graph import ELEMENTWISE, Graph, Program, evaluate, finish
from linrnn.cells._trace import Names, block_linear, trace
from linrnn.ops import _native
from linrnn.ops.cell_scan import _cpu
from linrnn.ops.cell_scan._problem import Layout, Leaves

pytestmark = pytest.mark.skipif(
    _native.load()[0] is None, reason="the native kernels are not installed"
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
    first = 56 + 24 * slots + 16 * matrices
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", sorted(ELEMENTWISE))
def test_elementwise(op: str, dtype: torch.dtype) -> None:
    arity = (
        3
        if op == "where"
        else 2
        if op in {*"add sub mul div maximum minimum lt le eq ne".split()}
        else 1
    )
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
    finite = want.isfinite()
    assert codes_of(program) == {op}
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[want.isinf()].double(), want[want.isinf()])
    assert ((got.double() - want).abs()[finite] <= 4 * torch.finfo(dtype).eps * size[finite]).all()


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


def test_every_operation_is_tried() -> None:
    others = {"move", "sigmoid_both", "sin_cos", "product"}
    assert set(_cpu.operations()) == {*ELEMENTWISE, *FUSED, *others}
