"""Drawn cells in every form against a plain loop: outputs, final states and all gradients.

`hostile.py` draws the cells. A case that fails prints its source; `LINRNN_CELLS=first-last` in the
environment runs others than the standard ones.
"""

import os
import random
from dataclasses import replace

import pytest
import torch
from hostile import Draw, Problem, by_loop, draw, flat, problem, with_gradients

from linrnn.cells import Cell
from linrnn.errors import BackendError
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _cpu

NATIVE = _cpu.unavailable(torch.device("cpu"), torch.float64) is None
_BATCH = 20  # cells of one test
_LARGEST = 1e5  # beyond, a recurrence may magnify roundings without bound


def batches(first: int, last: int, **marks: object) -> list[object]:
    return [
        pytest.param(range(i, min(i + _BATCH, last)), id=f"{i}", **marks)
        for i in range(first, last, _BATCH)
    ]


_FIRST, _LAST = map(int, os.environ.get("LINRNN_CELLS", "0-240").split("-"))
CASES = [*batches(_FIRST, _LAST), *batches(62_000, 65_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("numbers", CASES)
def test_every_form_is_the_plain_loop(numbers):
    for number in numbers:
        check(number)


def check(number: int) -> None:
    d = draw(number)
    cell = d.cell
    if not cell.program.mixes and len(set(d.shapes.values())) > 1:
        return  # what had several widths is read by nothing
    p = problem(d, cell)
    want = reference(d, cell, p)
    n_results = len(want) - len(p.sources)
    if any(x.isnan().any() or x.abs().max() > _LARGEST for x in want if x.numel()):
        return
    for options in variants(d, cell, p):
        try:
            got = with_gradients(flat(cell_scan(cell, **p.options(), **options)), p, number)
        except BackendError:
            assert options.get("form") == "newton"  # it need not converge
            continue
        loose = 1e-4 if options.get("form") == "newton" else 1e-8
        for i, (x, true) in enumerate(zip(got, want, strict=True)):
            if true.shape[-1] == 1 and i < n_results:
                true = true.expand_as(x)  # a number given out has no width of its own
            assert x.shape == true.shape, (number, options, i, d.source)
            size = 1 + true.abs().max() if true.numel() else 1.0
            worst = ((x - true).abs() / size).max() if true.numel() else 0.0
            if worst < loose or magnified(d, cell, p, want)[i] > 0.01 * worst:
                continue
            raise AssertionError((number, i, float(worst), options, p.marks, d.source))
    if NATIVE:
        same_bits(d, cell, p)


def magnified(d: Draw, cell: Cell, p: Problem, want: list[torch.Tensor]) -> list[float]:
    """The growth of a rounding in each argument: chaotic recurrences double it at every step."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        return (x.detach() * (1 + 2e-16)).requires_grad_(x.requires_grad)

    given = {n: moved(x) for n, x in p.given.items()}
    state = None if p.state is None else tuple(map(moved, p.state))
    after = reference(d, cell, replace(p, given=given, state=state))
    sizes = [1 + x.abs().max() if x.numel() else 1.0 for x in want]
    gaps = [(x - y).abs().max() if x.numel() else 0.0 for x, y in zip(after, want, strict=True)]
    return [float(gap / size) for gap, size in zip(gaps, sizes, strict=True)]


def reference(d: Draw, cell: Cell, p: Problem) -> list[torch.Tensor]:
    widths = [d.shapes[name][-1] for name in d.kinds["state"]]
    if p.state is None:  # one that nothing says the width of is as wide as it is made
        with torch.no_grad():
            _, last = cell_scan(cell, **p.options(), form="loop")
        widths = [h.shape[-1] for h in (last if isinstance(last, tuple) else (last,))]
    outputs, finals = by_loop(d, cell, p, widths)
    return with_gradients([*outputs, *finals], p, d.number)


def variants(d: Draw, cell: Cell, p: Problem) -> list[dict[str, object]]:
    """Ways of computing a call."""
    r = random.Random(d.number + 3)
    found: list[dict[str, object]] = [{}, {"checkpoint": r.choice((1, 2, 3, 5, 16, 2**62))}]
    if r.random() < 0.3:
        found.append({"form": "loop"})
    if r.random() < 0.25:
        found.append({"form": "newton"})
    if cell.affine() is None:
        found.append({"form": "scan"})
    return found


def same_bits(d: Draw, cell: Cell, p: Problem) -> None:
    """Neither checkpoints, nor threads, nor coming again, nor gradients change a bit."""
    r = random.Random(d.number + 4)
    single = problem(d, cell, torch.float32) if r.random() < 0.5 else p
    call = {**single.options(), "form": "native"}
    want = with_gradients(flat(cell_scan(cell, **call)), single, d.number)
    n = len(want) - len(single.sources)
    before, threads = torch.get_num_threads(), r.choice((1, 2, 3))
    try:
        torch.set_num_threads(threads)
        again = with_gradients(flat(cell_scan(cell, **call)), single, d.number)
        few = with_gradients(
            flat(cell_scan(cell, **call, checkpoint=r.choice((1, 2, 4, 7)))), single, d.number
        )
        with torch.no_grad():
            plain = flat(cell_scan(cell, **call))
    finally:
        torch.set_num_threads(before)
    # gradients of matrices are sums of PyTorch's, which differ with the threads
    count = n if d.kinds["matrix"] and threads > 1 else len(want)
    for got in (again[:count], few[:count], plain[: max(n, 0) or len(plain)]):
        for x, true in zip(got, want, strict=False):
            assert torch.equal(x.nan_to_num(), true.nan_to_num()), (d.number, d.source)
