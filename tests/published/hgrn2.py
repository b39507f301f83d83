"""HGRN2 and the layer of flash-linear-attention, without bounds, which its model shares."""

import torch

from linrnn.mixers import HGRN2
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    ours = {
        "heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "iqf"]),
        "out_norm.weight": weights["g_norm.weight"],
        "out_proj.weight": weights["o_proj.weight"],
    }
    for kind in ("weight", "bias"):
        convs = [f"{name}_conv1d.{kind}" for name in "iqf"]
        if convs[0] in weights:
            ours[f"conv1d.{kind}"] = torch.cat([weights[name].squeeze() for name in convs])
    return ours


def _fla(configuration, **options):
    fixed = {"q_activation": "silu", "v_activation": "identity", "bias": False, "norm": "rms"}
    # theirs is 1e-5, behind a division by the root of d_head
    layer = HGRN2(8, d_head=4, norm_eps=4e-5, **fixed, **options, dtype=torch.float64)
    numbers = golden("hgrn2")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _fla("default")


def _conv():
    return _fla("convolution", d_conv=4, conv_bias=True)


FLA = "flash-linear-attention 0.6.0, HGRN2Attention"
CASES = [
    Case("hgrn2", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("hgrn2", FLA, "use_short_conv, conv_bias", "layer", _conv, 1e-9),
]
