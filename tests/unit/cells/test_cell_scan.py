"""`cell_scan`: every form of cells of the literature against their function in a float64 loop."""

import itertools

import pytest
import torch
from literature import CELLS, draw

from linrnn.cells import Cell, fold
from linrnn.errors import (
    ArgumentError,
    BackendError,
    DTypeError,
    ShapeError,
    UnknownNameError,
)
from linrnn.ops import cell_scan, explain, newton_scan, use_backend
from linrnn.ops.cell.cell_scan import _newton
from linrnn.testing._derivatives import check_derivatives
from linrnn.testing._dynamic import check_dynamic

AFFINE = {"mingru", "rg_lru", "lru", "cascade"}
T = 9
CUTS = torch.tensor([0, 0, 4, 5, 9])


def by_steps(cell, given, state, reset, cu_seqlens, reverse):
    """The definition of `cell_scan`, written down once more."""
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
            after, y = (x if isinstance(x, tuple) else (x,) for x in (after, y))
            # what depends on constants alone is the same in every row
            outputs[t] = [x.expand_as(h[0]) for x in y]
            h = tuple(x.expand_as(h[0]) for x in after)
        finals.append(h)
    stacked = [torch.stack(some, 1) for some in zip(*outputs, strict=True)]
    return stacked, [torch.cat(some) for some in zip(*finals, strict=True)]


def problem(name, layout=(False, False, False), **sizes):
    """Arguments, states and a layout: resets, packing, direction."""
    resets, packed, reverse = layout
    batch = 1 if packed else 2
    given, state = draw(CELLS[name], batch, T, sequences=len(CUTS) - 1 if packed else None, **sizes)
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
    total = sum((x * y).real.sum() for x, y in zip(flat, into, strict=True))
    total = total + 0 * sum(x.real.sum() for x in sources)  # a result may be a number
    return [x.detach() for x in flat], torch.autograd.grad(total, sources)


def check(name, layout, tolerance, **options):
    if not CELLS[name].inputs:
        layout = (layout[0], False, layout[2])
    cell, given, state, marks = problem(name, layout)
    sources = [x.requires_grad_() for x in (*given.values(), *state)]
    want = gradients(by_steps(cell, given, state, *marks.values()), sources)
    got = gradients(scanned(cell, given, state, **marks, **options), sources)
    for kind, true in zip(got, want, strict=True):
        for x, y in zip(kind, true, strict=True):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


LAYOUTS = list(itertools.product((False, True), repeat=3))
WHOLE = ("slstm", "gru", "lru")  # in every layout; the others take turns


def in_turn(names):
    """Cells with layouts: resets, packed, backward."""
    for i, name in enumerate(names):
        some = LAYOUTS if name in WHOLE else (LAYOUTS[i % 8], LAYOUTS[(i + 5) % 8])
        for layout in some:
            letters = "".join(c for c, on in zip("rpb", layout, strict=True) if on)
            yield pytest.param(name, layout, id=f"{name}-{letters}")


@pytest.mark.parametrize(("name", "layout"), list(in_turn(sorted(CELLS))))
def test_newton_equals_the_loop(name, layout):
    check(name, layout, 1e-11, form="newton")


