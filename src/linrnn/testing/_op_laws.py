"""The laws of `linear_scan`, for any backend."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype
from linrnn.ops import linear_scan
from linrnn.testing._definition import loop_scan
from linrnn.testing._tolerance import (
    BrokenPropertyError,
    check_close,
    check_true,
    difference,
    epsilon,
)

Results = dict[str, Tensor]

HALF = (torch.bfloat16, torch.float16)
GRADCHECK: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}  # finite differences in float64 reach 1e-9


@dataclass(frozen=True, eq=False)  # so that a cache tells cases apart by which they are
class Case:
    """Arguments of one call, in double precision, and the cotangents of its results."""

    name: str
    a: Tensor
    b: Tensor
    initial_state: Tensor | None
    reset: Tensor | None
    cu_seqlens: Tensor | None
    reverse: bool
    into_h: Tensor
    into_final: Tensor

    @property
    def layout(self) -> dict[str, object]:
        return {"reset": self.reset, "cu_seqlens": self.cu_seqlens, "reverse": self.reverse}


@functools.lru_cache(maxsize=128)  # every backend is asked the same
def make_case(
    *,
    time: int = 33,
    batch: int = 2,
    channels: int = 5,
    constant: bool = False,
    initial: bool = True,
    resets: bool = False,
    packed: bool = False,
    reverse: bool = False,
    is_complex: bool = False,
    decay: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
) -> Case:
    """Random arguments; ``decay`` bounds the modulus of ``a``."""
    g = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if is_complex else torch.float64
    batch = 1 if packed else batch

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=g)

    shape = (channels,) if constant else (batch, time, channels)
    low, high = decay
    modulus = low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=g)
    angle = torch.rand(shape, dtype=torch.float64, generator=g) * 6.28
    a = torch.polar(modulus, angle) if is_complex else modulus
    cu_seqlens, seqs = None, batch
    if packed:  # an empty sequence first, in the middle and last
        cuts = torch.randint(0, time + 1, (3,), generator=g).sort().values.tolist()
        cu_seqlens = torch.tensor([0, 0, *cuts, cuts[-1], time, time])
        seqs = len(cu_seqlens) - 1
    name = (
        f"T={time} B={batch} C={channels} {'constant' if constant else 'varying'} a in {decay}"
        f"{' initial' if initial else ''}{' reset' if resets else ''}"
        f"{' packed' if packed else ''}{' reverse' if reverse else ''}"
        f"{' complex' if is_complex else ''}"
    )
    return Case(
        name=name,
        a=a,
        b=normal(batch, time, channels),
        initial_state=normal(seqs, channels) if initial else None,
        reset=torch.rand(batch, time, generator=g) < 0.2 if resets else None,
        cu_seqlens=cu_seqlens,
        reverse=reverse,
        into_h=normal(batch, time, channels),
        into_final=normal(seqs, channels),
    )


def layouts(*, is_complex: bool, times: tuple[int, ...] = (1, 2, 7, 33)) -> Iterator[Case]:
    """Every combination of constant a, initial state, resets, packing and direction."""
    flags = itertools.product((False, True), repeat=5)
    for i, (constant, initial, resets, packed, reverse) in enumerate(flags):
        yield make_case(
            time=times[i % len(times)],
            constant=constant,
            initial=initial,
            resets=resets,
            packed=packed,
            reverse=reverse,
            is_complex=is_complex,
            seed=i,
        )


def rounded(case: Case, dtype: torch.dtype) -> Case:
    """The case with its numbers rounded to ``dtype``, still in double precision."""
    state = accumulator_dtype(dtype)

    def through(x: Tensor, storage: torch.dtype) -> Tensor:
        return x.to(storage).to(x.dtype)

    return replace(
        case,
        a=through(case.a, dtype),
        b=through(case.b, dtype),
        into_h=through(case.into_h, dtype),
        initial_state=None if case.initial_state is None else through(case.initial_state, state),
        into_final=through(case.into_final, state),
    )


def evaluate(
    function: Callable[..., tuple[Tensor, Tensor]], case: Case, dtype: torch.dtype
) -> Results:
    """Outputs and all gradients of ``function`` on the case, computed in ``dtype``."""
    state = accumulator_dtype(dtype)
    inputs = {"grad_a": case.a.detach().to(dtype), "grad_b": case.b.detach().to(dtype)}
    if case.initial_state is not None:
        inputs["grad_initial_state"] = case.initial_state.detach().to(state)
    for x in inputs.values():
        x.requires_grad_()
    h, final = function(
        inputs["grad_a"], inputs["grad_b"], inputs.get("grad_initial_state"), **case.layout
    )
    cotangents = [case.into_h.to(h.dtype), case.into_final.to(final.dtype)]
    grads = torch.autograd.grad([h, final], list(inputs.values()), cotangents)
    return {"h": h, "final_state": final, **dict(zip(inputs, grads, strict=True))}


def compare(backend: str | None, case: Case, dtype: torch.dtype) -> None:
    """Outputs and gradients on ``backend`` against the float64 loop.

    The loop's own error in ``dtype`` is measured in single precision and scaled, so that float64,
    whose loop is the truth itself, is held to the same standard.
    """
    case, truth, loop_errors = _expected(case, dtype)

    def run(*args: object, **layout: object) -> tuple[Tensor, Tensor]:
        return linear_scan(*args, backend=backend, **layout)  # type: ignore[arg-type]

    for name, got in evaluate(run, case, dtype).items():
        what = f"{backend} {dtype} {case.name}: {name}"
        check_close(what, got, truth[name], loop_error=loop_errors[name])


@functools.lru_cache(maxsize=128)  # the loops take longer than all backends together
def _expected(case: Case, dtype: torch.dtype) -> tuple[Case, Results, dict[str, float]]:
    """The case in ``dtype``, its results by the float64 loop, and the error of a loop in it."""
    case = rounded(case, dtype)
    double = torch.complex128 if case.b.is_complex() else torch.float64
    single = torch.complex64 if case.b.is_complex() else torch.float32
    truth = {name: x.detach() for name, x in evaluate(loop_scan, case, double).items()}
    loop = evaluate(loop_scan, case, single)
    scale = epsilon(accumulator_dtype(dtype)) / epsilon(single)
    return case, truth, {name: scale * difference(loop[name], x) for name, x in truth.items()}


def matches_loop(backend: str) -> None:
    """Outputs, final state and all gradients are those of the float64 loop, in every layout."""
    with _PoisonedMemory():
        for is_complex, dtype in ((False, torch.float64), (True, torch.complex128)):
            for case in layouts(is_complex=is_complex):
                compare(backend, case, dtype)
        for is_complex, dtype in ((False, torch.float32), (True, torch.complex64)):
            for case in layouts(is_complex=is_complex, times=(63, 100)):
                compare(backend, case, dtype)


def every_shape(backend: str) -> None:
    """One to many channels, at lengths around the block sizes of kernels."""
    with _PoisonedMemory():
        for time, channels in itertools.product((1, 63, 65), (1, 2, 3, 4, 8, 17, 64)):
            for is_complex in (False, True):
                case = make_case(
                    time=time, channels=channels, batch=3, is_complex=is_complex, seed=channels
                )
                compare(backend, case, torch.complex64 if is_complex else torch.float32)


def long_memory(backend: str) -> None:
    """Decays of exactly 0 and 1 and just below 1, over 10,000 steps, narrow and wide."""
    for constant, is_complex in itertools.product((False, True), repeat=2):
        exactly = 0.0 if constant == is_complex else 1.0  # each of the two meets each value
        for decay in ((exactly, exactly), (0.9999, 1.0)):
            case = make_case(
                time=10_000,
                channels=24,  # enough that a loop is not lucky in all of them
                batch=1,
                constant=constant,
                is_complex=is_complex,
                decay=decay,
            )
            compare(backend, case, torch.complex64 if is_complex else torch.float32)


def half_precision(backend: str) -> None:
    """bfloat16 and float16 storage is accumulated, and the state returned, in float32."""
    for dtype in HALF:
        ones = torch.ones(1, 4, 3, dtype=dtype)
        _, final = linear_scan(ones[0, 0], ones, backend=backend)
        check_true(f"{backend} {dtype}: final state must be float32", final.dtype == torch.float32)
        for case in layouts(is_complex=False, times=(9, 33)):
            compare(backend, case, dtype)


def splits(backend: str) -> None:
    """A sequence cut anywhere, the state carried over, gives what one pass gives."""
    for i, case in enumerate(layouts(is_complex=True, times=(33,))):
        if case.cu_seqlens is not None:
            continue
        cut = (0, 1, 5, 32, 33)[i % 5]
        one_pass = evaluate(_on(backend), case, torch.complex128)
        parts = evaluate(_split_at(_on(backend), cut), case, torch.complex128)
        for name, got in parts.items():
            check_close(
                f"{backend} cut at {cut}, {case.name}: {name}", got, one_pass[name], roundings=64
            )


def _on(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(*args: object, **layout: object) -> tuple[Tensor, Tensor]:
        return linear_scan(*args, backend=backend, **layout)  # type: ignore[arg-type]

    return run


def _split_at(
    function: Callable[..., tuple[Tensor, Tensor]], cut: int
) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        a: Tensor,
        b: Tensor,
        state: Tensor | None,
        *,
        reset: Tensor | None,
        reverse: bool,
        cu_seqlens: None,
    ) -> tuple[Tensor, Tensor]:
        pieces: dict[int, Tensor] = {}
        parts = [slice(None, cut), slice(cut, None)]
        for i in (1, 0) if reverse else (0, 1):
            part = parts[i]
            pieces[i], state = function(
                a if a.ndim == 1 else a[:, part],
                b[:, part],
                state,
                reset=None if reset is None else reset[:, part],
                reverse=reverse,
            )
        assert state is not None
        return torch.cat([pieces[0], pieces[1]], 1), state

    return run


def gradients(backend: str) -> None:
    """`gradcheck` and `gradgradcheck` in double precision, in every layout.

    Half of the layouts is real and half complex, such that all kinds of any four flags meet both.
    """
    for is_complex in (False, True):
        for i, case in enumerate(layouts(is_complex=is_complex, times=(4,))):
            if i.bit_count() % 2 != is_complex:
                continue
            inputs = [case.a, case.b]
            inputs += [] if case.initial_state is None else [case.initial_state]
            inputs = [x[..., :2].contiguous().requires_grad_() for x in inputs]

            def run(*args: Tensor, case: Case = case) -> tuple[Tensor, Tensor]:
                return _on(backend)(*args, **case.layout)

            try:
                torch.autograd.gradcheck(run, inputs, fast_mode=True, **GRADCHECK)
                torch.autograd.gradgradcheck(run, inputs, fast_mode=True, **GRADCHECK)
            except RuntimeError as error:
                raise BrokenPropertyError(f"{backend} {case.name}: {error}") from error


def isolation(backend: str) -> None:
    """NaN and infinity do not pass a reset, nor from one packed sequence into another."""
    for bad in (float("nan"), float("inf")):
        for constant in (False, True):
            case = make_case(time=16, batch=1, constant=constant, decay=(0.5, 1.0))
            b = case.b.clone()
            b[:, 7] = bad
            reset = torch.zeros(1, 16, dtype=torch.bool)
            reset[:, 8] = True
            h, _ = linear_scan(case.a, b, reset=reset, backend=backend)
            check_true(f"{backend}: {bad} passed a reset", bool(h[:, 8:].isfinite().all()))
            cu_seqlens = torch.tensor([0, 8, 16])
            h, _ = linear_scan(case.a, b, cu_seqlens=cu_seqlens, backend=backend)
            check_true(f"{backend}: {bad} left its sequence", bool(h[:, 8:].isfinite().all()))
            h, _ = linear_scan(case.a, b, cu_seqlens=cu_seqlens, reverse=True, backend=backend)
            check_true(f"{backend}: {bad} came in reverse", bool(h[:, 8:].isfinite().all()))


def isolation_across_chunks(backend: str) -> None:
    """NaN does not pass a reset where a kernel cuts a long time into chunks."""
    case = make_case(time=40_000, batch=1, channels=4, decay=(0.5, 1.0))
    b = case.b.clone()
    b[:, 7] = float("nan")
    reset = torch.zeros(1, 40_000, dtype=torch.bool)
    reset[:, 10_000] = True
    h, final = linear_scan(case.a, b, reset=reset, backend=backend)
    finite = h[:, 10_000:].isfinite().all() and final.isfinite().all()
    check_true(f"{backend}: NaN passed a reset far behind it", bool(finite))


def edges(backend: str) -> None:
    """Empty batches, times and channels: shapes, states and their gradients are right."""
    for batch, time, channels in ((0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 0, 0)):
        b = torch.ones(batch, time, channels, requires_grad=True)
        h0 = torch.full((batch, channels), 2.0, requires_grad=True)
        a = torch.ones(channels, requires_grad=True)
        h, final = linear_scan(a, b, h0, backend=backend)
        what = f"{backend} empty {(batch, time, channels)}"
        check_true(f"{what}: shape of h {tuple(h.shape)}", h.shape == b.shape)
        check_close(f"{what}: final state", final, h0)
        (grad,) = torch.autograd.grad(h.sum() + final.sum(), h0)
        check_close(f"{what}: gradient of the state", grad, torch.ones_like(h0))


def layouts_in_memory(backend: str) -> None:
    """Several channel axes or none, any strides, broadcast decays, lazily conjugated inputs."""
    case = make_case(time=9, channels=6, initial=True)
    a, b, h0 = case.a, case.b, case.initial_state
    assert h0 is not None
    expected, last = loop_scan(a, b, h0)
    four = (2, 9, 3, 2)
    h, final = linear_scan(a.view(four), b.view(four), h0.view(2, 3, 2), backend=backend)
    check_close(f"{backend} two channel axes", h, expected.view(four))
    check_close(f"{backend} two channel axes, state", final, last.view(2, 3, 2))
    h, final = linear_scan(a[..., 0], b[..., 0], h0[..., 0], backend=backend)
    check_close(f"{backend} no channel axis", h, expected[..., 0])
    check_close(f"{backend} no channel axis, state", final, last[..., 0])
    views: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("transposed time", lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)),
        ("every other channel", lambda x: torch.stack([x, x.neg()], -1).flatten(-2)[..., ::2]),
        ("channels first", lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)),
    )
    for name, view in views:
        h, _ = linear_scan(view(a), view(b), h0, backend=backend)
        check_close(f"{backend} {name}", h, expected)
    h, _ = linear_scan(a[:1, :, :1], b, h0, backend=backend)
    truth, _ = loop_scan(a[:1, :, :1].expand(b.shape), b, h0)
    check_close(f"{backend} broadcast decay", h, truth)
    conj = b.to(torch.complex128).mul(1 + 2j)
    h, _ = linear_scan(a.to(conj.dtype), conj.conj(), backend=backend)
    truth, _ = loop_scan(a, conj.conj().resolve_conj())
    check_close(f"{backend} lazily conjugated", h, truth)


def deterministic(backend: str) -> None:
    """The same call gives the same bits, backward included; inputs are left alone."""
    for channels in (3, 256):
        case = make_case(time=4096, channels=channels, constant=True, resets=True)
        copies = [case.a.clone(), case.b.clone()]
        first = evaluate(_on(backend), case, torch.float64)
        second = evaluate(_on(backend), case, torch.float64)
        for name, x in first.items():
            check_true(f"{backend} {name}: two runs differ", torch.equal(x, second[name]))
        same = torch.equal(copies[0], case.a) and torch.equal(copies[1], case.b)
        check_true(f"{backend}: an input was modified", same)


def compiles(backend: str, compiler: str = "aot_eager") -> None:
    """``torch.compile(fullgraph=True)`` gives the numbers of eager mode, gradients included."""
    for packed in (False, True):
        case = make_case(time=17, packed=packed, resets=True, is_complex=True)
        eager = evaluate(_on(backend), case, torch.complex64)
        torch._dynamo.reset()
        compiled = torch.compile(_on(backend), fullgraph=True, backend=compiler)
        for name, got in evaluate(compiled, case, torch.complex64).items():
            check_close(f"{backend} compiled, {case.name}: {name}", got, eager[name])


class _PoisonedMemory:
    """Fill what ``torch.empty`` returns with NaN, so that an unwritten output shows."""

    def __enter__(self) -> None:
        self.before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error: object) -> None:
        torch.use_deterministic_algorithms(self.before)


OP_PROPERTIES: dict[str, Callable[[str], None]] = {
    law.__name__: law
    for law in (
        matches_loop,
        every_shape,
        long_memory,
        half_precision,
        splits,
        gradients,
        isolation,
        isolation_across_chunks,
        edges,
        layouts_in_memory,
        deterministic,
        compiles,
    )
}
