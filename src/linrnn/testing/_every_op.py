"""The laws that hold for every op, on every backend it has.

An op is defined by one step of it (`linrnn.testing._examples.Call`); how steps follow one another
in a batch, in packed sequences, over resets and backward is defined here once, for all of them.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from linrnn.cells import Cell
from linrnn.compute.backend import BACKENDS
from linrnn.compute.composed import Composed
from linrnn.compute.layout import accumulator_dtype, spans
from linrnn.compute.op import ALL, reached
from linrnn.errors import check_in
from linrnn.ops.cell.cell_scan import forms
from linrnn.testing._calls import Call
from linrnn.testing._derivatives import check_derivatives, varied
from linrnn.testing._devices import there
from linrnn.testing._dynamic import check_dynamic
from linrnn.testing._examples import calls, examples
from linrnn.testing._laid_out import TIME as _TIME
from linrnn.testing._laid_out import dtypes_in_turns, with_both_dtypes
from linrnn.testing._laid_out import layouts as _layouts
from linrnn.testing._laid_out import random_state as _random
from linrnn.testing._one_device import one_device
from linrnn.testing._op_laws import OP_PROPERTIES
from linrnn.testing._tolerance import (
    BrokenPropertyError,
    check_close,
    check_true,
    difference,
    epsilon,
)

Results = dict[str, Tensor]
Run = Callable[..., tuple[Tensor, Tensor]]

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
# what is not finite anywhere in a row is so everywhere: said there
_TRANSFORMED = ("fft_conv", "fft_scan")
_SIZES = ((11, 13), (2, 70), (5, 7))


def backends(op: str | Cell) -> list[str]:
    """The backends that compute an op on this machine's CPU; of a cell its forms.

    But for Newton's method, which is as accurate as it is asked to be.
    """
    if isinstance(op, Cell):
        call = next(calls(op))
        problems = forms(op, **call.arguments)
        return [form for form, why in problems.items() if why is None and form != "newton"]
    if isinstance(ALL[op], Composed):  # which takes none
        return ["auto"]
    problems = ALL[op].problems(torch.device("cpu"), torch.float32)
    available = [name for name in BACKENDS if problems[name] is None and name in ALL[op]._modules]
    return available if "tree" in available else [*available, "tree"]


def by_steps(call: Call, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The definition: one step after the other, each sequence from its state."""
    inputs = dict(arguments)
    state, reset, cu_seqlens, reverse = (
        inputs.pop(n, None) for n in ("initial_state", "reset", "cu_seqlens", "reverse")
    )
    like = inputs[call.steps[0]]
    empty = torch.as_tensor(call.empty, dtype=like.real.dtype, device=like.device)
    outputs: dict[int, Tensor] = {}
    finals = []
    for s, steps in enumerate(spans(like, cu_seqlens, bool(reverse))):
        rows = slice(None) if cu_seqlens is None else slice(s, s + 1)
        if state is None:
            h = empty.to(like.dtype if call.is_complex() else like.real.dtype)
            h = h.expand(like.shape[0], *call.state)
        else:
            h = state[rows]
        for t in steps:
            if reset is not None:
                cut = reset[:, t].view(-1, *(1 for _ in call.state))
                h = torch.where(cut, empty, h)
            now = {n: x[:, t] if n in call.steps else x for n, x in inputs.items()}
            outputs[t], h = call.step(now, h)
        finals.append(h)
    return torch.stack([outputs[t] for t in range(len(outputs))], 1), torch.cat(finals)


