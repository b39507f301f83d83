"""Stick-breaking attention as the layer of flash-linear-attention has it."""

from published.case import Case, fla_cases

CASES = [
    *fla_cases(
        *("stick_breaking", "StickBreakingAttention"),
        {
            "default": ("default but for the sizes", {}),
            "current": (
                "num_kv_heads=2, attend_current",
                {"num_kv_heads": 2, "attend_current": True},
            ),
        },
        width=16,
        num_heads=4,
    ),
    Case(
        "stick_breaking",
        "flash-linear-attention 0.6.0, StickBreakingAttention",
        "qk_norm",
        "layer",
        None,
        note="a norm of queries and keys is no option here",
    ),
]
