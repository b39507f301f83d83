"""Gated DeltaProduct, DeltaProduct and the layer of flash-linear-attention."""

from linrnn.mixers import GatedDeltaProduct
from published.gated_delta_net import fla_cases, of_fla

CASES = fla_cases(
    *("gated_delta_product", "GatedDeltaProduct", GatedDeltaProduct, of_fla),
    {
        "default": ("default but for the sizes", {"n_heads": 2}),
        "three": (
            "num_householder=3, num_v_heads=2 num_heads, conv_bias, no allow_neg_eigval",
            {"writes": 3, "n_heads": 4, "key_heads": 2, "conv_bias": True, "beta_max": 1.0},
        ),
        "ungated": (
            "no forget gate, output gate and convolution",
            {"n_heads": 2, "forget": False, "gate": "none", "d_conv": None},
        ),
    },
)
