"""The native machine on cells of several widths: matrices that are not square, in blocks or not."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell, block_linear, fold, spread
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _cpu

pytestmark = pytest.mark.skipif(
    _cpu.unavailable(torch.device("cpu"), torch.float32) is not None,
    reason="the native kernels are not installed, or not these",
)


def _projected(h: Any, c: Any, x: Any, W: Any, R: Any, P: Any) -> Any:
    c = torch.tanh(F.linear(h, R) + F.linear(x, W) + 0.5 * c)
    h = F.linear(c, P)
    return h * h, (h, c)


def _wide(h: Any, x: Any, W: Any) -> Any:
    return F.linear(h, W), torch.tanh(h + x)


def _heads(h: Any, k: Any, u: Any, W: Any, V: Any, s: Any) -> Any:
    hidden = torch.tanh(block_linear(h, W) + s + k)
    return (block_linear(hidden, V), hidden), torch.tanh(h * u)


def _pairs(h: Any, x: Any, w: Any, s: Any) -> Any:
    read = fold(w * spread(x, 6, each=True), 4)  # (4, 6) pairs
    synapses = torch.sigmoid(s * spread(h, 6, each=True) - spread(h, 6))
    h = torch.tanh(read + fold(synapses, 6) - fold(synapses * synapses, 6, each=True))
    return (h, synapses, fold(h, 2)), h


def _unseen(h: Any, x: Any, W: Any) -> Any:
    """Widths that no argument has, next to a matrix."""
    wide = spread(torch.tanh(F.linear(h, W) + x), 5)
    return fold(wide * wide, 5, each=True), 0.5 * h + fold(torch.sin(wide), 15)


def _mapped_twice(h: Any, x: Any, W: Any, R: Any, P: Any) -> Any:
    """The first value that is kept for the gradient is as wide as no argument before it."""
    h = torch.tanh(F.linear(h, R) + x)
    return F.linear(torch.tanh(F.linear(x, W)), P), h


#: A cell, the widths of its inputs, and the shapes of its constants and matrices.
CASES: dict[str, tuple[Cell, dict[str, int], dict[str, tuple[int, ...]]]] = {
    "projected": (
        Cell(_projected, state="h c", matrix="W R P"),
        {"x": 7},
        {"W": (24, 7), "R": (24, 5), "P": (5, 24)},
    ),
    "mapped twice": (
        Cell(_mapped_twice, state="h", matrix="W R P"),
        {"x": 7},
        {"W": (5, 7), "R": (7, 7), "P": (4, 5)},
    ),
    "large": (
        Cell(_projected, state="h c", matrix="W R P"),
        {"x": 64},
        {"W": (96, 64), "R": (96, 32), "P": (32, 96)},
    ),
    "wide output": (Cell(_wide, state="h", matrix="W"), {"x": 8}, {"W": (3, 8)}),
    "pairs": (
        Cell(_pairs, state="h", constant="w s"),
        {"x": 4},
        {"w": (24,), "s": (36,)},
    ),
    "unseen": (Cell(_unseen, state="h", matrix="W"), {"x": 3}, {"W": (3, 1)}),
    "heads": (
        Cell(_heads, state="h", constant="s", matrix="W V"),
        {"k": 20, "u": 12},
        {"W": (2, 10, 6), "V": (4, 3, 5), "s": (20,)},
    ),
}


def arguments(name: str, batch: int, time: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    _, inputs, rest = CASES[name]
    given = {n: torch.randn(batch, time, width) for n, width in inputs.items()}
    return given | {n: torch.randn(shape) / shape[-1] ** 0.5 for n, shape in rest.items()}


def results(
    name: str, given: dict[str, Tensor], dtype: torch.dtype, **options: Any
) -> list[Tensor]:
    given = {n: x.to(dtype).requires_grad_() for n, x in given.items()}
    found = cell_scan(CASES[name][0], **given, **options)
    flat = [y for some in found for y in (some if isinstance(some, tuple) else (some,))]
    into = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in flat]
    grads = torch.autograd.grad(flat, list(given.values()), into, materialize_grads=True)
    return [x.detach() for x in (*flat, *grads)]


@pytest.mark.parametrize("checkpoint", [None, 6])
@pytest.mark.parametrize("marks", ["-", "reset", "reverse", "packed"])
@pytest.mark.parametrize("batch", [1, 3, 9])
@pytest.mark.parametrize("name", CASES)
def test_as_the_loop(name: str, batch: int, marks: str, checkpoint: int | None) -> None:
    given = arguments(name, 1 if marks == "packed" else batch, 21)
    options: dict[str, Any] = {"reverse": marks == "reverse"}
    if marks == "reset":
        options["reset"] = torch.rand(batch, 21) < 0.2
    if marks == "packed":
        options["cu_seqlens"] = torch.tensor([0, 2, 2, 13, 21])
    want = results(name, given, torch.float64, form="loop", **options)
    more = {"form": "native", "checkpoint": checkpoint}
    got = results(name, given, torch.float64, **more, **options)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_few_steps_and_half_precision(name: str) -> None:
    given = arguments(name, 1, 3)
    want = results(name, given, torch.float64, form="loop")
    for x, y in zip(results(name, given, torch.float32, form="native"), want, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5)
    inputs = CASES[name][1]
    low = {n: x.bfloat16() if n in inputs else x for n, x in given.items()}
    (y, *_), (loop, *_) = (
        torch.utils._pytree.tree_leaves(cell_scan(CASES[name][0], **low, form=form)[0])
        for form in ("native", "loop")
    )
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), loop.float(), rtol=0.02, atol=0.02)


def _rolled(h: Any, x: Any, b: Any, W: Any) -> Any:
    """A matrix that is declared and not used, beside a roll of a constant."""
    return torch.maximum(torch.roll(h, 1, -1), torch.roll(b, 1, -1)), torch.tanh(x + h)


def _constant_alone(h: Any, x: Any, b: Any) -> Any:
    """An output that is known before the first step."""
    return torch.tanh(b), torch.tanh(h + x)


def _decided(h: Any, x: Any, b: Any) -> Any:
    """The gradient passes no roll, but the states that are computed once more do."""
    return x * b, torch.sign(torch.roll(h, 1, -1) + x)


def _decided_by_product(h: Any, x: Any, b: Any, W: Any) -> Any:
    return x * h * b, torch.sign(F.linear(h, W) + x)


def _number(h: Any, x: Any, b: Any, W: Any) -> Any:
    """A next state that is a number, beside a matrix that is not used."""
    return torch.sin(h) * b, 0.0


def _one_matrix_twice(h: Any, x: Any, b: Any, W: Any) -> Any:
    """Results that meet nothing but the same matrix."""
    return (F.linear(x, W), F.linear(torch.tanh(b), W)), torch.tanh(h)


def _rows_summed(h: Any, x: Any, b: Any, W: Any) -> Any:
    return F.linear(torch.ones_like(h), W) + x, torch.tanh(h + b)


def _two_groups(h: Any, x: Any, b: Any) -> Any:
    """No gradient passes between values of two widths."""
    return torch.floor(spread(x, 3)), torch.tanh(h + b)


HOSTILE = [_rolled, _constant_alone, _decided, _decided_by_product, _number, _one_matrix_twice]
HOSTILE += [_rows_summed, _two_groups]


@pytest.mark.parametrize("width", [5, 16, 64])
@pytest.mark.parametrize("step", HOSTILE, ids=lambda step: step.__name__[1:])
def test_what_nobody_writes(step: Any, width: int) -> None:
    names = step.__code__.co_varnames[: step.__code__.co_argcount]
    cell = Cell(step, state="h", constant="b", matrix="W" if "W" in names else "")
    torch.manual_seed(0)
    given = {"x": torch.randn(2, 21, width), "b": torch.randn(width)}
    given |= {"W": torch.randn(width, width) / width**0.5} if "W" in names else {}
    given = {n: x.double().requires_grad_() for n, x in given.items()}
    state = torch.randn(2, width, dtype=torch.float64).requires_grad_()
    sources = [*given.values(), state]

    def results(**options: Any) -> list[Tensor]:
        found = cell_scan(cell, state=state, **given, **options)
        flat = [y for some in found for y in (some if isinstance(some, tuple) else (some,))]
        into = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in flat]
        pairs = [pair for pair in zip(flat, into, strict=True) if pair[0].requires_grad]
        ys, weights = zip(*pairs, strict=True)
        grads = torch.autograd.grad(ys, sources, weights, materialize_grads=True)
        return [*flat, *grads]

    want = results(form="loop")
    for options in ({}, {"checkpoint": 1}, {"checkpoint": 6}, {"form": "newton"}):
        for x, y in zip(results(**options), want, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("form", ["native", "loop", "newton"])
def test_offsets_of_32_bits(form: str) -> None:
    """The copy that the kernels read lives as long as the call."""
    cell = Cell(lambda h, x: (torch.tanh(h + x),) * 2, state="h")
    x = torch.randn(1, 40, 16, dtype=torch.float64, requires_grad=True)
    found = []
    for dtype in (torch.int64, torch.int32):
        offsets = torch.tensor([0, 3, 3, 17, 40], dtype=dtype)
        for checkpoint in (None, 4):
            y, last = cell_scan(cell, x=x, cu_seqlens=offsets, form=form, checkpoint=checkpoint)
            found.append((y, last, *torch.autograd.grad(y.sum() + last.sum(), x)))
    for some in found:
        for a, b in zip(some, found[0], strict=True):
            torch.testing.assert_close(a, b)


def test_newton_solves_states_of_several_widths() -> None:
    for name in ("projected", "heads", "pairs"):
        given = arguments(name, 2, 9)
        want = results(name, given, torch.float64, form="loop")
        for x, y in zip(results(name, given, torch.float64, form="newton"), want, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("form", ["native", "loop"])
def test_a_complex_state_that_becomes_a_number_keeps_its_precision(form: str) -> None:
    def step(z: Any, h: Any, x: Any) -> Any:
        return torch.tanh(x + h), (0.5, torch.tanh(x) + z.real)

    x = torch.randn(2, 9, 4, dtype=torch.float64)
    y, (z, h) = cell_scan(Cell(step, state="z h", complex="z"), x=x, form=form)
    assert (z.dtype, h.dtype) == (torch.complex128, torch.float64)
    before = torch.tanh(x[:, :-1]) + torch.tensor([0.0] + [0.5] * 7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(y[:, 1:], torch.tanh(x[:, 1:] + before), rtol=1e-14, atol=1e-14)


def test_a_complex_state_made_of_a_real_one_is_as_wide() -> None:
    cell = Cell(lambda z, x: (x, spread(x, 2)), state="z", complex="z")
    x = torch.randn(2, 5, 3)
    for form in ("native", "loop"):
        _, z = cell_scan(cell, x=x, form=form)
        torch.testing.assert_close(z, spread(x[:, -1], 2).to(torch.complex64))


def test_a_state_of_which_nothing_is_said_has_one_channel() -> None:
    cell = Cell(lambda h, x: (spread(h, 2) + 0.0 * fold(x, 4), 0.5), state="h")
    for form in ("native", "loop"):
        y, h = cell_scan(cell, x=torch.ones(2, 5, 8), form=form)
        assert (y.shape, h.shape) == ((2, 5, 2), (2, 1))
    cell = Cell(lambda h, x: (spread(h, 2), 0.5), state="h")
    for form in ("native", "loop"):
        assert cell_scan(cell, x=torch.ones(2, 5, 8), form=form)[0].shape == (2, 5, 2)
