"""Every op against a loop in double precision: values, gradients, splits, what it leaves alone."""

from dataclasses import replace

import fuzzing
import pytest
import torch
import torch.nn.functional as F
from fuzzing import BUDGETS, share
from hypothesis import strategies as st
from strategies import COMPLEX, REAL, SPECIAL, numbers, placed, resets, scans

from linrnn.ops import (
    accumulator_dtype,
    backend_report,
    fft_scan,
    gated_scan,
    linear_scan,
    log_linear_scan,
    selective_scan,
)
from linrnn.testing import check_close, loop_scan
from linrnn.testing._tolerance import difference, epsilon

pytestmark = pytest.mark.unchecked

AVAILABLE = tuple(name for name, why in backend_report().items() if why == "available")
WIDE = {True: torch.complex128, False: torch.float64}
SINGLE = {True: torch.complex64, False: torch.float32}
#: Values of a decay at which every backend keeps what is finite finite.
MILD = (0.0, -0.0, 1.0, -1.0, 1e-40, 1e-30, 1.25)
ROUNDINGS = 32.0  # of the largest number, beside what a loop's own error allows


def differentiated(function, tensors, dtype, cotangents, place=lambda x: x):
    """Results of ``function(**tensors)`` and its gradients, all computed in ``dtype``.

    Tensors named in ``dtype``'s accumulator (states) are passed in it.
    """
    inputs = {}
    for name, x in tensors.items():
        kind = accumulator_dtype(dtype) if name == "initial_state" else dtype
        inputs[name] = place(x.to(kind)).detach().requires_grad_()
    kept = {name: x.detach().clone() for name, x in inputs.items()}
    outputs = function(**inputs)
    named = dict(zip(("h", "final_state"), outputs, strict=True))
    into = [
        c[: h.numel()].view(h.shape).to(h.dtype) for h, c in zip(outputs, cotangents, strict=True)
    ]
    live = [(h, c) for h, c in zip(outputs, into, strict=True) if h.requires_grad]
    grads = torch.autograd.grad(
        [h for h, _ in live], list(inputs.values()), [c for _, c in live], allow_unused=True
    )
    for (name, x), grad in zip(inputs.items(), grads, strict=True):
        named[f"gradient of {name}"] = torch.zeros_like(x) if grad is None else grad
        assert same_bits(x.detach(), kept[name]), f"{name} was changed"
    return named


def same_bits(x, y):
    x, y = (z.resolve_conj().resolve_neg().contiguous().view(-1) for z in (x, y))
    return bool(((x == y) | (x.isnan() & y.isnan())).all())


def directions(dtype, *sizes):
    """A cotangent for the outputs and one for the final state, of numbers their dtypes hold."""
    g = torch.Generator().manual_seed(7)
    found = [torch.randn(n, dtype=WIDE[dtype.is_complex], generator=g) for n in sizes]
    kinds = (dtype, accumulator_dtype(dtype))
    return [c.to(kind).to(c.dtype) for c, kind in zip(found, kinds, strict=True)]


def check_same(what, got, truth, single, dtype, roundings=ROUNDINGS):
    """Numbers that should be finite are right; the others are not finite."""
    for name, value in got.items():
        true, rough = truth[name].detach(), single[name].detach()
        assert value.shape == true.shape, f"{what}: {name} has shape {tuple(value.shape)}"
        value = value.detach()
        finite = true.to(value.dtype).isfinite()
        assert bool((value.isfinite() == finite).all()), f"{what}: {name} is not finite elsewhere"
        both = finite & rough.isfinite()
        loop = difference(torch.where(both, rough, 0), torch.where(both, true, 0))
        kind = accumulator_dtype(dtype)
        scaled = loop * epsilon(kind) / epsilon(SINGLE[true.is_complex()])
        scaled += torch.finfo(value.dtype).tiny  # what is smaller may be flushed to zero
        check_close(
            f"{what}: {name}",
            torch.where(finite, value, 0),
            torch.where(finite, true, 0),
            loop_error=scaled,
            roundings=roundings,
        )


