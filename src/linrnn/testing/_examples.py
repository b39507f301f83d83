"""Small calls of every op, in double precision: what laws that hold for all of them are run on."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.ops import fft_scan, gated_scan, linear_scan, log_linear_scan, selective_scan
from linrnn.ops.causal_conv import causal_conv

_BATCH, _TIME, _CHANNELS, _MODES = 2, 6, 2, 3


class Example(NamedTuple):
    """A call: ``function(**arguments)`` returns a tensor or a tuple of tensors."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]


def examples(op: str) -> Iterator[Example]:
    """Calls of an op of `linrnn.ops`, by its name, that differ in what they compute.

    Example:
        >>> next(examples("linear_scan")).name
        'linear_scan varying'
    """
    torch_seed = torch.Generator().manual_seed(0)
    for kind, function, arguments in _EXAMPLES[op](_Draw(torch_seed)):
        yield Example(f"{op} {kind}", function, arguments)


def ops() -> list[str]:
    """The names of all ops that have examples."""
    return list(_EXAMPLES)


class _Draw:
    """Random tensors from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, *shape: int, is_complex: bool = False) -> Tensor:
        dtype = torch.complex128 if is_complex else torch.float64
        return torch.randn(shape, dtype=dtype, generator=self.generator)

    def steps(self, *shape: int, is_complex: bool = False) -> Tensor:
        return self(_BATCH, _TIME, *shape, is_complex=is_complex)

    def reset(self) -> Tensor:
        return torch.rand(_BATCH, _TIME, generator=self.generator) < 0.3


def _linear(draw: _Draw) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for constant, is_complex in itertools.product((False, True), repeat=2):
        kind = f"{'constant' if constant else 'varying'}{' complex' if is_complex else ''}"
        shape = (_CHANNELS,) if constant else (_BATCH, _TIME, _CHANNELS)
        arguments = {
            "a": draw(*shape, is_complex=is_complex) / 2,
            "b": draw.steps(_CHANNELS, is_complex=is_complex),
            "initial_state": draw(_BATCH, _CHANNELS, is_complex=is_complex),
        }
        yield kind, linear_scan, arguments
        yield f"{kind} reset", linear_scan, arguments | {"reset": draw.reset()}
    yield from _packed(linear_scan, {"a": draw(_CHANNELS), "b": draw(1, _TIME, _CHANNELS)}, draw)


def _log_linear(draw: _Draw) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for kind, shape in (("constant", (_CHANNELS,)), ("varying", (_BATCH, _TIME, _CHANNELS))):
        arguments = {"log_a": draw(*shape), "log_b": draw.steps(_CHANNELS)}
        yield f"{kind} empty", log_linear_scan, arguments
        arguments |= {"initial_state": draw(_BATCH, _CHANNELS), "reset": draw.reset()}
        yield f"{kind} reset", log_linear_scan, arguments
    sequence = {"log_a": draw(1, _TIME, _CHANNELS), "log_b": draw(1, _TIME, _CHANNELS)}
    yield from _packed(log_linear_scan, sequence, draw)


def _packed(
    function: Callable[..., Any], sequence: dict[str, Any], draw: _Draw
) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Sequences in one row, read backward: offsets are not mapped by vmap."""
    offsets = torch.tensor([0, 0, 4, _TIME])

    def run(**arguments: Any) -> Any:
        return function(**arguments, cu_seqlens=offsets, reverse=True)

    yield "packed reverse", run, sequence | {"initial_state": draw(3, _CHANNELS)}


def _selective(draw: _Draw) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    required = {
        "x": draw.steps(_CHANNELS),
        "dt": draw.steps(_CHANNELS).exp() / 4,
        "A": -draw(_CHANNELS, _MODES).exp(),
        "B": draw.steps(_MODES),
        "C": draw.steps(_MODES),
    }
    yield "bare", selective_scan, required
    yield (
        "complete",
        selective_scan,
        {
            **required,
            "D": draw(_CHANNELS),
            "initial_state": draw(_BATCH, _CHANNELS, _MODES),
            "z": draw.steps(_CHANNELS),
            "dt_bias": draw(_CHANNELS),
            "dt_softplus": True,
            "b_disc": "zoh",
            "reset": draw.reset(),
        },
    )


def _gated(draw: _Draw) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for parts, positive, normalise in ((2, False, True), (2, True, True), (3, False, False)):
        yield (
            f"{parts} parts positive={positive} normalise={normalise}",
            gated_scan,
            {
                "x": draw.steps(parts, _CHANNELS),
                "initial_state": draw(_BATCH, _CHANNELS),
                "positive": positive,
                "normalise": normalise,
                "start": 0.5 if positive else 0.0,
                "reset": draw.reset(),
            },
        )
    yield "3 parts from its start", gated_scan, {"x": draw.steps(3, _CHANNELS), "start": 0.5}


def _fft(draw: _Draw) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    arguments = {"a": draw(_CHANNELS).tanh(), "b": draw.steps(_CHANNELS)}
    yield "real", fft_scan, arguments | {"initial_state": draw(_BATCH, _CHANNELS)}


def _conv(draw: _Draw) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for silu in (False, True):
        yield (
            f"silu={silu}",
            causal_conv,
            {
                "x": draw.steps(_CHANNELS),
                "past": draw(_BATCH, 3, _CHANNELS),
                "weight": draw(_CHANNELS, 4),
                "bias": draw(_CHANNELS),
                "reset": draw.reset() if silu else None,
                "silu": silu,
            },
        )


_EXAMPLES = {
    "linear_scan": _linear,
    "log_linear_scan": _log_linear,
    "gated_scan": _gated,
    "selective_scan": _selective,
    "fft_scan": _fft,
    "causal_conv": _conv,
}
