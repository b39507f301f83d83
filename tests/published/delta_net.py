"""DeltaNet and the layer of flash-linear-attention."""

from published.case import fla_cases

CASES = fla_cases(
    *("delta_net", "DeltaNet"),
    {
        "default": ("default but for the sizes", {}),
        "relu": (
            "relu, use_gate, allow_neg_eigval",
            {"qk_activation": "relu", "use_gate": True, "allow_neg_eigval": True},
        ),
        "elu": (
            "elu, qk_norm=sum, conv_bias",
            {"qk_activation": "elu", "qk_norm": "sum", "conv_bias": True},
        ),
        "identity": (
            "identity, qk_norm=sum, no convolution",
            {"qk_activation": "identity", "qk_norm": "sum", "use_short_conv": False},
        ),
        "silu": ("silu, qk_norm=sum, no convolution", {"qk_norm": "sum", "use_short_conv": False}),
        "without beta": ("use_beta=False", {"use_beta": False}),
    },
    num_heads=2,
)
