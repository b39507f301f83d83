"""The law of time: what a layer makes of the time between steps, or that it refuses to be told."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DeviceError, DTypeError, LinrnnError, ShapeError
from linrnn.mixers import Mixer
from linrnn.state import leaves, map_state, ordered
from linrnn.testing._dynamic import check_dynamic
from linrnn.testing._mixer_runs import (
    BATCH,
    FORM_ROUNDINGS,
    TIME,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    compare,
    in_pieces,
    results,
    signal,
    stepwise,
)
from linrnn.testing._options import texts_and_flags
from linrnn.testing._tolerance import BrokenPropertyError, check_close, check_true
from linrnn.typing import State

GRADCHECK: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}  # finite differences in float64 reach 1e-9
EDGES = (0.0, 1e-30, 1e3, 1e6, 1e18)
SIZES = ((11, 13), (2, 37))  # of the calls one graph must serve


def times(make: MakeMixer) -> None:
    """Times of one are none; others are read alike in one call, in pieces and in steps, or refused.

    Times of 0, and of any size, have finite results and gradients, in training too, or are refused.
    By every form that takes them, with every gradient, that of the times too; resets start
    sequences of their own; a graph is open in its sizes; what is no time is refused.
    """
    mixer = build(make)
    x, state, dt = signal(BATCH, TIME, WIDTH), busy_state(mixer), gaps(BATCH, TIME)
    if not mixer.timed:
        _refused("a time", ArgumentError, lambda: mixer(x, state, dt=dt))
        _refused("a time of a step", ArgumentError, lambda: mixer.step(x[:, 0], state, dt=dt[:, 0]))
        return
    untimed = results(mixer, mixer, x, state)
    ones = results(mixer, mixer, x, state, dt=torch.ones_like(dt))
    check_true("the times have no gradient", "grad dt" in ones)
    del ones["grad dt"]
    compare("times of 1 against none", ones, untimed, FORM_ROUNDINGS)
    _read_alike(make, mixer, x, state, dt)
    _resets(mixer)
    _sees_its_own(mixer, x, state, dt)
    _gradients(mixer)
    _numbers_of_any_kind(make, mixer, x, state, dt)
    _what_is_no_time(mixer, x, state, dt)
    _edges(make)
    single = build(make, dtype=torch.float32)
    calls = [_call(single, *size) for size in SIZES]
    check_dynamic("forward with dt", single, calls, compiled=False)  # `compiles` takes longer


def gaps(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 5) -> Tensor:
    """Times between steps, uniform between 0.2 and 1.8, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return (0.2 + 1.6 * torch.rand(shape, dtype=torch.float64, generator=generator)).to(dtype)


def _read_alike(make: MakeMixer, mixer: Mixer, x: Tensor, state: State, dt: Tensor) -> None:
    expected = results(mixer, mixer, x, state, dt=dt)
    check_true("y is the same with any times", not torch.equal(expected["y"], mixer(x, state)[0]))
    steps = results(stepwise(mixer), mixer, x, state, dt=dt)
    compare("loop of steps", steps, expected, FORM_ROUNDINGS)
    for lengths in ((1, 18), (7, 0, 12)):
        got = results(in_pieces(mixer, *lengths), mixer, x, state, dt=dt)
        compare(f"split into {lengths}", got, expected, FORM_ROUNDINGS)
    for form in mixer.forms[1:]:
        layer = build(make, form=form)
        if form in mixer.without_dt:
            _refused(f"form {form!r}", ArgumentError, lambda layer=layer: layer(x, state, dt=dt))  # type: ignore[misc]
            continue
        layer.load_state_dict(mixer.state_dict())
        got = results(layer, layer, x, state, dt=dt)
        compare(f"form {form!r}", got, expected, FORM_ROUNDINGS)


def _resets(mixer: Mixer) -> None:
    """Sequences in one row, marked by resets, are what each is alone, with its own times."""
    if "reset_and_packing" in mixer.declared:
        return
    x, state, dt = signal(1, TIME, WIDTH), busy_state(mixer, 1), gaps(1, TIME)
    reset = torch.zeros(1, TIME, dtype=torch.bool)
    reset[:, [4, 5, 12]] = True
    y, last = mixer(x, state, reset=reset, dt=dt)
    pieces = zip(x.split([4, 1, 7, 7], 1), dt.split([4, 1, 7, 7], 1), strict=True)
    starts = [state, None, None, None]
    alone = [mixer(z, h, dt=d) for (z, d), h in zip(pieces, starts, strict=True)]
    check_close("packed", y, torch.cat([p[0] for p in alone], 1), roundings=FORM_ROUNDINGS)
    if "constant_memory" not in mixer.declared:
        for got, expected in zip(leaves(last), leaves(alone[-1][1]), strict=True):
            check_close("state of the last one", got, expected, roundings=FORM_ROUNDINGS)


def _sees_its_own(mixer: Mixer, x: Tensor, state: State, dt: Tensor) -> None:
    """No output depends on a later time, nor on those of another row."""
    dt = dt.clone().requires_grad_()
    y, _ = mixer(x, state, dt=dt)
    t = TIME // 2
    (early,) = torch.autograd.grad(y[1, :t].sum(), dt, retain_graph=True)
    check_true(f"an output before step {t} depends on its time", not early[:, t:].any())
    check_true("an output depends on the times of another row", not early[::2].any())
    check_true("the gradient of the times is 0", bool(early.any()))


