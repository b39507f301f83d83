"""Gated linear attention and the layer of flash-linear-attention."""

from published.case import Case, fla_cases

CASES = [
    *fla_cases(
        *("gla", "GatedLinearAttention"),
        {
            "default": ("default but for the sizes", {}),
            "grouped": (
                "num_kv_heads=1, use_short_conv, conv_bias, gate_fn=sigmoid",
                {
                    "num_kv_heads": 1,
                    "use_short_conv": True,
                    "conv_bias": True,
                    "gate_fn": "sigmoid",
                },
            ),
            "relu": (
                "feature_map=relu, use_short_conv, no gate",
                {
                    "feature_map": "relu",
                    "use_short_conv": True,
                    "conv_size": 3,
                    "use_output_gate": False,
                    "gate_logit_normalizer": 8,
                },
            ),
            "silu": (
                "feature_map=silu, num_kv_heads=1",
                {"feature_map": "silu", "num_kv_heads": 1},
            ),
        },
        num_heads=2,
    ),
    Case(
        "gla",
        "flash-linear-attention 0.6.0, GatedLinearAttention",
        "clamp_min",
        "layer",
        None,
        note="a least logarithm of decays, off by default, is no option here",
    ),
]