def matches_its_steps(
    op: str | Cell,
    backend: str,
    device: str = "cpu",
    time: int = _TIME,
    *,
    in_turns: bool = False,
    one_dtype: bool = False,
) -> None:
    """Outputs, final state and all gradients are those of its step, in every layout and dtype.

    ``in_turns``, a layout has one kind of call, or a quarter of the kinds, and not two or all.
    With ``one_dtype``, a call has one of the dtypes that `dtypes_in_turns` gives it, and not both.
    """
    double, single = torch.float64, torch.float32
    laid = _layouts(op, time, in_turns=in_turns)
    for call, layout, dtypes in dtypes_in_turns(laid) if one_dtype else with_both_dtypes(laid):
        for dtype in dtypes:
            exact = _cast({**call.arguments, **layout}, dtype)
            truth, loop = (_evaluate(call, _loop(call), exact, d) for d in (double, single))
            got = _evaluate(call, there(device, _on(call, backend)), exact, dtype)
            for name, value in got.items():
                error = difference(loop[name], truth[name])
                check_close(
                    f"{op} {backend} {dtype} {call.kind} {_named(layout)}: {name}",
                    value,
                    truth[name],
                    loop_error=error * epsilon(accumulator_dtype(dtype)) / epsilon(single),
                    roundings=call.roundings_of(value.dtype, dtype),
                )


def pieces_equal_one_pass(op: str | Cell, backend: str) -> None:
    """A sequence cut anywhere, or read step by step, with the state carried over."""
    cuts = itertools.cycle(((0, 11), (5, 6), (1, 3, 7), (1,) * 11))
    for call, layout, _ in _layouts(op):
        if "cu_seqlens" in layout:
            continue
        sizes = next(cuts)
        inputs, run = {**call.arguments, **layout}, _on(call, backend)
        one_pass = _evaluate(call, run, inputs, torch.float64)
        parts = _evaluate(call, _in_pieces(call, run, sizes), inputs, torch.float64)
        for name, value in parts.items():
            what = f"{op} {backend} {call.kind} {_named(layout)} in pieces of {sizes}: {name}"
            check_close(what, value, one_pass[name], roundings=64 * call.roundings)


def empty_sizes(op: str | Cell, backend: str) -> None:
    """No sequence, no step, no channel, one step: shapes, and the state goes through.

    Every argument has a gradient, of zeros where nothing depends on it.
    """
    sizes = ((0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 0, 0), (2, 1, 2))
    for (batch, time, channels), packed in itertools.product(sizes, (False, True)):
        for call in calls(op, 1 if packed else batch, time, channels):
            if packed and "cu_seqlens" in call.lacks:
                continue
            sequences = 2 if packed else batch
            h0 = torch.full((sequences, *call.state), 0.5, dtype=torch.float64)
            layout = {"cu_seqlens": torch.tensor([0, 0, time])} if packed else {}
            inputs = _leaves({**call.arguments, "initial_state": h0})
            y, final = _on(call, backend)(**inputs, **layout)
            what = f"{op} {backend} {call.kind} {(batch, time, channels)} packed={packed}"
            shape = (1 if packed else batch, time, channels * call.outputs)
            check_true(f"{what}: outputs {tuple(y.shape)}", y.shape == shape)
            check_true(f"{what}: final state {tuple(final.shape)}", final.shape == h0.shape)
            sources = {n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad}
            grads = torch.autograd.grad(
                final.abs().sum() + y.abs().sum(), list(sources.values()), materialize_grads=True
            )
            for name, grad in zip(sources, grads, strict=True):
                empty = y.numel() + final.numel() == 0 or (time == 0 and name in call.steps)
                fits = not (empty and grad.any()) and bool(grad.isfinite().all())
                check_true(f"{what}: gradient of {name}", fits)
            if time == 0:
                check_close(f"{what}: final state", final, h0.to(final.dtype))
                check_close(f"{what}: gradient of the state", grads[-1], torch.ones_like(h0))


def any_memory(op: str | Cell, backend: str) -> None:
    """Any strides give the same; no input is changed; a second call gives the same bits."""
    views: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
        lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
        lambda x: x.flip(-1).contiguous().flip(-1),
    )
    for call, layout, i in _layouts(op):
        inputs, run = {**call.arguments, **layout}, _on(call, backend)
        copies = {n: x.clone() for n, x in inputs.items() if isinstance(x, Tensor)}
        first, second = (_evaluate(call, run, inputs, torch.float64) for _ in range(2))
        for name, x in copies.items():
            check_true(
                f"{op} {backend} {call.kind}: {name} was changed", torch.equal(x, inputs[name])
            )
        viewed = {n: views[i % 3](x) if _differentiable(x) else x for n, x in inputs.items()}
        moved = _evaluate(call, run, viewed, torch.float64)
        for name, value in first.items():
            what = f"{op} {backend} {call.kind} {_named(layout)}: {name}"
            check_true(f"{what}: two runs differ", torch.equal(value, second[name]))
            check_close(f"{what}: other strides", moved[name], value, roundings=64)


