"""Steps that are accepted, and how everything else is refused."""

import pytest
import torch
import torch.nn.functional as F
from literature import CELLS

from linrnn.cells import Cell, block_linear, cell, fold, spread
from linrnn.engine.graph import Graph, evaluate, finish, levels, parse
from linrnn.errors import ArgumentError, UnknownNameError

W = torch.ones(3, 3)


def decides(h, x):
    if h > 0:
        h = h + x
    return h, h


def sums(h, x):
    return h.sum(-1), h


def takes_apart(h, x):
    a, b = x.chunk(2, -1)
    return a * b, h


def indexes(h, x):
    return x[..., :2], h


def closes_over(h, x):
    h = h + F.linear(x, W)
    return h, h


def in_place(h, x):
    h += x
    return h, h


def in_place_method(h, x):
    h = h.add_(x)
    return h, h


def stops_gradients(h, x):
    with torch.no_grad():
        y = h + x
    return y, h


def detaches(h, x):
    return h.detach(), h


def draws(h, x):
    return F.dropout(x), h


def draws_noise(h, x):
    return h + torch.rand_like(x), h


def casts(h, x):
    return h, h.float()


def becomes_a_number(h, x):
    return x * float(h), h


def unknown(h, x):
    return torch.special.bessel_j0(x), h


def repeats(h, x):
    return h.repeat(1, 2), h


def spreads_to_none(h, x):
    return spread(x, 0), h


def rolls_the_batch(h, x):
    return torch.roll(x, 1), h


def shaped(h, x):
    return x * x.shape[-1], h


def stacked(h, x):
    return torch.stack([h, x]), h


