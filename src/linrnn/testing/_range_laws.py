"""The law of ranges: whatever numbers are in the parameters, a layer is right or refuses."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.state import leaves
from linrnn.testing._mixer_runs import TIME, WIDTH, MakeMixer, build, signal
from linrnn.testing._options import texts_and_flags
from linrnn.testing._tolerance import BrokenPropertyError, check_true, difference, epsilon

RECURRENT = (0.0, 10.0, -10.0, 100.0, 1000.0, -1000.0)
FEWER = (0.0, 10.0, 100.0, -1000.0)
VECTORS = (0.0, 10.0, 1000.0, -1000.0)
MATRICES = (0.0, 100.0)  # behind more, float32 leaves nothing of the gradient of a norm
LONG_PUSHED = (1.0, 3.0, -100.0)
LONG = 1024  # steps of a recipe
SHORT = 7  # where one step is a step of Python
_LARGEST = 1e30
"""Largest result in float64 that is compared: the product of two larger ones overflows float32."""
_SMALLEST = 1e-6  # an absolute error: a flat activation, as gelu of -10, has no slope in float32
_ROUNDINGS = 2**13  # a matrix exponential of float32 and its gradient take 6,000
_SENSITIVE = 4096.0  # of how far one rounding of each intermediate number moves the truth
_UNKNOWABLE = 0.01  # part of the output that one rounding changes, as where a norm divides 0 by 0

Results = dict[str, Tensor]


class Push(NamedTuple):
    """One case: parameters by name, filled with numbers between half of one and the whole."""

    numbers: Mapping[str, float]
    time: int
    """Steps that are read."""

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} = {value:g}" for name, value in self.numbers.items())
        return f"{numbers}, {self.time} steps"


def ranges(make: MakeMixer) -> None:
    """Any parameter may be anything from -1000 to 1000, and those of the recurrence all at once.

    Matrices that are none of the recurrence are anything from -100 to 100. Outputs, states and
    gradients of float32 are finite, and those of float64, up to what one rounding of each
    intermediate number changes; or the call is refused by an `ArgumentError`. Left out is what
    float64 finds too large for float32: it overflows. The parameters of
    `Mixer.recurrent_parameters` are pushed over the steps of a recipe, and with every option, too.
    """
    usual: set[str] = set()
    for options, twins in every_twins(make):
        names = {name for name, _ in twins.double.named_parameters()}
        other_parameters = not names <= usual
        usual |= names
        for push in pushes(twins.double, every=not options, long=other_parameters):
            try:
                keeps(twins, push)
            except BrokenPropertyError as error:
                raise BrokenPropertyError(f"{options or 'defaults'}: {error}") from error


class Twins:
    """The same numbers in a layer of float32 and in one of float64."""

    def __init__(self, make: MakeMixer, **options: Any) -> None:
        self.single = build(make, dtype=torch.float32, **options)
        self.double = build(make, **options)
        self._start = copy.deepcopy(self.single.state_dict())

    @torch.no_grad()
    def fill(self, numbers: Mapping[str, float]) -> None:
        """Set these parameters, and all others to what they began as."""
        self.single.load_state_dict(self._start)
        for name, parameter in self.single.named_parameters():
            if name in numbers:
                # not all alike, for then a norm divides 0 by 0
                parts = 0.75 + 0.25 * signal(*parameter.shape, seed=6).sin()
                parameter.copy_(numbers[name] * parts)
        self.double.load_state_dict(self.single.state_dict())


def every_twins(make: MakeMixer) -> Iterator[tuple[dict[str, Any], Twins]]:
    """With the defaults, and with each other value of a text or a flag."""
    for options in ({}, *texts_and_flags(make)):
        yield options, Twins(make, **options)


def pushes(mixer: Mixer, *, every: bool, long: bool) -> Iterator[Push]:
    """The cases: of ``every`` parameter, else of those of the recurrence; and of many steps."""
    parameters = {name: p for name, p in mixer.named_parameters() if p.is_floating_point()}
    roles = set(mixer.recurrent_parameters)
    recurrent = [
        name
        for name, p in parameters.items()  # matrices of parts are pushed as matrices are, below
        if name.rpartition(".")[2] in roles or (name in roles and p.ndim < 2)
    ]
    parallel = mixer.cost == "parallel"
    time = TIME if parallel else SHORT
    for name, value in itertools.product(recurrent, RECURRENT if every else FEWER):
        yield Push({name: value}, time)
    if len(recurrent) > 1:
        for value in RECURRENT if every else FEWER:
            yield Push(dict.fromkeys(recurrent, value), time)
    for name, p in parameters.items() if every else ():
        if name not in recurrent:
            for value in VECTORS if p.ndim < 2 else MATRICES:
                yield Push({name: value}, time)
    if long and parallel and recurrent:
        for value in LONG_PUSHED:
            for name in recurrent:
                yield Push({name: value}, LONG)
            yield Push(dict.fromkeys(recurrent, value), LONG)


def keeps(twins: Twins, push: Push) -> None:
    """Raise `BrokenPropertyError` unless the law holds in one case."""
    twins.fill(push.numbers)
    double, x = twins.double, signal(2, push.time, WIDTH, dtype=torch.float32)
    try:
        truth, got = _results(double, x.double()), _results(twins.single, x)
    except ArgumentError:
        return
    finite = [all(bool(v.isfinite().all()) for v in numbers.values()) for numbers in (truth, got)]
    if not finite[0] and (_grows(double, push.time) or _overflows(double, x.double())):
        return
    if finite[0] and not finite[1] and push.time < LONG and _grows(double, push.time):
        return  # a gradient that is large on its way through so few steps, and not at its end
    for name, value in truth.items():
        check_true(f"{push}: {name} is not finite in float64", bool(value.isfinite().all()))
    if max(_size(value) for value in truth.values()) > _LARGEST:
        return
    for name, value in got.items():
        check_true(f"{push}: {name} is not finite in float32", bool(value.isfinite().all()))
    _check_errors(push, double, x, truth, got)


def _check_errors(push: Push, double: Mixer, x: Tensor, truth: Results, got: Results) -> None:
    allowed = {n: _SMALLEST + _ROUNDINGS * _EPS * _size(v) for n, v in truth.items()}
    errors = {name: difference(value, truth[name]) for name, value in got.items()}
    if all(error <= allowed[name] for name, error in errors.items()):
        return
    moved = _sensitivity(double, x.double(), truth)
    if moved["y"] > _UNKNOWABLE * _size(truth["y"]):
        return
    for name, error in errors.items():
        limit = allowed[name] + _SENSITIVE * moved[name]
        check_true(
            f"{push}: {name} of float32 differs by {error:.3g} from float64 at a scale of "
            f"{_size(truth[name]):.3g}; allowed {limit:.3g}",
            error <= limit,
        )


_EPS = epsilon(torch.float32)


def _grows(mixer: Mixer, time: int) -> bool:
    """Whether a transition that does not depend on the input overflows in ``time`` steps."""
    eigenvalues = mixer.eigenvalues()
    largest = 0.0 if eigenvalues is None else _size(eigenvalues.detach())
    return largest > 1 and time * log(largest) > log(_LARGEST)


def _size(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _results(mixer: Mixer, x: Tensor) -> Results:
    """Output, last state and the gradients of input and parameters, by name."""
    x = x.clone().requires_grad_()
    y, last = mixer(x)
    results = {"y": y, **{f"state[{i}]": h for i, h in enumerate(leaves(last))}}
    sources = {"x": x, **{n: p for n, p in mixer.named_parameters() if p.requires_grad}}
    if y.requires_grad:
        cotangent = signal(*y.shape, seed=3).to(y.dtype)
        grads = torch.autograd.grad(y, list(sources.values()), cotangent, allow_unused=True)
        results |= {f"grad {n}": g for n, g in zip(sources, grads, strict=True) if g is not None}
    return {n: v.detach() for n, v in results.items() if v.is_floating_point() or v.is_complex()}


class _Rounding(TorchDispatchMode):
    """Inside, every operator's result is off by about one rounding of float32, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if any(part.alias_info is not None for part in func._schema.returns):
            return outputs  # a view, or written in place
        return tree_map_only(Tensor, self._rounded, outputs)

    def _rounded(self, x: Tensor) -> Tensor:
        if x.dtype not in (torch.float64, torch.complex128):
            return x
        noise = torch.randn(x.shape, dtype=torch.float64, generator=self._generator)
        return x * (1 + _EPS * noise)


def _sensitivity(double: Mixer, x: Tensor, truth: Results) -> dict[str, float]:
    """How far the truth moves where every intermediate number is rounded to float32."""
    with _Rounding(seed=0):
        rounded = _results(double, x)
    return {name: difference(value, truth[name]) for name, value in rounded.items()}


@torch.no_grad()
def _overflows(mixer: Mixer, x: Tensor) -> bool:
    """Whether a loop of steps grows beyond what products of float64 can hold."""
    state = mixer.init_state(len(x))
    for x_t in x.unbind(1):
        y, state = mixer.step(x_t, state)
        if any(bool((h.abs() > _LARGEST**3).any()) for h in (y, *leaves(state)) if h.numel()):
            return True
    return False
