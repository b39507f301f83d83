"""RetNet and the layer of flash-linear-attention, which turns channels i and i + d_key / 2."""

import torch

from linrnn.mixers import RetNet
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    """Pairs of channels side by side; the weight of their norm is in W_o."""
    norm = next(name for name in weights if name.startswith("g_norm"))
    heads, d_key = weights["o_proj.weight"].shape[1] // len(weights[norm]), 4

    def neighbours(rows):
        """Rows (heads d_key) of pairs i and i + d_key / 2, as pairs of neighbours."""
        return rows.unflatten(0, (-1, 2, d_key // 2)).transpose(1, 2).flatten(0, 2)

    def joined(kind):
        q, k, v = (weights[f"{name}_{kind}"] for name in "qkv")
        return torch.cat([neighbours(q), neighbours(k), v])

    ours = {
        "heads.proj.weight": joined("proj.weight"),
        "out.out_proj.weight": weights["o_proj.weight"] * weights[norm].repeat(heads),
    }
    for kind in ("weight", "bias"):
        if f"q_conv1d.{kind}" in weights:
            ours[f"conv1d.{kind}"] = joined(f"conv1d.{kind}").squeeze()
    if "g_proj.weight" in weights:
        ours["out.gate_proj.weight"] = weights["g_proj.weight"]
    return ours


def _fla(configuration, **options):
    fixed = {"turns": "rotary", "norm_eps": 1e-5}
    layer = RetNet(8, n_heads=2, **fixed, **options, dtype=torch.float64)
    numbers = golden("retnet")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _fla("default")


def _grouped():
    return _fla("grouped", n_kv_heads=1, d_conv=4, conv_bias=True, gate="sigmoid")


def _relu():
    return _fla("relu", feature_map="relu", d_conv=3, gate="none")


FLA = "flash-linear-attention 0.6.0, MultiScaleRetention"
GROUPED = "num_kv_heads=1, use_short_conv, conv_bias, gate_fn=sigmoid"
CASES = [
    Case("retnet", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("retnet", FLA, GROUPED, "layer", _grouped, 1e-9),
    Case("retnet", FLA, "feature_map=relu, use_short_conv, no gate", "layer", _relu, 1e-9),
]