def full(case):
    """The decay of a case with its axes of size 1 repeated, which the loop needs."""
    return case.a if case.a.ndim == 1 else case.a.expand(case.b.shape)


def loop(a, b, initial_state=None, **layout):
    return loop_scan(a if a.ndim == 1 else a.expand(b.shape), b, initial_state, **layout)


def check_scan(case):
    is_complex = case.dtype.is_complex
    seqs = len(case.b) if case.cu_seqlens is None else len(case.cu_seqlens) - 1
    into = directions(case.dtype, case.b.numel(), seqs * case.b.shape[2])

    def reference(**tensors):
        return loop(**tensors, **case.layout)

    def run(**tensors):
        return linear_scan(**tensors, **case.layout, backend=case.backend)

    if case.b.numel() == 0 and seqs == 0:
        return run(**{n: x.to(case.dtype) for n, x in case.tensors.items()})
    truth = differentiated(reference, case.tensors, WIDE[is_complex], into)
    single = differentiated(reference, case.tensors, SINGLE[is_complex], into)
    got = differentiated(run, case.tensors, case.dtype, into, case.place)
    assert got["h"].dtype == case.dtype
    assert got["final_state"].dtype == accumulator_dtype(case.dtype)
    if case.dtype.itemsize == 2 and case.a.ndim == 3 and case.a.shape != case.b.shape:
        del got["gradient of a"]  # PyTorch's sum over the repeated axes, in half precision
    check_same(f"linear_scan {case.backend}", got, truth, single, case.dtype)
    check_split(case, run, got)
    return None


def check_split(case, run, whole):
    """Cut anywhere, the state carried over."""
    if case.cu_seqlens is not None:
        return
    parts = [slice(None, case.cut), slice(case.cut, None)]
    state = case.initial_state
    state = None if state is None else state.to(accumulator_dtype(case.dtype))
    pieces = {}
    for i in (1, 0) if case.reverse else (0, 1):
        own = replace(
            case,
            a=case.a if case.a.ndim == 1 or case.a.shape[1] == 1 else case.a[:, parts[i]],
            b=case.b[:, parts[i]],
            reset=None if case.reset is None else case.reset[:, parts[i]],
        )
        pieces[i], state = linear_scan(
            own.a.to(case.dtype), own.b.to(case.dtype), state, **own.layout, backend=case.backend
        )
    got = {"h": torch.cat([pieces[0], pieces[1]], 1), "final_state": state}
    for name, value in got.items():
        expected = whole[name].detach()
        finite = expected.isfinite()
        assert bool((value.isfinite() == finite).all()), f"cut at {case.cut}: {name}"
        check_close(
            f"cut at {case.cut}: {name}",
            torch.where(finite, value, 0),
            torch.where(finite, expected, 0),
            roundings=64,
        )


ORDINARY = scans(decays=numbers(*MILD), inputs=numbers(), backends=(None, *AVAILABLE))
POISONED = scans(decays=numbers(*MILD), inputs=numbers(*SPECIAL), backends=(None, *AVAILABLE))


@BUDGETS
@pytest.mark.parametrize("name", [share("linear_scan", 60)])
def test_linear_scan_is_the_loop(name, times):
    fuzzing.run(name, times, ORDINARY, check_scan)


@BUDGETS
@pytest.mark.parametrize("name", [share("linear_scan of special values", 40)])
def test_linear_scan_of_special_values_is_the_loop(name, times):
    fuzzing.run(name, times, POISONED, check_scan)


def check_wild(case_and_place):
    """Whatever the decays of one channel of one row are, the others do not notice."""
    case, row, channel, value = case_and_place
    a, b = full(case).clone(), case.b.clone()
    clean = linear_scan(a.to(case.dtype), b.to(case.dtype), backend=case.backend)
    row, channel = row % max(1, len(b)), channel % max(1, b.shape[2])
    for x in (a, b):
        if x.ndim == 1:
            x[channel : channel + 1] = value
        else:
            x[row : row + 1, ::2, channel : channel + 1] = value
    got = linear_scan(a.to(case.dtype), b.to(case.dtype), backend=case.backend)
    for x, y in zip(clean, got, strict=True):
        others = torch.ones(x.shape, dtype=torch.bool)
        rows = slice(None) if a.ndim == 1 else slice(row, row + 1)
        others[rows, ..., channel : channel + 1] = False
        assert same_bits(x[others], y[others]), "another row or channel noticed"