def nothing_passes_a_cut(op: str | Cell, backend: str) -> None:
    """NaN, infinity and what overflows reach no step before, pass no reset, leave no sequence."""
    for bad, reverse in itertools.product((float("nan"), float("inf"), -1e200), (False, True)):
        for call in calls(op, 1, _TIME):
            if "reset" in call.lacks or (reverse and "reverse" in call.lacks):
                continue
            reset = torch.zeros(1, _TIME, dtype=torch.bool)
            reset[:, 4 if reverse else 6] = True
            inputs: dict[str, Any] = dict(call.arguments)
            for name in call.steps:
                inputs[name] = inputs[name].clone()
                inputs[name][:, 5] = bad
            behind, ahead = slice(None, 5), slice(6, None)
            behind, ahead = (behind, ahead) if reverse else (ahead, behind)
            if "reverse" not in call.lacks:
                inputs["reverse"] = reverse
            run = _on(call, backend)
            y, final = run(**inputs, reset=reset)
            what = f"{op} {backend} {call.kind} reverse={reverse}: {bad}"
            if op not in _TRANSFORMED:
                check_true(f"{what} reached a step before", bool(y[:, ahead].isfinite().all()))
            finite = y[:, behind].isfinite().all() and final.isfinite().all()
            check_true(f"{what} passed a reset", bool(finite))
            if "cu_seqlens" in call.lacks:
                continue
            y, final = run(**inputs, cu_seqlens=torch.tensor([0, 5, 6, _TIME]))
            y, final = torch.cat([y[:, :5], y[:, 6:]], 1), final[::2]
            check_true(
                f"{what} left its sequence", bool(y.isfinite().all() and final.isfinite().all())
            )


def derivatives(op: str | Cell, *, in_turns: bool = False) -> None:
    """`linrnn.testing.check_derivatives` of every example.

    ``in_turns``, one argument of each example is varied alone, the next in the next, and not all.
    """
    for i, example in enumerate(examples(op)):
        names = varied(example.arguments)
        singly = names[i % len(names)] if in_turns else True
        check_derivatives(example.name, example.function, example.arguments, singly=singly)


_UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")


def operators(op: str, *, ends: bool = False) -> None:
    """PyTorch's own checks of an operator: schema, fake, autograd, tracing with dynamic shapes.

    With ``ends``, the first and the last example are traced alone, which takes nearly all the time.
    """
    every = list(examples(op))
    for i, example in enumerate(every):
        traced = not ends or i in (0, len(every) - 1)
        checks: Any = {} if traced else {"test_utils": _UNTRACED}
        call = reached(example.function, **example.arguments)
        if call is None:
            raise BrokenPropertyError(f"{example.name}: comes to no operator")
        target, arguments, backend = call
        first, remaining = list(arguments[: target.gradients]), arguments[target.gradients :]
        inputs = (*tree_map(_wanting, first), *remaining)
        operands = target.operands(inputs, backend, keep=True)
        torch.library.opcheck(target.operator(), operands, **checks)


def meta_device(op: str) -> None:
    """Tensors without memory, of a batch, give shapes and dtypes alone, those of the results."""
    for call in calls(op):
        batch = call.arguments[call.steps[0]].shape[0]
        state = _random(batch, *call.state, is_complex=call.is_complex())
        for more in ({}, {"initial_state": state}):
            inputs = {**call.arguments, **more}
            bare = {n: x.to("meta") if isinstance(x, Tensor) else x for n, x in inputs.items()}
            with one_device():
                got, form = tree_flatten(call.function(**bare))
            true, expected = tree_flatten(call.function(**inputs))
            facts = [(x.device.type, x.shape, x.dtype) for x in got]
            outline = [("meta", x.shape, x.dtype) for x in true]
            what = f"{op} {call.kind} on the meta device is {form} of {facts}"
            check_true(f"{what}, not {expected} of {outline}", (facts, form) == (outline, expected))


