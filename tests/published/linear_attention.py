"""Linear attention and the layer of flash-linear-attention, whose scale its norm sees."""

from published.case import fla_cases

CASES = fla_cases(
    *("linear_attention", "LinearAttention"),
    {
        "default": ("default but for the sizes", {}),
        "hedgehog": ("feature_map=hedgehog", {"feature_map": "hedgehog"}),
        "t2r": ("feature_map=t2r", {"feature_map": "t2r"}),
        "divided": (
            "feature_map=hedgehog, do_feature_map_norm, output_norm=identity",
            {"feature_map": "hedgehog", "do_feature_map_norm": True, "output_norm": "identity"},
        ),
    },
    num_heads=2,
)
