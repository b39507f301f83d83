"""Gated linear attention and the layer of flash-linear-attention."""

import torch

from linrnn.mixers import GLA
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    """The weight of their norm is in W_o."""
    norm = next(name for name in weights if name.startswith("g_norm"))
    heads = weights["o_proj.weight"].shape[1] // len(weights[norm])
    ours = {
        "heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "decay.down.weight": weights["gk_proj.0.weight"],
        "decay.up.weight": weights["gk_proj.1.weight"],
        "decay.up.bias": weights["gk_proj.1.bias"],
        "out.out_proj.weight": weights["o_proj.weight"] * weights[norm].repeat(heads),
    }
    for kind in ("weight", "bias"):
        convs = [f"{name}_conv1d.{kind}" for name in "qkv"]
        if convs[0] in weights:
            ours[f"conv1d.{kind}"] = torch.cat([weights[name].squeeze() for name in convs])
    if "g_proj.weight" in weights:
        ours["out.gate_proj.weight"] = weights["g_proj.weight"]
    return ours


def _fla(configuration, **options):
    fixed = {"norm": "rms", "gate_bias": False, "gate_rank": 16}
    layer = GLA(8, n_heads=2, **fixed, **options, dtype=torch.float64)
    numbers = golden("gla")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _fla("default")


def _grouped():
    return _fla("grouped", n_kv_heads=1, d_conv=4, conv_bias=True, gate="sigmoid")


def _relu():
    return _fla("relu", feature_map="relu", d_conv=3, gate="none", tau=8.0)


def _silu():
    return _fla("silu", feature_map="silu", n_kv_heads=1)


FLA = "flash-linear-attention 0.6.0, GatedLinearAttention"
GROUPED = "num_kv_heads=1, use_short_conv, conv_bias, gate_fn=sigmoid"
CASES = [
    Case("gla", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("gla", FLA, GROUPED, "layer", _grouped, 1e-9),
    Case("gla", FLA, "feature_map=relu, use_short_conv, no gate", "layer", _relu, 1e-9),
    Case("gla", FLA, "feature_map=silu, num_kv_heads=1", "layer", _silu, 1e-9),
    Case(
        *("gla", FLA, "clamp_min", "layer", None),
        note="a least logarithm of decays, off by default, is no option here",
    ),
]
