"""Systems: mixers, with options at which their states are about equally large."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import log
from typing import Any

from linrnn import mixers
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, LinrnnError
from linrnn.mixers import Mixer
from linrnn.state import n_floats

WIDTHS = (16, 24, 32, 48, 64)
"""Channels of the residual stream; the width that comes nearest to the sizes is chosen."""
LAYERS = 2
PARAMETERS = 24_000
"""Wanted of the two layers, without encoder and head; what came out is in each row."""
STATE = 512
"""Floats wanted of the state of a layer for one sequence."""

_SIZES = ("d_state", "d_key", "d_head", "n_heads", "order", "slots", "window", "d_inner")
"""Options that set the size of a state, in the order in which they are tried."""
HEAD = 8
"""Channels that a head has at least: one or two do not hold keys apart."""
_VALUES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)

CORE = (
    "gru", "lstm", "tanh_rnn", "lru", "s4d", "s5", "mingru", "minlstm", "mamba", "mamba2", "rwkv4",
    "rwkv6", "rwkv7", "linear_attention", "retnet", "gla", "delta_net", "gated_delta_net",
    "gated_delta_product", "kda", "hgrn", "hgrn2", "rg_lru", "mlstm", "slstm", "co_rnn", "cfc",
    "pd_ssm", "ttt_linear", "attention",
)  # fmt: skip
"""Measured first: one or two of each mechanism."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A mixer at the size of the map.

    Args:
        name: of the mixer, or the import path of its class.
        width: channels of the residual stream.
        options: of the mixer.
        state: floats of the state of one layer and sequence; None where it grows.
        parameters: of both layers, without encoder and head.
    """

    name: str
    width: int
    options: Mapping[str, Any] = field(default_factory=dict)
    state: int | None
    parameters: int


@cache
def sized(name: str, state: int = STATE) -> System:
    """The mixer at the width, and with the one option, that come nearest to the sizes of the map.

    A factor by which the state misses its size counts as much as one of the parameters.

    Args:
        name: of a mixer, or an import path that was imported before.
        state: floats wanted.

    Raises:
        UnknownNameError: no such mixer.
        ArgumentError: it takes none of the widths.
    """
    candidates = [system for width in WIDTHS for system in _candidates(name, width)]
    if not candidates:
        raise ArgumentError(
            f"atlas: the mixer {name!r} must take one of the widths {WIDTHS}, got none that works. "
            "Try it by `linrnn check`."
        )
    return min(candidates, key=lambda system: _miss(system, state))


def _candidates(name: str, width: int) -> Iterator[System]:
    """The defaults at a width, and with each option that changes the size of the state."""
    default: System | None = None
    for options in _choices(mixers.load(name), width):
        try:
            system = _measured(name, width, options)
        except (LinrnnError, RuntimeError, TypeError, ValueError):
            continue  # the mixer does not take this size
        if not options:
            default = system
        elif default is not None and system.state == default.state:
            continue  # heads of a dense cell, say: another system, not another size
        yield system


def _choices(cls: type[Mixer], width: int) -> Iterator[dict[str, Any]]:
    """No option, or one that sets the size of the state and leaves heads of `HEAD` channels."""
    parameters = inspect.signature(cls.__init__).parameters
    yield {}
    for option in _SIZES:
        for value in _VALUES if option in parameters else ():
            heads = {"n_heads": width // value, "d_key": value, "d_head": value}
            if heads.get(option, HEAD) >= HEAD:
                yield {option: value}


def _measured(name: str, width: int, options: Mapping[str, Any]) -> System:
    model = SequenceModel(
        width, width, mixer=name, mixer_options=dict(options), d_model=width, n_layers=LAYERS,
        pool="none", norm="layer", device="meta",
    )  # fmt: skip
    counted = sum(p.numel() * (1 + p.is_complex()) for p in model.blocks.parameters())
    mixer = model.mixers[0]
    grows = "constant_memory" in mixer.declared
    floats = None if grows else n_floats(mixer.init_state(1))
    return System(name=name, width=width, options=options, state=floats, parameters=counted)


def _miss(system: System, state: int) -> float:
    by_state = 0.0 if system.state is None else abs(log(max(system.state, 1) / state))
    return by_state + abs(log(system.parameters / PARAMETERS))
