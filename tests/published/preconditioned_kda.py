"""Preconditioned KDA and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("preconditioned_kda", "PrecondKDA"),
    {
        "default": ("default but for the sizes", {}),
        "bounded": (
            "safe_gate, lower_bound=-5, num_v_heads=2 num_heads, allow_neg_eigval, conv_bias",
            {
                "num_v_heads": 4,
                "safe_gate": True,
                "lower_bound": -5.0,
                "allow_neg_eigval": True,
                "conv_bias": True,
            },
        ),
        "without convolution": ("use_short_conv=False", {"use_short_conv": False}),
    },
    **{"head_dim": 4, "num_heads": 2},
)
