"""HGRN2 and the layer of flash-linear-attention, without bounds; its model, which shares them."""

import torch

from linrnn.mixers import HGRN2
from published.case import Case, golden, mapped_against_numbers, waves
from published.hgrn import model_against_numbers


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


# theirs has an epsilon of 1e-5, behind a division by the root of d_head
FIXED = {"q_activation": "silu", "v_activation": "identity", "bias": False, "norm": "rms"}
FIXED |= {"d_head": 4, "norm_eps": 4e-5}


def _fla(configuration, **options):
    layer = HGRN2(8, **FIXED, **options, dtype=torch.float64)
    numbers = golden("hgrn2")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _fla("default")


def _conv():
    return _fla("convolution", d_conv=4, conv_bias=True)


def _model():
    return model_against_numbers("hgrn2", FIXED, _mapped)


MODEL = "flash-linear-attention 0.6.0, HGRN2Model"
FLA = "flash-linear-attention 0.6.0, HGRN2Attention"
CASES = [
    Case("hgrn2", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("hgrn2", FLA, "use_short_conv, conv_bias", "layer", _conv, 1e-9),
    Case("hgrn2", MODEL, "default but for the sizes (use_lower_bound)", "model", _model, 1e-9),
]
