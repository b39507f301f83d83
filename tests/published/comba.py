"""Comba and the layer of flash-linear-attention."""

from linrnn.mixers import Comba
from published.gated_delta_net import RATES, fla_cases, of_fla


def _mapped(weights):
    return of_fla(weights, RATES | {"decay": "c", "D": "D"})


CASES = fla_cases(
    *("comba", "Comba", Comba, _mapped),
    {
        "default": ("default but for the sizes", {"n_heads": 2}),
        "shared keys": (
            "num_v_heads=2 num_heads, correction_factor=0.02, conv_bias",
            {"n_heads": 4, "key_heads": 2, "correction": 0.02, "conv_bias": True},
        ),
        "neither": (
            "no gate, convolution, inner decay and output correction",
            {
                **{"n_heads": 2, "gate": "none", "d_conv": None},
                **{"inner_decay": False, "correction": None},
            },
        ),
    },
)
