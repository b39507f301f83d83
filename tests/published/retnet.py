"""RetNet and the layer of flash-linear-attention, which turns channels i and i + d_key / 2."""

from published.case import fla_cases

CASES = fla_cases(
    *("retnet", "MultiScaleRetention"),
    {
        "default": ("default but for the sizes", {}),
        "grouped": (
            "num_kv_heads=1, use_short_conv, conv_bias, gate_fn=sigmoid",
            {"num_kv_heads": 1, "use_short_conv": True, "conv_bias": True, "gate_fn": "sigmoid"},
        ),
        "relu": (
            "feature_map=relu, use_short_conv, no gate",
            {
                "feature_map": "relu",
                "use_short_conv": True,
                "conv_size": 3,
                "use_output_gate": False,
            },
        ),
    },
    num_heads=2,
)
