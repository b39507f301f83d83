"""Gated DeltaProduct, DeltaProduct and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("gated_delta_product", "GatedDeltaProduct"),
    {
        "default": ("default but for the sizes", {}),
        "three": (
            "num_householder=3, num_v_heads=2 num_heads, conv_bias, no allow_neg_eigval",
            {"num_householder": 3, "num_v_heads": 4, "conv_bias": True, "allow_neg_eigval": False},
        ),
        "ungated": (
            "no forget gate, output gate and convolution",
            {"use_forget_gate": False, "use_output_gate": False, "use_short_conv": False},
        ),
    },
    **{"head_dim": 4, "num_heads": 2},
)
