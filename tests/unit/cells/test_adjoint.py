"""The derivative on the graph against autograd of the function."""

import math

import pytest
import torch
import torch.nn.functional as F
from literature import CELLS, draw

from linrnn.cells import Cell
from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import evaluate, parse

KINDS = ("states", "inputs", "constants", "matrices")


def leaves(cell, given, state):
    """The leaves of the program, kind by kind."""
    tensors = [state, *([given[x] for x in getattr(cell, kind)] for kind in KINDS[1:])]
    return [
        [x.detach().clone().requires_grad_() for x in cell.parts(kind, some)]
        for kind, some in enumerate(tensors)
    ]


def by_graph(program, parts, into):
    """Gradients of all leaves by the adjoint program, for rows of one step."""
    states, inputs, constants, matrices = ([x.detach() for x in some] for some in parts)
    n = len(program.outputs)
    back = parse(adjoint(program).text())
    found = evaluate(back, into[n:], [*inputs, *states, *into[:n]], constants, matrices)
    like = torch.zeros_like(states[0])
    sums = {i: (x + like).sum(0) for i, x in found.sums}
    products = [torch.zeros_like(x) for x in matrices]
    for i, left, right in found.products:
        heads = products[i].shape[0] if products[i].ndim == 3 else 1
        # a vector of constants alone is the same in every row
        sides = (x.expand(like.shape[0], x.shape[-1]) for x in (left, right))
        split = (x.unflatten(-1, (heads, -1)) for x in sides)
        product = torch.einsum("bhm,bhn->hmn", *split)
        products[i] = products[i] + product.view(products[i].shape)
    return [
        *(x + like for x in found.next_states),
        *(x + like for x in found.outputs),
        *(sums.get(i, torch.zeros_like(x)) for i, x in enumerate(constants)),
        *products,
    ]


def check(cell, parts):
    outputs, after = cell.by_parts(*parts)
    like = parts[0][0]  # what depends on constants alone is the same in every row
    results = [x.expand_as(like) for x in (*outputs, *after)]
    graph = evaluate(cell.program, *parts)
    for got, want in zip([*graph.outputs, *graph.next_states], results, strict=True):
        torch.testing.assert_close(
            got.expand_as(want), want, rtol=1e-13, atol=1e-13, equal_nan=True
        )
    into = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape) + 0.1 for x in results]
    flat = [x for some in parts for x in some]
    want = torch.autograd.grad(results, flat, into, materialize_grads=True)
    got = by_graph(cell.program, parts, into)
    for x, true in zip(got, want, strict=True):
        torch.testing.assert_close(x, true, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_a_step_are_those_of_autograd(name):
    given, state = draw(CELLS[name], time=1)
    given = {n: x[:, 0] if n in CELLS[name].inputs else x for n, x in given.items()}
    check(CELLS[name], leaves(CELLS[name], given, state))


@pytest.mark.parametrize("name", CELLS)
def test_the_text_of_a_program_is_all_of_it(name):
    program = CELLS[name].program
    assert parse(program.text()) == program
    assert parse(adjoint(program).text()) == adjoint(program)


EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 20.0, 25.0, -40.0, 1e-9, 3.0, 600.0, math.nan]
POSITIVE = [0.5, 1.0, 1e-9, 3.0, 40.0]
FUNCTIONS = {
    "abs": torch.abs,
    "clamp": lambda x: torch.clamp(x, -1, 1),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "hardtanh": F.hardtanh,
    "maximum": lambda x: torch.maximum(x, torch.tensor(1.0)),
    "minimum": lambda x: torch.minimum(x * x, x),
    "relu": torch.relu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "softsign": F.softsign,
    "softplus": F.softplus,
    "sharp softplus": lambda x: F.softplus(x, 2.0, 10.0),
    "logsigmoid": F.logsigmoid,
    "sigmoid": lambda x: 1 - torch.sigmoid(x),
    "tanh": torch.tanh,
    "expm1": lambda x: torch.expm1(x / 10),
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "choice": lambda x: torch.where((x >= 1) & ~(x > 19) | (x < -1), x * x, -x),
    "choice of nothing": lambda x: torch.where(x.isnan(), 0.0, x),
    "powers": lambda x: x**3 + (x + 30) ** -2 + 2.0 / (x + 31),
    "lerp": lambda x: torch.lerp(x, 2 * x, 0.25),
    "rest": lambda x: torch.addcmul(x, x, x, value=2.0) - torch.rsub(x, 3, alpha=1).neg(),
    "logaddexp": lambda x: torch.logaddexp(x, -x + 2),
    "sign": lambda x: x * torch.sign(x + 0.25),
}
POSITIVE_FUNCTIONS = {
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "root": lambda x: x**0.5,
    "reciprocal": torch.reciprocal,
}


def one(function):
    def step(h, x):
        y = function(x) + 0 * h
        return y, h

    return Cell(step, state="h")


@pytest.mark.parametrize("name", [*FUNCTIONS, *POSITIVE_FUNCTIONS])
def test_functions_at_their_edges(name):
    function = FUNCTIONS.get(name) or POSITIVE_FUNCTIONS[name]
    values = EDGES if name in FUNCTIONS else POSITIVE
    x = torch.tensor(values, dtype=torch.float64)[None].requires_grad_()
    check(one(function), [[torch.zeros_like(x).requires_grad_()], [x], [], []])


def test_a_choice_keeps_nan_of_what_is_not_chosen_out():
    def step(h, x):
        return torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), x), h

    x = torch.tensor([[-1.0, 0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    check(Cell(step, state="h"), [[torch.zeros_like(x).requires_grad_()], [x], [], []])
