"""Layers of flash-linear-attention as mixers, and mixers as layers: weights and options."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.interop._fla_layer_rules import Config, Rule
from linrnn.interop._fla_layer_table import LAYERS
from linrnn.mixers import build, load

if TYPE_CHECKING:
    from linrnn.mixers import Mixer

_INITIAL = frozenset(  # options of ours that a trained layer does not depend on
    (
        *("init", "layer", "n_layers", "dt_start", "dt_min", "dt_max", "dt_floor", "A_min"),
        *("A_max", "centre", "device", "dtype"),
    )
)


def layer_names() -> list[str]:
    """Classes of ``fla.layers`` whose weights `from_layer` reads.

    Example:
        >>> "GatedDeltaNet" in layer_names(), len(layer_names()) > 30
        (True, True)
    """
    return sorted(LAYERS)


def from_layer(name: str | type, state_dict: Mapping[str, Tensor], **config: Any) -> "Mixer":
    """A mixer with the weights of a layer of flash-linear-attention, and its outputs.

    Args:
        name: of the class in ``fla.layers``, or the class; see `layer_names`.
        state_dict: its weights.
        config: the arguments it was made with, ``hidden_size`` at least. Those left out have their
            defaults there.

    Returns:
        A copy, in the dtype of the first weight. A norm before the last map has no weights here:
        they are in that map.

    Raises:
        UnknownNameError: no such layer, or it has no such argument.
        ArgumentError: an argument that no mixer has a counterpart of, or weights that are missing,
            unknown or of another shape.

    Example:
        >>> from linrnn.mixers import GatedDeltaNet
        >>> layer = GatedDeltaNet(8, n_heads=2)
        >>> name, config, weights = to_layer(layer)
        >>> x = torch.randn(1, 5, 8)
        >>> torch.equal(from_layer(name, weights, **config)(x)[0], layer(x)[0])
        True
    """
    mixer, ours = mapped(name if isinstance(name, str) else name.__name__, state_dict, config)
    mixer.load_state_dict({x: weight.detach() for x, weight in ours.items()})
    return mixer


def to_layer(mixer: "Mixer") -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """The inverse of `from_layer`.

    Returns:
        ``(name, config, state_dict)``: the class in ``fla.layers``, its arguments and weights, so
        that ``getattr(fla.layers, name)(**config).load_state_dict(state_dict)`` gives the outputs
        of the mixer. Weights of a norm that are in the last map here are ones.

    Raises:
        ArgumentError: a mixer that no layer there has the parameters of, or with an option or
            weights that the layer does not have.

    Example:
        >>> from linrnn.mixers import GLA
        >>> name, config, weights = to_layer(GLA(8, n_heads=2, norm="rms", gate_bias=False))
        >>> name, config["num_heads"], weights["q_proj.weight"].shape
        ('GatedLinearAttention', 2, torch.Size([4, 8]))
    """
    names = {load(layer.mixer): name for name, layer in LAYERS.items()}
    name = names.get(type(mixer))
    if name is None:
        raise ArgumentError(
            f"to_layer: the mixer must be one that fla has the layer of, got "
            f"{type(mixer).__name__}. layer_names() lists those of fla."
        )
    layer = LAYERS[name]
    config = {"hidden_size": mixer.d_model}
    for option in layer.options:
        config |= option.out(mixer)
    full = _full(name, config)
    _check_options(name, mixer, full)
    weights: dict[str, Tensor] = {}
    for rule in _rules(name, mixer):
        weights |= rule.out(mixer, full)
    return name, config, weights


def mapped(
    name: str, weights: Mapping[str, Tensor], config: Config
) -> tuple["Mixer", dict[str, Tensor]]:
    """A mixer with the options of a layer, and its weights as functions of the layer's."""
    if name not in LAYERS:
        raise UnknownNameError("layer of fla with a mixer of equal parameters", name, LAYERS)
    full = _full(name, config)
    dtype = next((w.dtype for w in weights.values()), torch.float32)
    mixer = _made(name, full, dtype=dtype)
    rules = _rules(name, mixer)
    expected = {theirs for rule in rules for theirs in rule.names(full)}
    if expected != weights.keys():
        missing = ", ".join(sorted(expected - weights.keys())) or "none missing"
        unknown = ", ".join(sorted(weights.keys() - expected)) or "none unknown"
        raise ArgumentError(
            f"from_layer: the weights of {name} must be those of its arguments, got missing: "
            f"{missing}; unknown: {unknown}. Pass the arguments the layer was made with."
        )
    try:
        ours = {rule.ours: rule.into(weights, mixer, full) for rule in rules}
    except RuntimeError as error:
        raise ArgumentError(
            f"from_layer: the weights of {name} must fit its arguments, got shapes that do not: "
            f"{error}. Pass the arguments the layer was made with."
        ) from None
    for x, weight in ours.items():
        shape = mixer.get_parameter(x).shape
        if weight.shape != shape:
            raise ArgumentError(
                f"from_layer: the weights of {name} must fit its arguments, got {x} of shape "
                f"{tuple(weight.shape)} for {tuple(shape)}. Pass the arguments the layer was made "
                "with."
            )
    return mixer, ours


def _full(name: str, config: Config) -> dict[str, Any]:
    """The arguments of a layer with its defaults."""
    defaults: dict[str, Any] = {}
    for option in LAYERS[name].options:
        defaults |= option.theirs
    for argument in config:
        if argument not in (*defaults, "hidden_size"):
            raise UnknownNameError(f"argument of {name}", argument, [*defaults, "hidden_size"])
    if "hidden_size" not in config:
        raise ArgumentError(
            f"from_layer: the arguments of {name} must have hidden_size, got "
            f"{', '.join(config) or 'none'}. Pass those the layer was made with."
        )
    return {**defaults, **config}


def _made(name: str, config: Config, **factory: Any) -> "Mixer":
    options: dict[str, Any] = {}
    for option in LAYERS[name].options:
        options |= option.into(config)
    return build(LAYERS[name].mixer, config["hidden_size"], options, **factory)


def _rules(name: str, mixer: "Mixer") -> list[Rule]:
    """Those of the parameters that the mixer has."""
    parameters = {x for x, _ in mixer.named_parameters()}
    rules = [rule for rule in LAYERS[name].weights(mixer) if rule.ours in parameters]
    assert {rule.ours for rule in rules} == parameters, f"{name} has no rule for a parameter"
    return rules


def _check_options(name: str, mixer: Any, config: Config) -> None:
    """Raise unless the layer with these arguments is the mixer."""
    there = _made(name, config, device="meta")
    for option in inspect.signature(type(mixer)).parameters:
        if option in _INITIAL or not hasattr(mixer, option):
            continue
        ours, theirs = getattr(mixer, option), getattr(there, option)
        close = isinstance(ours, float) and isinstance(theirs, float)
        if abs(ours - theirs) > 1e-9 * abs(ours) if close else ours != theirs:
            raise ArgumentError(
                f"to_layer: {option} must be {theirs!r} in a mixer as fla's {name}, got {ours!r}. "
                "fla has no argument for it."
            )