WILD = st.tuples(
    scans(decays=numbers(), inputs=numbers(), backends=(None, *AVAILABLE), packed=False),
    st.integers(0, 3),
    st.integers(0, 17),
    st.sampled_from((*SPECIAL, 1e300, -1e38)),
)


@BUDGETS
@pytest.mark.parametrize("name", [share("linear_scan, isolation", 20)])
def test_special_decays_stay_in_their_row_and_channel(name, times):
    fuzzing.run(name, times, WILD, check_wild)


def check_axes(case_and_axes):
    """Any number of channel axes is the same computation as one."""
    case, axes = case_and_axes
    width = case.b.shape[2]
    shape = [(width,), (1, width), (width, 1, 1), ()][axes if width == 1 else axes % 3]
    expected, last = linear_scan(*prepared(case, full(case)), **case.layout, backend=case.backend)
    a, b, state = (
        x if x is None else case.place(x.reshape((*x.shape[:-1], *shape)))
        for x in prepared(case, full(case))
    )
    h, final = linear_scan(a, b, state, **case.layout, backend=case.backend)
    check_close("h", h, expected.view(h.shape))
    check_close("final state", final, last.view(final.shape))


def prepared(case, a):
    state = case.initial_state
    state = None if state is None else state.to(accumulator_dtype(case.dtype))
    return a.to(case.dtype), case.b.to(case.dtype), state


@BUDGETS
@pytest.mark.parametrize("name", [share("linear_scan, axes", 15)])
def test_any_channel_axes_are_one(name, times):
    fuzzing.run(name, times, st.tuples(ORDINARY, st.integers(0, 3)), check_axes)


def log_loop(log_a, log_b, initial_state=None, *, reset, cu_seqlens, reverse):
    """The definition of `log_linear_scan`, one step at a time."""
    log_a = log_a if log_a.ndim == 1 else log_a.expand(log_b.shape)
    time = log_b.shape[1]
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    outputs, finals = {}, []
    for s in range(len(offsets) - 1):
        if initial_state is None:
            state = log_b.new_full((len(log_b), log_b.shape[2]), float("-inf"))
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        steps = range(offsets[s], offsets[s + 1])
        for t in reversed(steps) if reverse else steps:
            if reset is not None:
                state = torch.where(reset[:, t, None], float("-inf"), state)
            decay = log_a if log_a.ndim == 1 else log_a[:, t]
            state = outputs[t] = torch.logaddexp(decay + state, log_b[:, t])
        finals.append(state)
    h = torch.stack([outputs[t] for t in range(time)], 1) if time else log_b
    return h, torch.cat(finals) if finals else log_b.new_zeros(0, log_b.shape[2])


def check_log_scan(case):
    into = directions(case.dtype, case.b.numel(), 64 * max(1, case.b.shape[2]))
    tensors = {{"a": "log_a", "b": "log_b"}.get(n, n): x for n, x in case.tensors.items()}

    def run(**inputs):
        return log_linear_scan(**inputs, **case.layout)

    got = differentiated(run, tensors, case.dtype, into, case.place)
    # a logarithm of size L is known to eps * L, and a gradient, a share, to as much relatively
    largest = max((float(x.abs().max()) for x in tensors.values() if x.numel()), default=0.0)
    plain = largest < (1e5 if case.dtype.itemsize > 2 else 100) and case.b.numel()

    def reference(**inputs):
        return log_loop(**inputs, **case.layout)

    if not plain or case.reset is not None or case.initial_state is None:
        # a logarithm of -inf has no gradient in the loop; values alone
        with torch.no_grad():
            truth, single = (
                dict(
                    zip(
                        ("h", "final_state"),
                        reference(**{n: x.to(d) for n, x in tensors.items()}),
                        strict=True,
                    )
                )
                for d in (torch.float64, torch.float32)
            )
        for name, gradient in list(got.items()):
            if name.startswith("gradient"):
                assert bool(gradient.isfinite().all()) or not plain, name
                del got[name]
    else:
        truth = differentiated(reference, tensors, torch.float64, into)
        single = differentiated(reference, tensors, torch.float32, into)
    for name in ("h", "final_state"):
        nothing = truth[name] == float("-inf")
        assert bool(((got[name] == float("-inf")) == nothing).all()), f"zero elsewhere in {name}"
    if case.dtype.itemsize == 2 or largest > 100:
        got = {name: x for name, x in got.items() if not name.startswith("gradient")}
    check_same("log_linear_scan", got, truth, single, case.dtype, roundings=64)


