"""The parts of blocks: which each kind has, how they are made, and what they take."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from linrnn._options.schema import check_options
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers import Mixer
from linrnn.nn import GLU, MLP, CausalConv, ChannelMix, GatedMLP, MoE

BLOCKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "glu": (("mixer", "gelu", "drop", "glu"),),
    "glu_mlp": (("mixer", "gelu", "drop", "glu"), ("mlp",)),
    "mlp": (("mixer",), ("mlp",)),
    "channel_mix": (("mixer",), ("channel_mix",)),
    "relu_mix": (("mixer",), ("relu_mix",)),
    "geglu": (("mixer",), ("geglu",)),
    "swiglu": (("mixer",), ("swiglu",)),
    "relu2": (("mixer",), ("relu2",)),
    "moe": (("mixer",), ("moe",)),
    "xlstm": (("mixer",), ("ffn",)),
    "bare": (("mixer",),),
}
"""The published blocks: their parts in the order of computation, and what each part is a chain of.

The first of a chain names the part, and with ``_norm`` its norm, but for the mixer's, which is
``norm``. ``gelu`` and ``drop`` are functions, everything else a module, made as `MODULES` says.
"""

BEHIND_NARROW = ("ffn",)
"""Parts that a mixer has no use for if it is `Mixer.widening`, and that its block does without."""


FEED_FORWARD = ("mlp", "channel_mix", "relu_mix", "geglu", "swiglu", "relu2", "moe", "ffn")
"""Parts that have a width of their own, ``d_ffn``."""


class Place(NamedTuple):
    """The settings that a part of a block may depend on."""

    mixer: Mixer
    layer: int
    n_layers: int
    conv_width: int
    d_ffn: int | None
    factory: dict[str, Any]
    options: Mapping[str, Mapping[str, Any]] = {}
    """Options of parts, by the name of the part."""


def _channel_mix(place: Place, *, receptance: bool = True) -> ChannelMix:
    # what was published is the whole block, and has one switch
    init = getattr(place.mixer, "init", None)
    start: Any = {"init": init} if init in ("published", "trainer") else {}
    where: Any = {"layer": place.layer, "n_layers": place.n_layers}
    sizes: Any = {"d_inner": place.d_ffn, "receptance": receptance}
    return ChannelMix(place.mixer.d_model, **sizes, **start, **where, **place.factory)


def _gated(place: Place, d_inner: int | None = None, **options: Any) -> GatedMLP:
    d_inner = d_inner if place.d_ffn is None else place.d_ffn
    options |= place.factory
    return GatedMLP(place.mixer.d_model, d_inner=d_inner, n_layers=place.n_layers, **options)


def _swiglu(place: Place) -> GatedMLP:
    d_inner = -(-8 * place.mixer.d_model // 3)  # as many weights as an MLP of four times the width
    options = {"bias": False, "activation": "silu", "init": "small_inner"}
    return _gated(place, d_inner, **{**options, **place.options.get("swiglu", {})})


def _moe(place: Place) -> MoE:
    options = {"d_inner": place.d_ffn, "n_layers": place.n_layers, **place.options.get("moe", {})}
    return MoE(place.mixer.d_model, **options, **place.factory)


def _relu2(place: Place) -> MLP:
    options: Any = {"activation": "relu2", "bias": False, **place.options.get("relu2", {})}
    return MLP(place.mixer.d_model, d_inner=place.d_ffn, **options, **place.factory)


def _ffn(place: Place) -> GatedMLP:
    d_inner = 64 * -(-4 * place.mixer.d_model // (3 * 64))  # as in the published code
    return _gated(place, d_inner, bias=False, activation="gelu", init="small")


MODULES: dict[str, Callable[[Place], nn.Module]] = {
    "mixer": lambda place: place.mixer,
    "glu": lambda place: GLU(place.mixer.d_model, **place.factory),
    "conv": lambda place: CausalConv(place.mixer.d_model, place.conv_width, **place.factory),
    "mlp": lambda place: MLP(place.mixer.d_model, d_inner=place.d_ffn, **place.factory),
    "channel_mix": _channel_mix,
    "relu_mix": lambda place: _channel_mix(place, receptance=False),
    "geglu": _gated,
    "swiglu": _swiglu,
    "relu2": _relu2,
    "moe": _moe,
    "ffn": _ffn,
}
"""How each module of a block is made; one with ``init_state`` takes a state and returns it."""

WITH_OPTIONS: dict[str, type[nn.Module]] = {"swiglu": GatedMLP, "relu2": MLP, "moe": MoE}
"""Parts whose options can be chosen, and what they are."""

_NO_OPTIONS = ("d_model", "n_layers", "device", "dtype")


def chains_of(kind: str, place: Place) -> list[tuple[str, ...]]:
    """The chains of a block around a mixer, in the order of computation."""
    without = BEHIND_NARROW if place.mixer.widening else ()
    of_kind = [chain for chain in BLOCKS[kind] if chain[0] not in without]
    return [*([("conv",)] if place.conv_width else []), *of_kind]


def norm_name(part: str) -> str:
    """The name of a part's norm."""
    return "norm" if part == "mixer" else f"{part}_norm"


def check_part_options(where: str, options: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Raise unless each part that has options is one of `WITH_OPTIONS` and takes these.

    Raises:
        UnknownNameError: there is no such part, or it has no such option.
        ArgumentError: an option of another type than annotated.
    """
    for part, of_part in (options or {}).items():
        check_in(where, "block_options", part, WITH_OPTIONS)
        check_options(f"block part {part!r}", WITH_OPTIONS[part], of_part, *_NO_OPTIONS)


def has_width(kind: str) -> bool:
    """Whether a block has a feed-forward part, whose width can be set."""
    return any(name in FEED_FORWARD for chain in BLOCKS[kind] for name in chain)


def check_sizes(kind: str, conv_width: int, d_ffn: int | None) -> None:
    """Raise `ArgumentError` for a convolution or a width that a block cannot have."""
    if isinstance(conv_width, bool) or not isinstance(conv_width, int) or conv_width < 0:
        raise ArgumentError(
            f"Block: conv_width must be an integer of at least 0, got {conv_width!r}."
        )
    if d_ffn is None:
        return
    check_positive_int("Block", d_ffn=d_ffn)
    if not has_width(kind):
        able = [name for name in BLOCKS if has_width(name)]
        raise ArgumentError(
            f"Block: d_ffn must be None where block is {kind!r}, which has no such part, got "
            f"{d_ffn}. It is for {', '.join(able)}."
        )
