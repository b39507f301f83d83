"""`cell_scan`: every form of cells of the literature against their function in a float64 loop."""

import itertools
import sys
from pathlib import Path

import pytest
import torch

from linrnn.errors import ArgumentError, BackendError, LinrnnError, ShapeError, UnknownNameError
from linrnn.ops import cell_scan, explain

sys.path.append(str(Path(__file__).parents[1] / "cells"))
from literature import CELLS, draw

from linrnn.cells import Cell, block_linear

AFFINE = {"mingru", "rg_lru", "lru", "cascade"}
T = 9
CUTS = torch.tensor([0, 0, 4, 5, 9])


def by_steps(cell, given, state, reset, cu_seqlens, reverse):
    """What `cell_scan` means, written down once more."""
    time = next(given[x] for x in cell.inputs).shape[1] if cell.inputs else T
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    outputs, finals = [None] * time, []
    for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
        h = tuple(x if cu_seqlens is None else x[s : s + 1] for x in state)
        steps = range(begin, end)
        for t in reversed(steps) if reverse else steps:
            if reset is not None:
                starts = [cell.start[x] for x in cell.states]
                cut = reset[:, t, None]
                h = tuple(torch.where(cut, a, x) for a, x in zip(starts, h, strict=True))
            now = {n: x[:, t] if n in cell.inputs else x for n, x in given.items()}
            now |= dict(zip(cell.states, h, strict=True))
            y, after = cell(*(now[x] for x in cell.arguments))
            h = after if isinstance(after, tuple) else (after,)
            outputs[t] = y if isinstance(y, tuple) else (y,)
        finals.append(h)
    stacked = [torch.stack(some, 1) for some in zip(*outputs, strict=True)]
    return stacked, [torch.cat(some) for some in zip(*finals, strict=True)]


def problem(name, layout=(False, False, False), **sizes):
    """Arguments, states and a layout: resets, packing, direction."""
    resets, packed, reverse = layout
    batch = 1 if packed else 2
    given, state = draw(
        CELLS[name], batch, T, sequences=len(CUTS) - 1 if packed else None, **sizes
    )
    mask = torch.rand(batch, T, generator=torch.Generator().manual_seed(3)) < 0.3
    options = {
        "reset": mask if resets else None,
        "cu_seqlens": CUTS if packed else None,
        "reverse": reverse,
    }
    return CELLS[name], given, state, options


def scanned(cell, given, state, **options):
    if not cell.inputs:
        options["time"] = T
    y, last = cell_scan(cell, state=state, **given, **options)
    return [list(x) if isinstance(x, tuple) else [x] for x in (y, last)]


def gradients(results, sources):
    flat = [x for some in results for x in some]
    into = [torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype) + 0.1 for x in flat]
    return [x.detach() for x in flat], torch.autograd.grad(
        flat, sources, into, materialize_grads=True
    )


def check(name, layout, tolerance, **options):
    cell, given, state, marks = problem(name, layout)
    if not cell.inputs and marks["cu_seqlens"] is not None:
        return
    sources = [x.requires_grad_() for x in (*given.values(), *state)]
    want = gradients(by_steps(cell, given, state, *marks.values()), sources)
    got = gradients(scanned(cell, given, state, **marks, **options), sources)
    for kind, true in zip(got, want, strict=True):
        for x, y in zip(kind, true, strict=True):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


LAYOUTS = list(itertools.product((False, True), repeat=3))
each_layout = pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda x: "".join(c for c, on in zip("rpb", x, strict=True) if on) or "-"
)


@each_layout
@pytest.mark.parametrize("name", CELLS)
def test_the_loop_is_its_steps(name, layout):
    check(name, layout, 1e-14, form="loop")


@each_layout
@pytest.mark.parametrize("name", sorted(AFFINE))
def test_the_scan_equals_the_loop(name, layout):
    check(name, layout, 1e-12, form="scan")


@each_layout
@pytest.mark.parametrize("name", sorted(CELLS))
def test_newton_equals_the_loop(name, layout):
    check(name, layout, 1e-11, form="newton")