LOG_SCANS = scans(
    decays=numbers(0.0, float("-inf"), -1e-3, -700.0, 80.0),
    inputs=numbers(0.0, float("-inf"), -1e4, 1e4, 300.0),
    dtypes=REAL,
    low=-3.0,
)


@BUDGETS
@pytest.mark.parametrize("name", [share("log_linear_scan", 40)])
def test_log_linear_scan_is_the_loop(name, times):
    fuzzing.run(name, times, LOG_SCANS, check_log_scan)


def check_fft(case):
    a, b, state = prepared(case, case.a)
    h, final = fft_scan(a, b, state)
    expected, last = loop(case.a, case.b, case.initial_state) if b.shape[1] else (h, final)
    assert h.shape == b.shape
    for got, true in ((h, expected), (final, last)):
        check_close("fft_scan", got, true.to(WIDE[true.is_complex()]), roundings=256)


FFT_SCANS = scans(
    decays=numbers(0.0, 1.0, -1.0),
    inputs=numbers(0.0, -0.0, 1e-40),
    dtypes=(torch.float32, torch.float64, *COMPLEX),
    constant=True,
    packed=False,
).map(lambda case: replace(case, reset=None, reverse=False))


@BUDGETS
@pytest.mark.parametrize("name", [share("fft_scan", 20)])
def test_fft_scan_is_the_loop(name, times):
    fuzzing.run(name, times, FFT_SCANS, check_fft)


def gates(x, positive, normalise):
    """Decay and input of `gated_scan` from its equation."""
    value, *rest = x.unbind(2)
    if positive:
        value = torch.where(value >= 0, value + 0.5, value.sigmoid())
    if len(rest) == 1:
        return (-rest[0]).sigmoid(), rest[0].sigmoid() * value
    log_forget, log_take = (F.logsigmoid(part) for part in rest)
    if normalise:
        whole = torch.logaddexp(log_forget, log_take)
        log_forget, log_take = log_forget - whole, log_take - whole
    return log_forget.exp(), log_take.exp() * value


@st.composite
def gated(draw):
    batch, time = draw(st.sampled_from((0, 1, 2))), draw(st.sampled_from((0, 1, 2, 5, 9, 17)))
    channels, parts = draw(st.sampled_from((0, 1, 3, 16, 17))), draw(st.sampled_from((2, 3)))
    dtype = draw(st.sampled_from(REAL))
    x = draw(numbers(0.0, -0.0, 30.0, -30.0, -200.0, 1e4)).make(
        (batch, time, parts, channels), dtype
    )
    tensors = {"x": x}
    if draw(st.booleans()):
        tensors["initial_state"] = draw(numbers()).make((batch, channels), torch.float32)
    options = {
        "positive": draw(st.booleans()),
        "normalise": draw(st.booleans()),
        "start": draw(st.sampled_from((0.0, 0.5, -1.0))),
        "reset": draw(resets(batch, time)),
    }
    kind, seed = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return dtype, tensors, options, lambda x: placed(x, kind, seed)


def gated_loop(x, initial_state=None, *, positive, normalise, start, reset):
    keep, b = gates(x, positive, normalise)
    if initial_state is None:
        initial_state = x.new_full((len(x), x.shape[3]), start)
    if reset is not None:
        b = torch.where(reset[..., None], b + start * keep, b)
    return loop_scan(keep, b, initial_state, reset=reset)


