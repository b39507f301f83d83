"""Layers, signals, states and ways to run a layer, shared by the laws of mixers."""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.nn.parameters import working_dtype
from linrnn.state import leaves, map_state
from linrnn.testing._tolerance import (
    check_agrees,
    check_true,
)
from linrnn.typing import State

MakeMixer = Callable[..., Mixer]
"""Called as ``make(d_model=..., form=..., dtype=...)``; ``form`` only where there is a choice."""

WIDTH, BATCH, TIME = 6, 3, 19
FORM_ROUNDINGS = 2**14  # forms order their sums differently, an FFT more than most


def build(make: MakeMixer, *, dtype: torch.dtype = torch.float64, **options: Any) -> Mixer:
    """A mixer with the same random parameters at every call, without noise."""
    torch.manual_seed(0)
    return quiet(make(**{"d_model": WIDTH, "dtype": dtype, **in_laws(make), **options}))


def in_laws(make: MakeMixer) -> Mapping[str, Any]:
    """`Mixer.in_laws` of what is made, less what ``make`` itself sets."""
    set_already = getattr(make, "keywords", {})  # of a partial
    mixer = getattr(make, "func", make)
    return {n: x for n, x in getattr(mixer, "in_laws", {}).items() if n not in set_already}


def in_each_form(make: MakeMixer, **options: Any) -> Iterator[tuple[str, Mixer]]:
    """Every form that these options allow, by name, with the same parameters."""
    first = build(make, **options)
    for form in first.forms:
        if form == first.form:
            yield form, first
            continue
        try:
            yield form, build(make, **{**options, "form": form})
        except ArgumentError:  # an option may stand for one form alone
            continue


def quiet(mixer: Mixer) -> Mixer:
    """In evaluation where training is random; elsewhere the two must not differ."""
    return mixer.eval() if mixer.random_training else mixer


def signal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Standard normal numbers, the same at every call."""
    return torch.randn(shape, dtype=torch.float64, generator=_generator(seed)).to(dtype)


def busy_state(mixer: Mixer, batch: int = BATCH) -> State:
    """A state that has read something, as leaves that ask for their gradient.

    Raises:
        BrokenPropertyError: a part of the state lost its gradient and `Mixer.constant_state` does
            not say that it has none.
    """
    x = signal(batch, 5, mixer.d_model, dtype=working_dtype(mixer), seed=2)
    state = mixer(x.requires_grad_())[1]  # a part may hold nothing but past inputs
    for path, h in tree_flatten_with_path(state)[0]:
        constant = any(getattr(key, "key", None) in mixer.constant_state for key in path)
        check_true(
            f"state{keystr(path)} {'has a' if constant else 'has no'} gradient",
            h.requires_grad != constant,
        )
    return map_state(lambda h: h.detach().clone().requires_grad_(h.requires_grad), state)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def detached(state: State) -> State:
    """A copy of a state whose parts are leaves that require gradients as before."""
    return map_state(lambda h: h.detach().clone().requires_grad_(h.requires_grad), state)


def results(
    run: Callable[..., tuple[Tensor, State]],
    mixer: Mixer,
    x: Tensor,
    state: State,
    **extras: Tensor,
) -> dict[str, Tensor]:
    """Output, final state and the gradients of input, initial state and every parameter.

    ``extras`` are arguments of ``run`` by name; the results include their gradients.
    """
    x, state = x.detach().clone().requires_grad_(), detached(state)
    extras = {n: z.detach().clone().requires_grad_() for n, z in extras.items()}
    mixer.zero_grad()
    y, last = run(x, state, **extras)
    named = {"y": y, **{f"state[{i}]": h for i, h in enumerate(leaves(last))}}
    sources = {"grad x": x, **{f"grad state[{i}]": h for i, h in enumerate(leaves(state))}}
    sources |= {f"grad {n}": z for n, z in (*extras.items(), *mixer.named_parameters())}
    sources = {n: s for n, s in sources.items() if s.requires_grad}
    targets = [h for h in named.values() if h.requires_grad]
    cotangents = [
        torch.randn(h.shape, dtype=h.dtype, generator=_generator(i)) for i, h in enumerate(targets)
    ]
    grads = torch.autograd.grad(targets, list(sources.values()), cotangents, allow_unused=True)
    named |= {n: g for n, g in zip(sources, grads, strict=True) if g is not None}
    return named


def compare(
    what: str,
    got: dict[str, Tensor],
    expected: dict[str, Tensor],
    roundings: float,
    other_precision: Callable[[], dict[str, Tensor]] | None = None,
) -> None:
    """Every entry agrees, and there are the same ones.

    What differs by more may have the own error of what is expected: ``other_precision`` gives that
    in float32 or float64.
    """
    check_true(f"{what}: {sorted(got)} are not {sorted(expected)}", got.keys() == expected.keys())
    others = None if other_precision is None else functools.cache(other_precision)
    for name, value in got.items():
        check_agrees(f"{what}: {name}", value, expected[name], others, name, roundings=roundings)


def in_single(mixer: Mixer) -> Mixer:
    """A copy with parameters of float32."""
    return copy.deepcopy(mixer).float()


def to_single(x: Tensor) -> Tensor:
    """A leaf of half the precision, if it is a number that has one."""
    kinds = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    return x.detach().to(kinds.get(x.dtype, x.dtype)).requires_grad_(x.requires_grad)


def to_double(x: Tensor) -> Tensor:
    """A leaf in the precision of float64, if it is a number that has one."""
    wider = x.dtype.is_floating_point or x.dtype.is_complex
    dtype = torch.promote_types(x.dtype, torch.float64) if wider else x.dtype
    return x.detach().to(dtype).requires_grad_(x.requires_grad)


def stepwise(mixer: Mixer) -> Callable[..., tuple[Tensor, State]]:
    """The mixer as a loop of `Mixer.step`."""

    def run(x: Tensor, state: State, **extras: Tensor) -> tuple[Tensor, State]:
        ys = []
        for t, x_t in enumerate(x.unbind(1)):
            now: Any = {name: z[:, t] for name, z in extras.items()}
            y_t, state = mixer.step(x_t, state, **now)
            ys.append(y_t)
        return torch.stack(ys, 1), state

    return run


def in_pieces(mixer: Mixer, *lengths: int) -> Callable[..., tuple[Tensor, State]]:
    """The mixer called on consecutive pieces, carrying the state."""

    def run(x: Tensor, state: State, **extras: Tensor) -> tuple[Tensor, State]:
        ys = []
        parts = {n: z.split(list(lengths), 1) for n, z in extras.items()}
        for i, part in enumerate(x.split(list(lengths), 1)):
            y, state = mixer(part, state, **{n: z[i] for n, z in parts.items()})
            ys.append(y)
        return torch.cat(ys, 1), state

    return run