def any_size_in_one_graph(
    op: str | Cell,
    backend: str,
    compiler: str = "aot_eager",
    kinds: int | None = None,
    in_turns: int | None = None,
) -> None:
    """One graph, exported or compiled, serves every batch, time and number of sequences.

    For as many kinds of calls; the first of them also packed. ``in_turns``, that is exported and
    its packed form compiled, for an odd number the other way round, and not both in both ways.
    """
    for i in range(len(list(calls(op))) if kinds is None else kinds):
        samples: list[dict[str, Any]] = []
        for batch, time in _SIZES:
            call = list(calls(op, batch, time))[i]
            inputs = _cast(call.arguments, torch.float32)
            state = _random(batch, *call.state, is_complex=call.is_complex())
            state = _cast({"": state}, torch.float32)[""]
            more = {"initial_state": state}
            if "reset" not in call.lacks:
                mask = torch.Generator().manual_seed(batch)
                more["reset"] = torch.rand(batch, time, generator=mask) < 0.2
            samples.append(_leaves({**inputs, **more}))
        has_packed = i == 0 and not call.lacks
        ways = _ways(in_turns if has_packed else None)
        _check_graph(op, backend, call, samples, compiler, reverse=bool(i % 2), **ways)
        if has_packed:
            samples = [_packed(op, *s) for s in _SIZES]
            ways = _ways(None if in_turns is None else in_turns + 1)
            _check_graph(op, backend, call, samples, compiler, reverse=True, **ways)


def _ways(turn: int | None) -> dict[str, bool]:
    """Whether a call is exported and whether it is compiled: both, or one of the two in turn."""
    return {"export": turn is None or turn % 2 == 0, "compiled": turn is None or turn % 2 == 1}


def _check_graph(
    op: str | Cell,
    backend: str,
    call: Call,
    samples: list[dict[str, Any]],
    compiler: str,
    reverse: bool,
    **ways: bool,
) -> None:
    options = {n: x for n, x in call.arguments.items() if not isinstance(x, Tensor)}
    if "reverse" not in call.lacks:
        options["reverse"] = reverse

    def run(**tensors: Any) -> Any:
        return call.function(**tensors, **options, backend=backend)

    tensors = [{n: x for n, x in c.items() if isinstance(x, Tensor)} for c in samples]
    check_dynamic(f"{op} {backend} {call.kind}", run, tensors, compiler, **ways)


def _packed(op: str | Cell, sequences: int, time: int) -> dict[str, Any]:
    call = next(calls(op, 1, time))
    cuts = torch.linspace(0, time, sequences + 1).long()
    return _leaves(
        {**call.arguments, "initial_state": _random(sequences, *call.state), "cu_seqlens": cuts}
    )


def _on(call: Call, backend: str) -> Run:
    def run(**arguments: Any) -> tuple[Tensor, Tensor]:
        y, final = call.function(**arguments, backend=backend)
        return y, final

    return run


def _loop(call: Call) -> Run:
    def run(**arguments: Any) -> tuple[Tensor, Tensor]:
        return by_steps(call, arguments)

    return run


def _in_pieces(call: Call, run: Run, sizes: tuple[int, ...]) -> Run:
    def pieces(**arguments: Any) -> tuple[Tensor, Tensor]:
        state, reverse = arguments.pop("initial_state", None), arguments.get("reverse")
        ends = list(itertools.accumulate(sizes))
        windows = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        outputs = []
        for window in reversed(windows) if reverse else windows:
            cut = {
                n: x[:, window] if n in (*call.steps, "reset") else x for n, x in arguments.items()
            }
            y, state = run(**cut, initial_state=state)
            outputs.append(y)
        assert state is not None
        return torch.cat(outputs[::-1] if reverse else outputs, 1), state

    return pieces


