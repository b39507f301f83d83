"""Forgetting attention as the layer of flash-linear-attention has it."""

from published.case import fla_cases

CASES = fla_cases(
    *("forgetting_attention", "ForgettingAttention"),
    {
        "default": ("default but for the sizes", {"num_heads": 2}),
        "pro": (
            "num_kv_heads=2, qk_norm, use_output_gate",
            {"num_heads": 4, "num_kv_heads": 2, "qk_norm": True, "use_output_gate": True},
        ),
    },
    width=16,
)