REFUSED = {
    decides: ("if h > 0:", "a decision in Python on a value. Choose with torch.where"),
    sums: (r"return h.sum\(-1\), h", r"sum\(\). A sum of channels is linrnn.cells.fold"),
    takes_apart: ("a, b = x.chunk", r"chunk\(\). Every value is one number a channel"),
    indexes: (r"return x\[..., :2\], h", "an index into a value. Every value is one number"),
    closes_over: ("F.linear", "a product of other things than a value and a matrix. Declare"),
    in_place: (r"h \+= x", r"a value changed in place. Write x = x \+ y"),
    in_place_method: ("h.add_", r"add_\(\). Nothing is changed in place: write x = x.add"),
    stops_gradients: ("y = h", "an operation without gradients. Leave torch.no_grad away"),
    detaches: ("h.detach", r"detach\(\). Detach the argument before the scan"),
    draws: ("F.dropout", r"dropout\(\). Draw the random numbers before the scan"),
    draws_noise: ("rand_like", r"rand_like\(\). Draw the random numbers before the scan"),
    casts: ("h.float", r"float\(\). Leave it away: a scan computes in at least float32"),
    becomes_a_number: (r"float\(h\)", "a value made a Python number"),
    unknown: ("bessel_j0", r"bessel_j0\(\). Write it with the functions"),
    repeats: ("h.repeat", r"repeat\(\). Channels are repeated by linrnn.cells.spread"),
    spreads_to_none: (r"spread\(x, 0\)", r"spread\(\) of 0 parts. Give it an integer"),
    rolls_the_batch: (r"torch.roll\(x, 1\)", r"roll\(\) along None. The channels are the last"),
    shaped: ("x.shape", ".shape of a value. Every value is one number a channel"),
    stacked: ("torch.stack", r"stack\(\). Every value is one number a channel"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("step", REFUSED, ids=lambda step: step.__name__)
def test_a_refusal_names_the_line_and_the_way_out(step):
    source, text = REFUSED[step]
    where = rf"^cell {step.__name__}, test_trace.py:\d+ \(`.*{source}.*`\): a step must be "
    with pytest.raises(ArgumentError, match=where + rf".* got .*{text}"):
        Cell(step, state="h")


@pytest.mark.unchecked
def test_a_wrong_declaration_is_refused():
    def good(h, x):
        return h + x, h

    with pytest.raises(UnknownNameError, match="no cell good argument named 'g'"):
        Cell(good, state="g")
    with pytest.raises(ArgumentError, match=r"each argument must be one of .*, got h"):
        Cell(good, state="h", constant="h")
    with pytest.raises(ArgumentError, match="one a state, got no state"):
        Cell(good, state="")
    with pytest.raises(ArgumentError, match=r"must return 2 next states, .* got 1"):
        Cell(good, state="h x")
    with pytest.raises(ArgumentError, match=r"must return \(output, next state\), got Value"):
        Cell(lambda h, x: h + x, state="h")
    with pytest.raises(ArgumentError, match="plain ones without a default, got x=1"):
        Cell(lambda h, x=1: (h, h), state="h")
    with pytest.raises(ArgumentError, match="the state h must stay real, got a complex one"):
        Cell(lambda h, x: (h, h * x), state="h", complex="x")
    with pytest.raises(ArgumentError, match="start must be a number for each state, got '1'"):
        Cell(good, state="h", start={"h": "1"})
    with pytest.raises(ArgumentError, match="must not be named like an option of a scan, got time"):
        Cell(lambda h, time: (h, h * time), state="h")


def test_a_cell_is_still_its_function():
    @cell(state="h", constant="rate")
    def leak(h, x, rate):
        """Leak."""
        h = h + rate * (x - h)
        return h, h

    assert (leak.name, leak.inputs, leak.__doc__) == ("leak", ("x",), "Leak.")
    y, _ = leak(torch.zeros(2), torch.ones(2), rate=torch.tensor(0.5))
    assert y.tolist() == [0.5, 0.5]


def test_equal_expressions_are_one_node_and_constants_are_folded():
    g = Graph()
    x, one = g.leaf("input", 0), g.constant(1)
    assert g("add", x, g("mul", one, x)) == g("add", g("mul", x, one), x)
    assert g("sub", one, g("sigmoid", x)) == g("sigmoid", g("neg", x))
    assert g.value(g("exp", g("sub", one, one))) == 1.0
    assert g("neg", g("neg", x)) == x == g("sub", x, g.constant(0))
    assert g("add", x, g("neg", one)) == g("sub", x, one) or g.value(g("neg", one)) == -1
    assert g("mul", x, x) == g("square", x)
    # not a zero: x may be infinite
    assert g.value(g("mul", x, g.constant(0))) is None


def test_levels_say_when_a_node_can_be_computed():
    def step(h, x, w):
        h = h + torch.exp(w) * torch.tanh(x)
        return torch.sin(h), h

    program = Cell(step, state="h", constant="w").program
    by_op = {n.op: level for n, level in zip(program.nodes, levels(program), strict=True)}
    assert by_op == {
        **{"parameter": 0, "exp": 0, "input": 1, "tanh": 1, "mul": 1},
        **{"state": 2, "add": 2, "sin": 3},
    }


def test_text_holds_every_constant_exactly():
    g = Graph()
    x = g.leaf("state", 0)
    for value in (0.1, -0.0, 1e300, float("inf"), float("-inf"), float("nan"), 3):
        x = g("add", x, g("mul", x, g.constant(value)))
    program = finish(g, [["h"], [], [], []], [x], [x])
    assert parse(program.text()).text() == program.text()
    assert repr(parse(program.text())) == repr(program)


def test_block_linear_is_a_matrix_of_blocks():
    x, weight = torch.randn(5, 6), torch.randn(2, 4, 3)
    torch.testing.assert_close(block_linear(x, weight), F.linear(x, torch.block_diag(*weight)))


@pytest.mark.parametrize("each", [False, True])
def test_a_fold_is_the_transpose_of_a_spread(each):
    x, n = torch.randn(2, 3, dtype=torch.float64, requires_grad=True), 4
    wide = spread(x, n, each=each)
    assert torch.equal(wide, x.repeat_interleave(n, -1) if each else x.repeat(1, n))
    weight = torch.randn_like(wide)
    (grad,) = torch.autograd.grad(wide, x, weight)
    torch.testing.assert_close(fold(weight, n, each=each), grad)


def test_spreads_of_one_part_and_of_numbers_are_none():
    numbers = lambda h: fold(h * 0 + 2, 1) + torch.roll(torch.ones_like(h), 3, -1)  # noqa: E731
    program = Cell(
        lambda h, x: (fold(spread(torch.roll(x, 0, -1), 1), 1) + numbers(h), h), state="h"
    ).program
    assert not program.mixes


def test_unused_arguments_keep_their_place():
    program = Cell(lambda h, u, x: (h + x, h), state="h").program
    assert program.inputs == ("u", "x")
    h, x = torch.ones(2), torch.full((2,), 3.0)
    assert evaluate(program, [h], [h, x], [], []).outputs[0].tolist() == [4.0, 4.0]


def test_programs_are_short():
    assert max(len(cell.text) for cell in CELLS.values()) < 1000