def _evaluate(call: Call, run: Run, values: dict[str, Any], dtype: torch.dtype) -> Results:
    """Outputs and all gradients, computed in ``dtype``."""
    inputs = _leaves(_cast(values, dtype))
    y, final = run(**inputs)
    leaves = {n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad}
    into = [cotangent(h) for h in (y, final)]
    grads = torch.autograd.grad([y, final], list(leaves.values()), into, materialize_grads=True)
    named = {f"gradient of {n}": g for n, g in zip(leaves, grads, strict=True)}
    return {"y": y.detach(), "final state": final.detach(), **named}


def cotangent(h: Tensor) -> Tensor:
    """One that every device computes alike and every dtype holds."""
    return ((torch.arange(h.numel(), device=h.device) % 15 - 7).view(h.shape) / 8).to(h.dtype)


def _cast(values: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Every number in ``dtype`` or its complex kind, states in what it accumulates in."""

    def cast(name: str, x: Any) -> Any:
        if not (_differentiable(x)):
            return x
        accumulator = accumulator_dtype(dtype)
        real = accumulator if name == "initial_state" else dtype
        return x.to(_COMPLEX[accumulator] if x.is_complex() else real)

    return {name: cast(name, x) for name, x in values.items()}


def _leaves(values: dict[str, Any]) -> dict[str, Any]:
    return {n: x.detach().requires_grad_() if _differentiable(x) else x for n, x in values.items()}


def _wanting(x: Any) -> Any:
    return x.clone().requires_grad_() if _differentiable(x) else x


def _differentiable(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def _named(layout: dict[str, Any]) -> str:
    return " ".join(n for n, x in layout.items() if x is not False)


#: Laws of every backend of an op, and those that concern the op alone.
BACKEND_LAWS: dict[str, Callable[..., None]] = {
    law.__name__: law
    for law in (
        matches_its_steps,
        pieces_equal_one_pass,
        empty_sizes,
        any_memory,
        nothing_passes_a_cut,
        any_size_in_one_graph,
    )
}
ALONE_LAWS: dict[str, Callable[[str], None]] = {
    law.__name__: law for law in (derivatives, operators, meta_device)
}


def check_cell(cell: Cell) -> None:
    """Check the laws of ops on every form of a cell but Newton's method: see `check_op`.

    The step is the function, one call after another in double precision; in every layout, with all
    gradients, in pieces, in any memory, in graphs of any size, with derivatives of derivatives.

    Raises:
        BrokenPropertyError: naming the law, the case and the error found.

    Example:
        >>> from linrnn.cells import cell
        >>> @cell(state="h")
        ... def leak(h, x):
        ...     h = 0.5 * h + x
        ...     return h, h
        >>> check_cell(leak)  # doctest: +SKIP
    """
    laws = [(law, (cell, form)) for law in BACKEND_LAWS.values() for form in backends(cell)]
    _check([*laws, (derivatives, (cell,))])


def check_op(name: str) -> None:
    """Check every law of an op on every backend it has here; nothing is listed.

    Args:
        name: of an op of `linrnn.ops`; or a backend, for all laws of `linear_scan` on it.

    Raises:
        BrokenPropertyError: naming the law, the case and the error found.
        BackendError: the backend cannot run on this machine.
        UnknownNameError: neither an op nor a backend.

    Example:
        >>> check_op("gated_scan")  # doctest: +SKIP
    """
    check_in("check_op", "name", name, (*ALL, *BACKENDS))
    if name in BACKENDS:
        laws: list[tuple[Callable[..., None], tuple[str, ...]]]
        laws = [(law, (name,)) for law in OP_PROPERTIES.values()]
    else:
        laws = [(law, (name,)) for law in ALONE_LAWS.values()]
        laws += [(law, (name, b)) for law in BACKEND_LAWS.values() for b in backends(name)]
    _check(laws)


def _check(laws: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for law, arguments in laws:
        try:
            law(*arguments)
        except BrokenPropertyError as error:
            raise BrokenPropertyError(f"{law.__name__}: {error}") from error