@pytest.mark.parametrize("form", ["loop", "scan", "newton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_storage(dtype, form):
    cell, given, state, marks = problem("mingru", (True, False, False))
    low = {n: x.to(dtype) for n, x in given.items()}
    y, last = cell_scan(cell, **low, state=state[0].to(dtype), **marks, form=form)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    wide = {n: x.double() for n, x in low.items()}
    state = [state[0].to(dtype).double()]
    (want,), (final,) = by_steps(cell, wide, state, *marks.values())
    torch.testing.assert_close(last.double(), final, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y.double(), want.to(dtype).double(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("form", ["loop", "newton"])
def test_inputs_decide_what_is_stored_and_all_what_is_computed_in(form):
    cell, given, state, _ = problem("indrnn")
    x, u = given["x"], given["u"]
    y, last = cell_scan(cell, x=x.bfloat16(), u=u.float(), form=form)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    y, last = cell_scan(cell, x=x.float(), u=u.bfloat16(), state=state[0], form=form)
    assert (y.dtype, last.dtype) == (torch.float32, torch.float32)
    y, last = cell_scan(cell, x=x.float(), u=u, form=form)
    assert (y.dtype, last.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("form", ["loop", "newton", None])
@pytest.mark.parametrize("name", ["slstm", "gru", "lru"])
def test_empty_sizes(name, form):
    for batch, time, channels in ((0, 3, 4), (2, 0, 4), (0, 0, 4), (2, 1, 4), (2, 3, 0)):
        given, state = draw(CELLS[name], batch, time, channels)
        y, last = scanned(CELLS[name], given, tuple(h.requires_grad_() for h in state), form=form)
        assert y[0].shape == (batch, time, channels)
        for h, start in zip(last, state, strict=True):
            assert h.shape == start.shape
            assert time or torch.equal(h, start)
        torch.autograd.grad(sum(h.abs().sum() for h in last), state)


def test_a_sequence_starts_where_the_cell_says():
    cell, given, _, _ = problem("slstm")
    state = tuple(torch.full((2, 4), cell.start[x], dtype=torch.float64) for x in cell.states)
    for a, b in zip(scanned(cell, given, None), scanned(cell, given, state), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["loop", "scan", "newton"])
def test_channel_axes_broadcast(form):
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    a, b = torch.rand(4, dtype=torch.float64), torch.rand(3, 1, dtype=torch.float64)
    y, last = cell_scan(CELLS["cascade"], x=x[:, :, :1], a=a, b=b, form=form)
    full = {"a": a.expand(3, 4).flatten(), "b": b.expand(3, 4).flatten()}
    wide = x[:, :, :1].expand(x.shape).flatten(-2)
    want, final = cell_scan(CELLS["cascade"], x=wide, **full, form="loop")
    torch.testing.assert_close(y.flatten(-2), want)
    torch.testing.assert_close([h.flatten(1) for h in last], list(final))


@pytest.mark.parametrize("form", ["loop", "scan", "newton"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nothing_passes_a_cut(bad, form):
    for reverse in (False, True):
        cell, given, _, _ = problem("rg_lru", (False, True, False))
        given["x"][:, 4] = bad
        behind = slice(None, 4) if reverse else slice(5, None)
        y, last = cell_scan(cell, **given, cu_seqlens=CUTS, reverse=reverse, form=form)
        assert y[:, behind].isfinite().all()
        assert last[[0, 1, 3]].isfinite().all()
        reset = torch.zeros(1, T, dtype=torch.bool)
        reset[:, 3 if reverse else 5] = True
        y, last = cell_scan(cell, **given, reset=reset, reverse=reverse, form=form)
        assert y[:, behind].isfinite().all()
        assert last.isfinite().all()


@pytest.mark.unchecked
@pytest.mark.parametrize("form", ["loop", "scan", "newton"])
@pytest.mark.parametrize("name", ["mingru", "lru", "slstm", "heads"])
def test_derivatives_in_every_mode(name, form):
    if form == "scan" and name not in AFFINE:
        return
    given, state = draw(CELLS[name], 2, 3, 2)
    states = {f"state_{i}": h for i, h in enumerate(state)}

    def run(**arguments):
        first = tuple(arguments.pop(x) for x in states)
        return cell_scan(CELLS[name], state=first, form=form, **arguments)

    check_derivatives(f"{name} {form}", run, {**given, **states}, singly=False)


def single(x):
    return x.to(torch.complex64 if x.is_complex() else torch.float32)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("lru", "scan"),
        pytest.param("slstm", None, marks=pytest.mark.slow),
        pytest.param("lem", "newton", marks=pytest.mark.slow),
    ],
)
def test_one_graph_serves_every_size(name, form):
    cell, calls = CELLS[name], []
    for batch, time in ((11, 13), (2, 20), (5, 7)):
        given, state = draw(cell, batch, time, 6)
        low = {
            n: x.to(torch.complex64 if x.is_complex() else torch.float32) for n, x in given.items()
        }
        reset = torch.rand(batch, time, generator=torch.Generator().manual_seed(1)) < 0.2
        state = tuple(h.to(torch.complex64 if h.is_complex() else torch.float32) for h in state)
        leaves = {n: x.requires_grad_() for n, x in low.items()}
        calls.append({**leaves, "state": state, "reset": reset})

    def run(**arguments):
        return cell_scan(cell, form=form, **arguments)

    check_dynamic(name, run, calls, "aot_eager")


def test_shapes_on_the_meta_device():
    cell, given, state, _ = problem("gru")
    y, last = cell_scan(
        cell, **{n: x.to("meta") for n, x in given.items()}, state=state[0].to("meta")
    )
    assert (y.shape, last.shape, y.device.type) == ((2, T, 4), (2, 4), "meta")


def test_matrices_may_change_the_width():
    def step(h, x, U, V):
        h = torch.tanh(x @ U + h)
        return h @ V, h

    cell = Cell(step, state="h", matrix="U V")
    x, u, v = torch.randn(2, 5, 3), torch.randn(3, 4), torch.randn(4, 7)
    for form in ("loop", "newton"):
        y, last = cell_scan(cell, x=x, U=u, V=v, form=form)
        assert (y.shape, last.shape) == ((2, 5, 7), (2, 4))


def test_newton_finds_no_states_that_are_none():
    """Chaos: small differences grow, and nothing that is returned is wrong."""

    def logistic(h, x):
        h = 3.99 * h * (1 - h) + x
        return h, h

    cell = Cell(logistic, state="h", start=0.3)
    x = torch.zeros(1, 4000, 1, dtype=torch.float64)
    with pytest.raises(BackendError, match=r"newton must reach a residual of .* within 100"):
        cell_scan(cell, x=x, form="newton")
    y, _ = cell_scan(cell, x=x[:, :20], form="newton")
    torch.testing.assert_close(y, cell_scan(cell, x=x[:, :20])[0], rtol=1e-8, atol=1e-8)


def test_newton_says_how_it_converged():
    cell, given, state, marks = problem("mingru", (True, False, True))
    y, last, how = newton_scan(cell, state=state[0], **given, **marks)
    want, final = cell_scan(cell, state=state[0], **given, **marks, form="loop")
    torch.testing.assert_close((y, last), (want, final), rtol=1e-12, atol=1e-12)
    assert 0 < how.rounds <= T
    assert how.residual <= 64 * torch.finfo(torch.float64).eps
    assert newton_scan(cell, a=torch.randn(2, 0, 4), z=torch.randn(2, 0, 4))[2].rounds == 0


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("name", ["sru", "unicornn", "gru"])
def test_newton_is_as_exact_as_the_loop_whatever_the_size_of_the_gradient(name, size):
    """A residual beside 1 would be that of any gradient of a mean over many numbers."""
    given, state = draw(CELLS[name], 2, 40)
    sources = [x.requires_grad_() for x in (*given.values(), *state)]
    found = []
    for form in ("newton", "loop"):
        y, _ = scanned(CELLS[name], given, state, form=form)
        found.append(torch.autograd.grad(size * sum(x.sum() for x in y), sources))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got / size, want / size, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("size", [1e-9, 1e-3])
def test_newton_is_as_exact_as_the_loop_for_small_states_with_a_long_memory(size):
    def step(y, z, u):
        z = z + 0.05 * (size * torch.tanh(u + y / size) - 2.0 * y)
        y = y + 0.05 * z
        return y, (y, z)

    u = torch.randn(1, 1000, 4, dtype=torch.float64)
    cell = Cell(step, state="y z")
    y, want = (cell_scan(cell, u=u, form=form)[0] for form in ("newton", "loop"))
    torch.testing.assert_close(y / size, want / size, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "rounds"), [("unicornn", 8), ("indrnn", 8), ("slstm", 8), ("modrelu", 10)]
)
def test_newton_solves_what_no_matrix_mixes_in_few_rounds(name, rounds):
    """The derivative channel by channel is all of it: of several states a matrix for each."""
    given, state = draw(CELLS[name], 2, 200)
    marks = {"reset": torch.rand(2, 200, generator=torch.Generator().manual_seed(0)) < 0.005}
    marks["state"] = state if len(state) > 1 else state[0]
    *found, how = newton_scan(CELLS[name], **given, **marks)
    want = cell_scan(CELLS[name], **given, **marks, form="loop")
    torch.testing.assert_close(tuple(found), want, rtol=1e-11, atol=1e-11)
    assert how.rounds <= rounds


@pytest.mark.unchecked
def test_newton_says_what_it_leaves_out():
    cell = Cell(lambda h, x, W: (torch.nn.functional.linear(h, W) + x,) * 2, state="h", matrix="W")
    quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    with pytest.raises(BackendError, match=r"leave out what the matrix W mixes. Use form='loop'"):
        cell_scan(cell, x=torch.randn(1, 300, 2), W=quarter_turn, form="newton")


@pytest.mark.parametrize("name", ["sru", "lru", "mingru"])
def test_newton_needs_few_rounds_for_long_gated_cells(monkeypatch, name):
    """Fewer than steps, for the states and for the gradient, which has no need of the loop."""
    monkeypatch.setattr(_newton, "ROUNDS", 12)
    monkeypatch.setattr(_newton, "_by_the_loop", None)
    given, state = draw(CELLS[name], 2, 60)
    sources = [x.requires_grad_() for x in (*given.values(), *state)]
    found = [
        gradients(scanned(CELLS[name], given, state, form=form), sources)
        for form in ("newton", "loop")
    ]
    for got, want in zip(*([*y, *grads] for y, grads in found), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_a_gradient_that_newton_does_not_find_is_that_of_the_loop(monkeypatch):
    cell, given, state, marks = problem("lem", (True, False, True))
    sources = [x.requires_grad_() for x in (*given.values(), *state)]
    results = scanned(cell, given, state, **marks, form="newton")
    monkeypatch.setattr(_newton, "ROUNDS", 1)
    _, got = gradients(results, sources)
    _, want = gradients(scanned(cell, given, state, **marks, form="loop"), sources)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


@pytest.mark.unchecked
def test_explain_says_what_runs_and_what_keeps_the_cell_from_another_form():
    cell, given, _, _ = problem("slstm")
    text = explain(cell, **given, form="loop")
    assert text.startswith("loop: requested by the argument form=; ")
    assert "scan cannot (" in text
    cell, given, _, _ = problem("lru")
    assert explain(cell, **given, form="scan") == explain(cell_scan, cell, **given, form="scan")
    assert "scan cannot" not in explain(cell, **given, form="loop")
    reasons = {
        "indrnn": "relu of h makes its step no affine function",
        "gru": "the matrix Wr mixes the channels of h",
        "synapses": "spread_each mixes the channels of v",
        "ring": "roll mixes the channels of h",
        "unicornn": "y depends on z, which depends on y or more",
        "modrelu": "square of h makes its step no affine function",
        "mirrored": "the step of h is no complex multiplication",
        **dict.fromkeys(AFFINE),
    }
    assert {name: CELLS[name].affine() for name in reasons} == reasons


@pytest.mark.unchecked
def test_what_a_call_must_not_be():
    cell, given, state, _ = problem("indrnn")
    with pytest.raises(DTypeError, match="cell must be a Cell, got function"):
        cell_scan(lambda h: h, x=given["x"])
    with pytest.raises(
        ArgumentError, match="the arguments must be those of _indrnn, x, u, got no u"
    ):
        cell_scan(cell, x=given["x"])
    with pytest.raises(ArgumentError, match=r"got v. Give each by its name"):
        cell_scan(cell, **given, v=state[0])
    with pytest.raises(ArgumentError, match="state must hold h, got 2 tensors"):
        cell_scan(cell, **given, state=(state[0], state[0]))
    with pytest.raises(ShapeError, match=r"h must have shape \(batch=2, channels\), got \(1, 4\)"):
        cell_scan(cell, **given, state=state[0][:1])
    with pytest.raises(ShapeError, match=r"x must have shape \(batch, time, \*channels\)"):
        cell_scan(cell, x=given["x"][0], u=given["u"])
    with pytest.raises(ShapeError, match=r"must fit together, got x \(4,\), u \(3,\)"):
        cell_scan(cell, x=given["x"], u=given["u"][:3])
    with pytest.raises(DTypeError, match=r"u must be real as declared, got torch.complex128"):
        cell_scan(cell, x=given["x"], u=given["u"] + 1j)
    with pytest.raises(UnknownNameError, match=r"no cell_scan form named 'lop'. Did you mean"):
        cell_scan(cell, **given, form="lop")
    with pytest.raises(BackendError, match=r"form 'scan' must be .* cannot: relu of h makes"):
        cell_scan(cell, **given, form="scan")
    with pytest.raises(ArgumentError, match="time must be that of the inputs, 9, got 3"):
        cell_scan(cell, **given, time=3)
    free = CELLS["oscillator"]
    with pytest.raises(ArgumentError, match="without inputs must be given time= and state="):
        cell_scan(free, w=given["u"], state=(state[0], state[0]))
    gru, given, _, _ = problem("gru")
    wide = {**given, "Wn": torch.ones(5, 5, dtype=torch.float64)}
    with pytest.raises(ShapeError, match=r"must have as many channels as .*, got"):
        cell_scan(gru, **wide)
    with pytest.raises(ShapeError, match=r"Wn must have shape \(rows, columns\), got \(4,\)"):
        cell_scan(gru, **{**given, "Wn": given["bn"]})
    pairs = Cell(lambda h, x, w: (h, fold(w * x, 3)), state="h", constant="w", name="pairs")
    x = given["xr"]
    with pytest.raises(ShapeError, match=r"x must have a multiple of 3 channels, got 4"):
        cell_scan(pairs, x=x, w=x[0, 0])
    with pytest.raises(ShapeError, match=r"a part of x must have as many channels as h, 4, got 2"):
        cell_scan(pairs, x=x[..., :1].repeat(1, 1, 6), w=x[0, 0, :1].repeat(6), state=x[:, 0])
    with pytest.raises(ShapeError, match="xr must have one channel axis in a cell with matrices"):
        cell_scan(gru, **{**given, "xr": given["xr"][..., None]})


def test_a_backend_of_a_cell_is_one_of_its_linear_scan():
    cell, given, _, _ = problem("mingru")
    with use_backend("reference"):
        assert explain(cell, **given).startswith("loop: reference")
    assert explain(cell, **given, backend="tree").startswith("scan: all steps at once")
