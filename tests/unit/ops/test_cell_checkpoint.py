"""`cell_scan(checkpoint=k)`: states computed again instead of kept, and nothing else changed."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from linrnn.cells import Cell, block_linear, spread
from linrnn.errors import ArgumentError
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _cpu

sys.path.append(str(Path(__file__).parents[1] / "cells"))
sys.path.append(str(Path(__file__).parent))
from literature import CELLS
from test_cell_machine import MARKS, cast, drawn

pytestmark = pytest.mark.skipif(
    _cpu.unavailable(torch.device("cpu"), torch.float32) is not None,
    reason="the native kernels are not installed, or not these",
)


def results(name: str, drawn: Any, stored: torch.dtype, **options: Any) -> list[Tensor]:
    """Outputs, final states and gradients."""
    cell, (given, state, marks) = CELLS[name], drawn
    dtype = torch.float64 if stored == torch.float64 else torch.float32
    given = {n: cast(x, stored if n in cell.inputs else dtype) for n, x in given.items()}
    state = tuple(cast(h, dtype) for h in state)
    found = cell_scan(cell, state=state, **given, **marks, **options)
    flat = [y for some in found for y in (some if isinstance(some, tuple) else (some,))]
    into = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in flat]
    grads = torch.autograd.grad(flat, [*given.values(), *state], into, materialize_grads=True)
    return [x.detach() for x in (*flat, *grads)]


def same(got: list[Tensor], want: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "marks", MARKS, ids=lambda m: "".join("rpb"[i] for i in range(3) if m[i]) or "-"
)
@pytest.mark.parametrize("name", CELLS)
def test_no_bit_changes(name: str, marks: Any) -> None:
    some = drawn(name, 3, 41, 20, marks)
    want = results(name, some, torch.float32, form="native")
    for k in (1, 7, 16, 2**62):
        assert same(results(name, some, torch.float32, form="native", checkpoint=k), want), k


@pytest.mark.parametrize("stored", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["slstm", "gru", "heads"])
def test_other_dtypes(name: str, stored: torch.dtype) -> None:
    some = drawn(name, 2, 41, 36, (True, False, False))
    want = results(name, some, stored, form="native")
    assert same(results(name, some, stored, form="native", checkpoint=6), want)


@pytest.mark.parametrize("sizes", [(40, 23, 16), (1, 300, 256), (2, 90, 300), (1, 33, 1)], ids=str)
@pytest.mark.parametrize("name", ["slstm", "unicornn"])
def test_sizes(name: str, sizes: tuple[int, int, int]) -> None:
    """Several sequences at once, chunks of steps, blocks of channels, one channel."""
    for marks in ((False, False, False), (True, True, True)):
        some = drawn(name, *sizes, marks)
        want = results(name, some, torch.float32, form="native")
        assert same(results(name, some, torch.float32, form="native", checkpoint=9), want)


@pytest.mark.parametrize("name", ["slstm", "gru"])
def test_threads_change_no_bit(name: str) -> None:
    sizes = (1, 300, 512) if name == "slstm" else (9, 60, 96)
    some, before, found = drawn(name, *sizes, (True, False, False)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(name, some, torch.float64, form="native", checkpoint=8))
    finally:
        torch.set_num_threads(before)
    count = len(found[0]) if name == "slstm" else 2  # gradients of matrices are PyTorch's
    assert all(same(x[:count], found[0][:count]) for x in found[1:])


def kept(name: str, checkpoint: int | None, packed: bool) -> int:
    """Numbers that a call keeps beside its arguments."""
    given, state, marks = drawn(name, 2, 64, 32, (False, packed, False))
    given = {n: x.float().requires_grad_() for n, x in given.items()}
    state = tuple(h.float() for h in state)
    ours = {x.data_ptr() for x in (*given.values(), *state)}
    found = {}

    def note(x: Tensor) -> Tensor:
        if x.is_floating_point() and x.data_ptr() not in ours:
            found[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        cell_scan(CELLS[name], state=state, **given, **marks, form="native", checkpoint=checkpoint)
    return sum(found.values())


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize(("name", "states", "all_kept"), [("slstm", 3, 3), ("gru", 1, 2)])
def test_a_kth_of_the_states_is_kept(name: str, states: int, all_kept: int, packed: bool) -> None:
    steps = 64 * (1 if packed else 2) * 32
    assert kept(name, None, packed) >= all_kept * steps  # gru: products with matrices as well
    assert kept(name, 16, packed) == states * steps // 16
    assert kept(name, 1, packed) == states * steps
    assert kept(name, 1000, packed) == 0


@pytest.mark.parametrize("form", ["loop", "newton", "scan"])
def test_other_forms_take_no_notice(form: str) -> None:
    some = drawn("mingru", 2, 20, 4, (True, False, False))
    want = results("mingru", some, torch.float64, form=form)
    assert same(results("mingru", some, torch.float64, form=form, checkpoint=3), want)


@pytest.mark.unchecked
@pytest.mark.parametrize("k", [0, -2, 2.5, True])
def test_checkpoint_is_a_positive_integer(k: Any) -> None:
    x = torch.ones(1, 3, 2)
    with pytest.raises(
        ArgumentError, match=r"cell_scan: checkpoint must be an integer of at least 1, got"
    ):
        cell_scan(CELLS["mingru"], a=x, z=x, checkpoint=k)


def _equal(h: Any, k: Any, x: Any, a: Any) -> Any:
    v = torch.tanh(x + 0.5 * k + a)
    return h, (v, v)


def _last_equal(h: Any, k: Any, m: Any, x: Any, a: Any) -> Any:
    v = torch.tanh(x + 0.5 * m + a)
    return k * m, (v, 0.5 * h + x, v)


@pytest.mark.parametrize("step", [_equal, _last_equal])
def test_equal_next_states(step: Any) -> None:
    """Each state has a window of its own, though two are one value."""
    state = "h k" if step is _equal else "h k m"
    cell = Cell(step, state=state, constant="a")
    torch.manual_seed(0)
    x, a = torch.randn(2, 64, 64, requires_grad=True), torch.zeros(64, requires_grad=True)

    def gradients(checkpoint: int | None) -> list[Tensor]:
        y, last = cell_scan(cell, x=x, a=a, form="native", checkpoint=checkpoint)
        return list(torch.autograd.grad(y.sum() + last[-1].sum(), (x, a)))

    want = gradients(None)
    for k in (1, 5, 16, 100):
        assert same(gradients(k), want), k


def test_a_product_that_only_a_gradient_reads() -> None:
    """Its width is that of a window, which no tensor says."""

    def step(h: Any, x: Any, W: Any) -> Any:
        return torch.tanh(block_linear(block_linear(x, W.mT), W)), torch.tanh(x)

    cell = Cell(step, state="h", matrix="W")
    x, W = torch.randn(3, 18, 5, requires_grad=True), torch.randn(1, 5, 2, requires_grad=True)
    found = []
    for k in (None, 1, 4):
        y, _ = cell_scan(cell, x=x, W=W, form="native", checkpoint=k)
        found.append(list(torch.autograd.grad(y.sum(), (x, W))))
    assert all(same(some, found[0]) for some in found)


def test_sums_have_one_order_where_only_the_step_mixes() -> None:
    def step(h: Any, x: Any, c: Any) -> Any:
        return spread(torch.round(5 * x), 3), torch.tanh(c) * h

    cell = Cell(step, state="h", constant="c")
    x, c = torch.randn(3, 40, 8), torch.randn(8, requires_grad=True)
    found = []
    for k in (None, 1, 4):
        _, h = cell_scan(cell, x=x, c=c, state=torch.ones(3, 8), form="native", checkpoint=k)
        found.append(list(torch.autograd.grad(h.sum(), c)))
    assert all(same(some, found[0]) for some in found)
