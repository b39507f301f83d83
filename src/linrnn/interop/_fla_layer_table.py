"""The layers of flash-linear-attention 0.6 that a mixer has the parameters of."""

from linrnn.interop import (
    _fla_delta_layers,
    _fla_linear_layers,
    _fla_softmax_layers,
    _fla_state_layers,
)
from linrnn.interop._fla_layer_parts import Layer

LAYERS: dict[str, Layer] = {
    **_fla_delta_layers.LAYERS,
    **_fla_linear_layers.LAYERS,
    **_fla_state_layers.LAYERS,
    **_fla_softmax_layers.LAYERS,
}
