"""Gated DeltaNet-2 and the layer of flash-linear-attention."""

import torch

from linrnn.mixers import GDN2
from published.gated_delta_net import LOW_RANK, fla_cases, of_fla


def _mapped(weights):
    names = {"A_log": "decay.A_log", "dt_bias": "decay.dt_bias"}
    gates = torch.cat([weights["b_proj.weight"], weights["w_proj.weight"]])
    return {**of_fla(weights, names | LOW_RANK), "gates.proj.weight": gates}


CASES = fla_cases(
    *("gdn2", "GatedDeltaNet2", GDN2, _mapped),
    {
        "default": ("default but for the sizes", {"n_heads": 2}),
        "shared keys": (
            "num_v_heads=2 num_heads, expand_v=1.5, allow_neg_eigval, conv_bias",
            {"n_heads": 4, "key_heads": 2, "d_value": 6, "erase_max": 2.0, "conv_bias": True},
        ),
        "without convolution": ("use_short_conv=False", {"n_heads": 2, "d_conv": None}),
    },
)
