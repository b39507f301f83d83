"""Gated DeltaNet-2 and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("gdn2", "GatedDeltaNet2"),
    {
        "default": ("default but for the sizes", {}),
        "shared keys": (
            "num_v_heads=2 num_heads, expand_v=1.5, allow_neg_eigval, conv_bias",
            {"num_v_heads": 4, "expand_v": 1.5, "allow_neg_eigval": True, "conv_bias": True},
        ),
        "without convolution": ("use_short_conv=False", {"use_short_conv": False}),
    },
    **{"head_dim": 4, "num_heads": 2},
)
