"""Laws about graphs, devices and options: what a layer must be beside a function of numbers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.state import map_state
from linrnn.testing._dynamic import Call, check_dynamic
from linrnn.testing._mixer_runs import (
    FORM_ROUNDINGS,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    compare,
    in_single,
    results,
    signal,
    to_single,
)
from linrnn.testing._one_device import one_device
from linrnn.testing._options import option_sets
from linrnn.testing._tolerance import BrokenPropertyError, check_true
from linrnn.typing import State

Run = Callable[..., tuple[Tensor, State]]

SIZES = ((11, 13, 9), (2, 70, 5), (5, 7, 19))
"""Batch, time and the steps read before, of the calls one graph must serve: shorter and longer than
any block. The first are no size of a layer, for a compiler takes equal sizes for the same one."""


def dynamic_shapes(make: MakeMixer, compiler: str = "eager") -> None:
    """One graph, exported or compiled, serves every batch and time, in every form.

    It starts from a state, and reads a reset mask where the form knows one.
    """
    for options in _forms(make):
        mixer = build(make, dtype=torch.float32, **options)
        calls = [call for call in _calls(mixer) if _answers(mixer, call)]
        check_true(f"forward {options}: refuses all sizes but one", len(calls) > 1)
        check_dynamic(f"forward {options}", mixer, calls, compiler)
    mixer = build(make, dtype=torch.float32)
    steps = [{"x_t": c["x"][:, 0], "state": c["state"]} for c in _calls(mixer)]
    check_dynamic("step", mixer.step, steps, compiler, export=False)


def _calls(mixer: Mixer) -> Iterator[Call]:
    resets = _knows_resets(mixer)
    for batch, time, prefix in SIZES:
        x = signal(batch, time, WIDTH, dtype=torch.float32).requires_grad_()
        read = signal(batch, prefix, WIDTH, dtype=torch.float32)
        state = map_state(Tensor.detach, mixer(read)[1])
        reset = torch.rand(batch, time, generator=torch.Generator().manual_seed(4)) < 0.2
        yield {"x": x, "state": state, **({"reset": reset} if resets else {})}


def _knows_resets(mixer: Mixer) -> bool:
    """Whether it reads a mask; a form may refuse them all."""
    like = next(mixer.parameters())
    x = torch.zeros(1, 2, mixer.d_model, dtype=like.dtype, device=like.device)
    return _answers(mixer, {"x": x, "reset": torch.zeros(1, 2, dtype=torch.bool, device=x.device)})


def _answers(mixer: Mixer, call: Call) -> bool:
    """Whether eager mode does not refuse the call, as a form may outside of its range."""
    try:
        with torch.no_grad():
            mixer(**call)
    except ArgumentError:
        return False
    return True


def untraceable(make: MakeMixer) -> None:
    """`torch.jit.trace`, whose graphs are right at one size only, is refused and told apart."""
    mixer = build(make, dtype=torch.float32)
    x = signal(2, 5, WIDTH, dtype=torch.float32)
    state = map_state(Tensor.detach, mixer(x)[1])

    def refused(what: str, run: Any, example: Tensor) -> None:
        try:
            torch.jit.trace(_Calling(mixer, run), (example,), check_trace=False)
        except ArgumentError as error:
            check_true(f"{what}: message {error}", "torch.export" in str(error))
        except Exception as error:
            raise BrokenPropertyError(f"{what} in a trace: {error!r:.200}") from error
        else:
            raise BrokenPropertyError(f"{what} in a trace must be refused, and was written down")

    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            refused("forward", lambda x: mixer(x)[0], x)
            refused("forward with a state", lambda x: mixer(x, state)[0], x)
            refused("step", lambda x: mixer.step(x, state)[0], x[:, 0])


class _Calling(nn.Module):
    """A call of a layer, as a module with its parameters: they are no constants of a trace."""

    def __init__(self, mixer: Mixer, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mixer, self.run = mixer, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def meta_device(make: MakeMixer) -> None:
    """Built without memory, a layer gives shapes and dtypes alone, and can be filled later.

    It is built so by ``device="meta"``, or inside of ``with torch.device("meta")``. Nothing of it
    meets a tensor of another device then, or in a call and its gradients.
    """
    for options in _forms(make):
        with _named(f"{options}"):
            with one_device():
                bare = build(make, device="meta", **options)
            with torch.device("meta"):
                inside = build(make, **options)
            _same_tensors(f"{options}: inside of torch.device('meta')", inside, bare)
            _check_bare(f"{options}", build(make, **options), bare)


def _same_tensors(what: str, got: Mixer, expected: Mixer) -> None:
    facts, expected_facts = (
        {
            name: (tensor.device.type, tuple(tensor.shape), tensor.dtype)
            for name, tensor in (*mixer.named_parameters(), *mixer.named_buffers())
        }
        for mixer in (got, expected)
    )
    differ = [
        f"{name} is {facts.get(name)}"
        for name in expected_facts
        if facts.get(name) != expected_facts[name]
    ]
    check_true(f"{what} {', '.join(differ)}", facts == expected_facts)


def _check_bare(what: str, real: Mixer, bare: Mixer) -> None:
    state = real.init_state(2)
    _same_outline(f"{what}: init_state", bare.init_state(2), state)
    meta_state = map_state(lambda h: h.to("meta"), state)
    x, mask = signal(2, 5, WIDTH), torch.ones(2, 5, dtype=torch.bool)
    for reset in (None, mask) if _knows_resets(real) else (None,):
        meta_x = x.to("meta").requires_grad_()
        with one_device():
            got = bare(meta_x, meta_state, reset=None if reset is None else reset.to("meta"))
            got[0].sum().backward()
        _same_outline(f"{what}: forward", got, real(x, state, reset=reset))
    with one_device():
        got = bare.step(x[:, 0].to("meta"), meta_state)
    _same_outline(f"{what}: step", got, real.step(x[:, 0], state))
    with torch.no_grad():
        # in eager mode, where a layer may keep what it computed of its weights for another call
        for _ in range(2):
            whole = bare(x.to("meta"), meta_state)
            got = bare.step(x[:, 0].to("meta"), meta_state)
        _same_outline(f"{what}: forward without gradients", whole, real(x, state))
        _same_outline(f"{what}: step without gradients", got, real.step(x[:, 0], state))
    filled: Any = bare.to_empty(device="cpu")
    for tensor in (*filled.parameters(), *filled.buffers()):
        tensor.detach().copy_(float("nan") if tensor.is_floating_point() else 0)
    filled.reset_parameters()
    for name, tensor in (*filled.named_parameters(), *filled.named_buffers()):
        check_true(f"{what}: reset_parameters leaves {name}", bool(tensor.isfinite().all()))
    check_true(f"{what}: not finite when filled", bool(filled(x)[0].isfinite().all()))


def _forms(make: MakeMixer) -> list[dict[str, Any]]:
    """The options that choose each form, the default first."""
    return [{}, *({"form": form} for form in build(make).forms[1:])]


def _same_outline(what: str, got: Any, expected: Any) -> None:
    for h, like in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        facts, expected_facts = (h.device.type, h.shape, h.dtype), ("meta", like.shape, like.dtype)
        check_true(
            f"{what} on the meta device is {facts}, must be {expected_facts}",
            facts == expected_facts,
        )


def every_option(make: MakeMixer) -> None:
    """With any options, one pass with resets is a loop of steps that starts anew at each.

    Gradients too, of input, state and every parameter; and with times, where they are taken. A
    mixer that draws random numbers as it trains does so as it evaluates.
    """
    for options in option_sets(make):
        with _named(f"{options}"):
            mixer = build(make, **options)
            x = signal(1, 5, WIDTH)
            if not torch.equal(mixer(x)[0], mixer(x)[0]):
                mixer.eval()
            state = busy_state(mixer, 1)
            reset = torch.tensor([[False, False, True, True, False]])
            mask = reset if _knows_resets(mixer) else torch.zeros_like(reset)
            ways: list[dict[str, Tensor]] = [{}]
            if mixer.timed and mixer.form not in mixer.without_dt:
                ways.append({"dt": 0.5 + signal(1, 5, 1)[..., 0].square()})
            for times in ways:
                passed = results(_one_pass(mixer, mask), mixer, x, state, **times)
                alone = results(_steps(mixer, mask), mixer, x, state, **times)
                single = partial(_single_steps, mixer, mask, x, state, times)
                compare(f"{options} {[*times]}", passed, alone, FORM_ROUNDINGS, single)


def _single_steps(
    mixer: Mixer, mask: Tensor, x: Tensor, state: State, times: dict[str, Tensor]
) -> dict[str, Tensor]:
    single = in_single(mixer)
    times = {name: to_single(z) for name, z in times.items()}
    run = _steps(single, mask)
    return results(run, single, to_single(x), map_state(to_single, state), **times)


def _one_pass(mixer: Mixer, reset: Tensor) -> Run:
    def run(x: Tensor, state: State, **times: Tensor) -> tuple[Tensor, State]:
        y, last = mixer(x, state, reset=reset if reset.any() else None, **times)
        # what is out of sight may still take room
        return y, state if "constant_memory" in mixer.declared else last

    return run


def _steps(mixer: Mixer, reset: Tensor) -> Run:
    def run(x: Tensor, state: State, **times: Tensor) -> tuple[Tensor, State]:
        ys, last = [], state
        for t, x_t in enumerate(x.unbind(1)):
            previous_state = mixer.init_state(1) if reset[0, t] else last
            now: Any = {name: z[:, t] for name, z in times.items()}
            y_t, last = mixer.step(x_t, previous_state, **now)
            ys.append(y_t)
        return torch.stack(ys, 1), state if "constant_memory" in mixer.declared else last

    return run


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Make any error a broken law that says what was tried."""
    try:
        yield
    except BrokenPropertyError:
        raise
    except Exception as error:
        raise BrokenPropertyError(f"{what}: {type(error).__name__}: {error!s:.200}") from error
