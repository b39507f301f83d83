"""A cell that begins its sequences from given numbers, in every form."""

import pytest
import torch

from linrnn.cells import cell
from linrnn.errors import ArgumentError
from linrnn.ops import cell_scan


@cell(state="h")
def gated(h, z, f):
    h = torch.lerp(torch.tanh(z), h, torch.sigmoid(f))
    return h, h


@cell(state="h c", matrix="W", start={"c": 2.0})
def dense(h, c, z, f, W):
    c = c + torch.sigmoid(f)
    h = torch.tanh(z + torch.nn.functional.linear(h, W)) / c
    return h, (h, c)


@cell(state="h", complex="h z f")
def turning(h, z, f):
    h = f * h + z
    return h.real, h


def case(cell):
    torch.manual_seed(0)
    kind = torch.complex128 if cell.is_complex else torch.float64
    given = {n: torch.randn(2, 9, 3, dtype=kind) / 2 for n in cell.inputs}
    given |= {n: torch.randn(3, 3, dtype=kind) for n in cell.matrices}
    starts = {f"{h}_0": torch.randn(3, dtype=kind) + 2 for h in cell.states}
    before = [torch.randn(2, 3, dtype=kind) for _ in cell.states]
    for x in (*given.values(), *starts.values(), *before):
        x.requires_grad_()
    return given, starts, before


def piecewise(cell, given, starts, before, cuts):
    """Each row alone, and each piece of it from the given start."""
    rows = []
    for i, where in enumerate(cuts):
        state, ys = [h[i : i + 1] for h in before], []
        for begin, end in zip([0, *where], [*where, 9], strict=True):
            part = {n: x[i : i + 1, begin:end] if n in cell.inputs else x for n, x in given.items()}
            state = [s[None] for s in starts.values()] if begin in where else state
            if begin < end:
                y, last = cell_scan(cell, **part, state=tuple(state))
                state = last if isinstance(last, tuple) else (last,)
                ys.append(y)
        rows.append((torch.cat(ys, 1), *state))
    return [torch.cat(x) for x in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("cell", "form"),
    [
        *((gated, form) for form in ("loop", "scan", "native", "newton")),
        *((dense, form) for form in ("loop", "native")),
        *((turning, form) for form in ("loop", "scan", "native")),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_every_sequence_after_a_reset_begins_there_with_gradients(cell, form):
    given, starts, before = case(cell)
    cuts = [[4, 5], [0]]
    reset = torch.zeros(2, 9, dtype=torch.bool)
    for row, where in zip(reset, cuts, strict=True):
        row[where] = True
    fresh = torch.zeros(2, 3, dtype=torch.float64)
    y, last = cell_scan(
        cell.with_start(), **given, **starts, state=(*before, fresh), reset=reset, form=form
    )
    got, want = [y, *last[:-1]], piecewise(cell, given, starts, before, cuts)
    torch.testing.assert_close(got, want)
    assert not last[-1].any()
    sources = (*given.values(), *starts.values(), *before)
    grads = [
        torch.autograd.grad(sum((x * x.conj()).real.sum() for x in some), sources)
        for some in (got, want)
    ]
    torch.testing.assert_close(*grads)


def test_without_a_state_a_sequence_begins_there_too():
    given, starts, _ = case(gated)
    y, _ = cell_scan(gated.with_start(), **given, **starts)
    whole, _ = cell_scan(gated, **given, state=starts["h_0"].expand(2, 3))
    torch.testing.assert_close(y, whole)
    assert gated.with_start() is gated.with_start()


@pytest.mark.unchecked
def test_names_must_be_free():
    @cell(state="h")
    def taken(h, fresh):
        return h + fresh, h + fresh

    with pytest.raises(
        ArgumentError, match="cell taken: with_start must find fresh, h_0 free, got"
    ):
        taken.with_start()
