"""PaTH attention as the layer of flash-linear-attention has it."""

from published.case import Case, fla_cases

CASES = [
    *fla_cases(
        *("path_attention", "PaTHAttention"),
        {
            "default": ("default but for the sizes", {}),
            "forget": (
                "use_forget_gate, use_qk_norm",
                {"use_forget_gate": True, "use_qk_norm": True},
            ),
        },
        width=16,
        num_heads=2,
    ),
    Case(
        "path_attention",
        "flash-linear-attention 0.6.0, PaTHAttention",
        "num_kv_heads=1",
        "layer",
        None,
        note="keys and reflections that several heads share are no option here",
    ),
]
