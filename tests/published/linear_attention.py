"""Linear attention and the layer of flash-linear-attention, whose scale its norm sees."""

import torch

from linrnn.mixers import LinearAttention
from published.case import Case, golden, mapped_against_numbers, waves

LEARNED = {"layer": "proj", "layer1": "proj", "layer2": "factor"}


def _mapped(weights):
    """The weight of their norm, if there is one, is in W_o."""
    out = weights["o_proj.weight"]
    if "norm.weight" in weights:
        out = out * weights["norm.weight"].repeat(2)
    ours = {
        "heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "out_proj.weight": out,
    }
    for name, weight in weights.items():
        if name.startswith("feature_map"):
            which, layer, kind = name.removeprefix("feature_map_").split(".")
            ours[f"map_{which}.{LEARNED[layer]}.{kind}"] = weight
    return ours


def _fla(configuration, eps, **options):
    layer = LinearAttention(8, n_heads=2, bias=False, eps=eps, **options, dtype=torch.float64)
    numbers = golden("linear_attention")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _fla("default", 4e-5, feature_map="product", division="norm")


def _hedgehog():
    return _fla("hedgehog", 8e-5, feature_map="hedgehog", division="norm")


def _t2r():
    return _fla("t2r", 4e-5, feature_map="t2r", division="norm")


def _divided():
    # theirs adds 1e-10 to sums that are divided by the root of the 8 features
    return _fla("divided", 8**0.5 * 1e-10, feature_map="hedgehog")


FLA = "flash-linear-attention 0.6.0, LinearAttention"
DIVIDED = "feature_map=hedgehog, do_feature_map_norm, output_norm=identity"
CASES = [
    Case("linear_attention", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("linear_attention", FLA, "feature_map=hedgehog", "layer", _hedgehog, 1e-9),
    Case("linear_attention", FLA, "feature_map=t2r", "layer", _t2r, 1e-9),
    Case("linear_attention", FLA, DIVIDED, "layer", _divided, 1e-9),
]
