"""Preconditioned Gated DeltaNet and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("preconditioned_gated_delta", "PrecondGatedDeltaNet"),
    {
        "default": ("default but for the sizes", {}),
        "shared keys": (
            "num_v_heads=2 num_heads, squash_x=2, allow_neg_eigval, conv_bias",
            {"num_v_heads": 4, "squash_x": 2.0, "allow_neg_eigval": True, "conv_bias": True},
        ),
        "neither": ("no gate and no convolution", {"use_gate": False, "use_short_conv": False}),
    },
    **{"head_dim": 4, "num_heads": 2},
)