def _gradients(mixer: Mixer) -> None:
    """`gradcheck` of input, times and state; parameters are compared with a loop of steps."""
    x, state, dt = signal(2, 4, WIDTH), busy_state(mixer, 2), gaps(2, 4)
    structure = ordered(state)  # as `leaves` takes it apart

    def run(x: Tensor, dt: Tensor, *state_leaves: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(state_leaves)
        y, last = mixer(x, map_state(lambda _: next(remaining), structure), dt=dt)
        return y, *(h for h in leaves(last) if h.requires_grad)

    arguments = (x.requires_grad_(), dt.requires_grad_(), *leaves(state))
    try:
        torch.autograd.gradcheck(run, arguments, fast_mode=True, **GRADCHECK)
    except RuntimeError as error:
        raise BrokenPropertyError(f"gradcheck with times: {error}") from error


def _numbers_of_any_kind(
    make: MakeMixer, mixer: Mixer, x: Tensor, state: State, dt: Tensor
) -> None:
    """Times of any real dtype, of 0, and without memory."""
    rough = dt.half()
    check_close(
        "times of float16", mixer(x, state, dt=rough)[0], mixer(x, state, dt=rough.double())[0]
    )
    y, last = mixer(x, state, dt=torch.zeros_like(dt))
    finite = all(bool(h.isfinite().all()) for h in (y, *leaves(last)))
    check_true("times of 0: y or the state is not finite", finite)
    half = build(make, dtype=torch.bfloat16)
    y, last = half(x.bfloat16(), dt=dt)
    check_true(f"bfloat16: y is {y.dtype}", y.dtype == torch.bfloat16)
    kinds = [
        (h.dtype, like.dtype)
        for h, like in zip(leaves(last), leaves(half.init_state(1)), strict=True)
    ]
    check_true(f"bfloat16: the state has dtypes {kinds}", all(a == b for a, b in kinds))
    bare = build(make, device="meta")
    meta_state = map_state(lambda h: h.detach().to("meta"), state)
    y, last = bare(x.to("meta"), meta_state, dt=dt.to("meta"))
    same = [h.shape == like.shape for h, like in zip(leaves(last), leaves(state), strict=True)]
    check_true("another shape on the meta device", y.shape == x.shape and all(same))


def _edges(make: MakeMixer) -> None:
    """Times of 0, next to it, and huge, at every step or at one: finite, or refused."""
    x = signal(2, TIME, WIDTH, dtype=torch.float32)
    for options in ({}, *texts_and_flags(make)):
        mixer = build(make, dtype=torch.float32, **options)
        if mixer.form in mixer.without_dt:
            continue
        for training in {False, mixer.random_training}:
            mixer.train(training)
            for size, everywhere in itertools.product(EDGES, (True, False)):
                dt = torch.ones(2, TIME)
                dt[:, slice(None) if everywhere else TIME // 2] = size
                try:
                    got = results(mixer, mixer, x, mixer.init_state(2), dt=dt)
                except ArgumentError:
                    continue
                where = "everywhere" if everywhere else "at one step"
                for name, value in got.items():
                    check_true(
                        f"times of {size:g} {where}, {options}, training {training}: {name} is not "
                        "finite",
                        bool(value.isfinite().all()),
                    )


def _what_is_no_time(mixer: Mixer, x: Tensor, state: State, dt: Tensor) -> None:
    x_t, negative = x[:, 0], dt.clone()
    negative[1, 3] = -0.5
    attempts: list[tuple[str, type[LinrnnError], Callable[[], object]]] = [
        ("times of another length", ShapeError, lambda: mixer(x, state, dt=dt[:, 1:])),
        ("times of another batch", ShapeError, lambda: mixer(x, state, dt=dt[:2])),
        ("one time a row", ShapeError, lambda: mixer(x, state, dt=dt[:, 0])),
        ("all times for a step", ShapeError, lambda: mixer.step(x_t, state, dt=dt)),
        ("integers", DTypeError, lambda: mixer(x, state, dt=dt.long())),
        ("complex times", DTypeError, lambda: mixer(x, state, dt=dt.to(torch.complex128))),
        ("a number", DTypeError, lambda: mixer(x, state, dt=0.5)),
        ("another device", DeviceError, lambda: mixer(x, state, dt=dt.to("meta"))),
        ("an endless time", ArgumentError, lambda: mixer(x, state, dt=dt / 0)),
        ("no number", ArgumentError, lambda: mixer(x, state, dt=dt * float("nan"))),
        ("a negative time", ArgumentError, lambda: mixer(x, state, dt=negative)),
        ("a negative one of a step", ArgumentError, lambda: mixer.step(x_t, state, dt=-dt[:, 0])),
    ]
    for what, expected, attempt in attempts:
        _refused(what, expected, attempt)


def _refused(what: str, expected: type[LinrnnError], attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except expected as error:
        clear = "dt must" in str(error) and "got" in str(error)
        check_true(f"{what}: message {error} does not say what dt must be", clear)
    except Exception as error:
        raise BrokenPropertyError(
            f"{what}: must raise {expected.__name__}, got {error!r}"
        ) from error
    else:
        raise BrokenPropertyError(f"{what}: must raise {expected.__name__}, raised nothing")


def _call(mixer: Mixer, batch: int, time: int) -> dict[str, Any]:
    x = signal(batch, time, WIDTH, dtype=torch.float32)
    state = map_state(Tensor.detach, mixer(signal(batch, 5, WIDTH, dtype=torch.float32))[1])
    dt = gaps(batch, time, dtype=torch.float32).requires_grad_()
    return {"x": x, "state": state, "dt": dt}
