"""Comba and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("comba", "Comba"),
    {
        "default": ("default but for the sizes", {}),
        "shared keys": (
            "num_v_heads=2 num_heads, correction_factor=0.02, conv_bias",
            {"num_v_heads": 4, "correction_factor": 0.02, "conv_bias": True},
        ),
        "neither": (
            "no gate, convolution, inner decay and output correction",
            {
                "use_output_gate": False,
                "use_short_conv": False,
                "use_inner_decay": False,
                "use_output_correction": False,
            },
        ),
    },
    **{"head_dim": 4, "num_heads": 2},
)
