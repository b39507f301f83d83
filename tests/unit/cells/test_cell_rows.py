"""Every operation of cells and recorded steps, row by row: words, PyTorch, derivative, C++, Triton.

What kernels compute is compared with the rows in ``ops/test_cell_machine.py`` and
``ops/test_cell_triton.py``.
"""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch

from linrnn.engine import graph as _graph
from linrnn.engine import operations
from linrnn.engine.derivatives import backward
from linrnn.engine.graph import ELEMENTWISE, Graph, finish

NATIVE = Path(__file__).parents[3] / "src" / "native" / "machine_args.h"
NUMBERS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 25.0, -25.0, math.inf, -math.inf, math.nan]
#: Where PyTorch's own derivative is NaN or depends on a call it makes, and what ours is.
OURS = {"atan2": "0 at the origin", "pow": "0 by the exponent where the base is 0"}

each_row = pytest.mark.parametrize("op", sorted(ELEMENTWISE))


def arity(op):
    """How many arguments an operation has: those that a format for Triton or PyTorch names."""
    if ELEMENTWISE[op].triton is None:
        return 2
    return max(ELEMENTWISE[op].triton.count("{}"), 1)


def corners(n):
    """All combinations of `NUMBERS` as n vectors."""
    grid = torch.meshgrid(*[torch.tensor(NUMBERS, dtype=torch.float64)] * n, indexing="ij")
    return [x.flatten() for x in grid]


@each_row
def test_the_table_in_words_has_the_operation(op):
    words = re.split(r"=+ =+\n", inspect.getdoc(_graph))[1:3]
    assert op in re.findall(r"\w+", " ".join(line[:22] for line in "".join(words).splitlines()))


@each_row
def test_the_machine_has_the_operation(op):
    assert re.search(rf"X\({op}, ", NATIVE.read_text())


@each_row
def test_triton_has_the_functions_of_a_row(op):
    text = ELEMENTWISE[op].triton
    source = (
        Path(operations.__file__).parents[1] / "ops/cell/cell_scan/triton_functions.py"
    ).read_text()
    for name in re.findall(r"(?<![.\w])([a-z]\w*)\(", text or ""):
        assert f"def {name}(" in source


@each_row
def test_the_order_of_arguments_matters_where_a_row_says_so(op):
    if arity(op) != 2:
        assert not ELEMENTWISE[op].symmetric
        return
    a, b = corners(2)
    same = torch.equal(
        ELEMENTWISE[op](a, b).nan_to_num(nan=7.0), ELEMENTWISE[op](b, a).nan_to_num(nan=7.0)
    )
    assert same == ELEMENTWISE[op].symmetric


@each_row
def test_the_derivative_is_that_of_pytorch_at_all_corners(op):
    n, row = arity(op), ELEMENTWISE[op]
    args = [x.requires_grad_() for x in corners(n)]
    graph = Graph()
    leaves = [graph.leaf("input", i) for i in range(n)]
    names = [f"x{i}" for i in range(n)]
    forward = finish(graph, ((), names, (), ()), (graph(op, *leaves),), ())
    graph = Graph(forward.nodes)
    gradient = {forward.outputs[0]: graph.constant(1.0)}
    backward(graph, forward, gradient)
    places = forward.leaves["input"]
    zero = graph.constant(0.0)
    results = [gradient.get(places[i], zero) if i in places else zero for i in range(n)]
    slope = finish(graph, ((), names, (), ()), results, ())
    got = _graph.evaluate(slope, (), [x.detach() for x in args], (), ()).outputs
    y = row(*args)
    if row.jumps and op != "fmod":
        assert all(not x.any() for x in got)
        return
    want = torch.autograd.grad(y.sum(), args, allow_unused=True)
    for mine, its in zip(got, want, strict=True):
        mine = mine.expand(args[0].shape)
        its = torch.zeros_like(mine) if its is None else its
        if op in OURS:  # PyTorch's is NaN there
            mine, its = mine[~its.isnan()], its[~its.isnan()]
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-15, equal_nan=True)
