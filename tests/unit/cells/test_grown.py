"""Cells that nobody wrote: graphs grown at random, every form of each against its function."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from literature import draw
from test_adjoint import check as check_adjoint
from test_adjoint import leaves
from test_cell_scan import by_steps, gradients, scanned

from linrnn.cells import Cell, fold, spread
from linrnn.errors import BackendError

ONE = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "relu": torch.relu,
    "gelu": F.gelu,
    "sin": torch.sin,
    "abs": torch.abs,
    "exp": lambda x: torch.exp(torch.tanh(x)),
    "expm1": lambda x: torch.expm1(-torch.abs(x)),
    "log": lambda x: torch.log1p(x * x),
    "sqrt": lambda x: torch.sqrt(1 + x * x),
    "half": lambda x: 0.5 * x - 0.25,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "pairs": lambda x: fold(torch.tanh(spread(x, 2) - spread(x, 2, each=True)), 2, each=True),
    "sums": lambda x: fold(torch.sin(spread(x, 3, each=True)) * spread(x, 3), 3),
    "roll": lambda x: torch.roll(x, 1, -1),
    "number": lambda x: torch.full_like(x, 0.5),
    "matrix": None,
}
TWO = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda x, y: x / (1 + torch.abs(y)),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda x, y: torch.where(x > 2 * y, x, y),
    "gate": lambda x, y: x + torch.sigmoid(y) * (y - x),
}
LEAVES = 5  # two states, two inputs, a constant


@st.composite
def cells(draw_one):
    """A cell of up to ten operations, its states kept small."""
    count = draw_one(st.integers(1, 10))
    recipe = []
    for i in range(count):
        op = draw_one(st.sampled_from([*ONE, *TWO]))
        places = st.integers(0, LEAVES + i - 1)
        recipe.append((op, *(draw_one(places) for _ in range(1 + (op in TWO)))))
    last = st.integers(0, LEAVES + count - 1)
    out, first, second = (draw_one(last) for _ in range(3))
    linear = draw_one(st.booleans())

    def step(h, g, x, y, p, W):
        values = [h, g, x, y, p]
        for op, *places in recipe:
            given = [values[i] for i in places]
            values.append(F.linear(given[0], W) if op == "matrix" else (ONE | TWO)[op](*given))
        if linear:  # in its first state, and perhaps in both
            return values[out] + h, (0.5 * h + x, 0.25 * g + torch.tanh(h) * y + p)
        return values[out], (torch.tanh(values[first]), torch.sigmoid(values[second]))

    return Cell(step, state="h g", constant="p", matrix="W", name=f"grown {recipe}")


@settings(max_examples=30)
@given(cells())
def test_gradients_of_a_step(cell):
    arguments, state = draw(cell, time=1, channels=3)
    arguments = {n: x[:, 0] if n in cell.inputs else x for n, x in arguments.items()}
    check_adjoint(cell, leaves(cell, arguments, state))


@settings(max_examples=15)
@given(cells(), st.booleans())
def test_every_form_is_its_steps(cell, reverse):
    check_forms(cell, reverse)


def _number(h):
    return torch.full_like(h, 0.5)


NUMBERS = {
    "output": lambda h, g, x, W: (_number(x), (torch.tanh(F.linear(h, W)), g + x)),
    "state": lambda h, g, x, W: (F.linear(h, W) + g, (x, _number(g))),
    "all": lambda h, g, x, W: (_number(h), (_number(h), _number(F.linear(g, W)))),
    "of a part": lambda h, g, x, W: (_number(h), (fold(x * spread(h, 2), 2), _number(g))),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_result_that_is_a_number_is_as_wide_as_a_state(name):
    check_forms(Cell(NUMBERS[name], state="h g", matrix="W", name=name), False)


def check_forms(cell, reverse):
    arguments, state = draw(cell, time=5, channels=3)
    if cell.name == "of a part":
        arguments["x"] = arguments["x"].repeat(1, 1, 2)
    reset = torch.tensor([[False, False, True, False, False], [False] * 5])
    sources = [x.requires_grad_() for x in (*arguments.values(), *state)]
    want = gradients(by_steps(cell, arguments, state, reset, None, reverse), sources)
    for form in (None, "loop", "newton") + (("scan",) if cell.affine() is None else ()):
        try:
            found = scanned(cell, arguments, state, reset=reset, reverse=reverse, form=form)
        except BackendError:
            assert form == "newton"
            continue
        for kind, true in zip(gradients(found, sources), want, strict=True):
            for x, y in zip(kind, true, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