def check_gated(case):
    dtype, tensors, options, place = case
    x = tensors["x"]
    into = directions(dtype, x[:, :, 0].numel(), len(x) * x.shape[3])
    got = differentiated(lambda **t: gated_scan(**t, **options), tensors, dtype, into, place)
    if not x.numel():
        assert bool(got["h"].isfinite().all())
        return
    truth, single = (
        differentiated(lambda **t: gated_loop(**t, **options), tensors, d, into)
        for d in (torch.float64, torch.float32)
    )
    check_same("gated_scan", got, truth, single, dtype, roundings=32)


@BUDGETS
@pytest.mark.parametrize("name", [share("gated_scan", 30)])
def test_gated_scan_is_its_equation(name, times):
    fuzzing.run(name, times, gated(), check_gated)


@st.composite
def selective(draw):
    batch, time = draw(st.sampled_from((0, 1, 2))), draw(st.sampled_from((0, 1, 2, 5, 17)))
    channels, states = draw(st.sampled_from((0, 1, 3, 16))), draw(st.sampled_from((0, 1, 2, 16)))
    dtype = draw(st.sampled_from(REAL))
    plain = numbers(0.0, -0.0, 1e-40)

    def some(*shape, low=None):
        return draw(plain).make(shape, dtype, low)

    tensors = {
        "x": some(batch, time, channels),
        "dt": draw(numbers()).make((batch, time, channels), dtype, 0.01),
        "A": -draw(numbers()).make((channels, states), dtype, 0.01)
        * draw(st.sampled_from((1, 16))),
        "B": some(batch, time, states),
        "C": some(batch, time, states),
    }
    optional = {
        "D": (channels,),
        "initial_state": (batch, channels, states),
        "z": (batch, time, channels),
        "dt_bias": (channels,),
    }
    for name, shape in optional.items():
        if draw(st.booleans()):
            # a step that is negative grows, and overflows
            tensors[name] = some(*shape, low=0.01 if name == "dt_bias" else None)
    options = {
        "dt_softplus": draw(st.booleans()),
        "b_disc": draw(st.sampled_from(("euler", "zoh"))),
        "reset": draw(resets(batch, time)),
    }
    kind, seed = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    backend = draw(st.sampled_from((None, *AVAILABLE)))
    return dtype, tensors, options, backend, lambda x: placed(x, kind, seed)


def selective_loop(
    x, dt, A, B, C, D=None, initial_state=None, z=None, dt_bias=None, *, dt_softplus, b_disc, reset
):
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    decay = torch.exp(dt[..., None] * A)
    weight = dt[..., None] if b_disc == "euler" else torch.expm1(dt[..., None] * A) / A
    state = x.new_zeros(len(x), *A.shape) if initial_state is None else initial_state
    ys = []
    for t in range(x.shape[1]):
        if reset is not None:
            state = torch.where(reset[:, t, None, None], 0, state)
        added = weight[:, t] * B[:, t, None] * x[:, t, :, None]
        state = decay[:, t] * state + added
        ys.append((state * C[:, t, None]).sum(-1))
    y = torch.stack(ys, 1) if ys else torch.zeros_like(x)
    y = y if D is None else y + D * x
    return y if z is None else y * F.silu(z), state


def check_selective(case):
    dtype, tensors, options, backend, place = case
    x, A = tensors["x"], tensors["A"]
    into = directions(dtype, x.numel(), len(x) * A.numel())

    def run(**inputs):
        return selective_scan(**inputs, **options, backend=backend)

    got = differentiated(run, tensors, dtype, into, place)
    if not x.numel():
        assert bool(got["h"].isfinite().all())
        return
    truth, single = (
        differentiated(lambda **t: selective_loop(**t, **options), tensors, d, into)
        for d in (torch.float64, torch.float32)
    )
    check_same(f"selective_scan {backend}", got, truth, single, dtype, roundings=64)


@BUDGETS
@pytest.mark.parametrize("name", [share("selective_scan", 30)])
def test_selective_scan_is_its_equation(name, times):
    fuzzing.run(name, times, selective(), check_selective)
