"""Momentum DeltaNet and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("momentum_delta_net", "MomentumDeltaNet"),
    {
        "default": ("default but for the sizes", {}),
        "shared keys": (
            "num_v_heads=2 num_heads, no use_p_times_alpha, allow_neg_eigval, conv_bias",
            {
                "num_v_heads": 4,
                "use_p_times_alpha": False,
                "min_log_mu": None,
                "allow_neg_eigval": True,
                "conv_bias": True,
            },
        ),
        "neither": (
            "no gate, convolution and output correction",
            {"use_gate": False, "use_short_conv": False, "use_output_correction": False},
        ),
    },
    **{"head_dim": 4, "num_heads": 2},
)
