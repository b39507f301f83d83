"""DeltaNet and the layer of flash-linear-attention."""

import torch

from linrnn.mixers import DeltaNet
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    """The weight of their norm is in W_o."""
    ours = {
        "qkv.heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "out.out_proj.weight": weights["o_proj.weight"] * weights["o_norm.weight"].repeat(2),
    }
    for kind in ("weight", "bias"):
        convs = [f"{name}_conv1d.{kind}" for name in "qkv"]
        if convs[0] in weights:
            ours[f"qkv.conv1d.{kind}"] = torch.cat([weights[name].squeeze() for name in convs])
    if "b_proj.weight" in weights:
        ours["beta_proj.weight"] = weights["b_proj.weight"]
    if "g_proj.weight" in weights:
        ours["out.gate_proj.weight"] = weights["g_proj.weight"]
    return ours


def _fla(configuration, **options):
    layer = DeltaNet(8, n_heads=2, **options, dtype=torch.float64)
    numbers = golden("delta_net")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _fla("default")


def _relu():
    return _fla("relu", qk_activation="relu", qk_norm="l2", gate=True, beta_max=2.0)


def _elu():
    return _fla("elu", qk_activation="elu", qk_norm="sum", conv_bias=True)


def _identity():
    return _fla("identity", qk_activation="identity", qk_norm="sum", d_conv=None)


def _silu():
    return _fla("silu", qk_norm="sum", d_conv=None)


def _without_beta():
    return _fla("without beta", beta="largest")


FLA = "flash-linear-attention 0.6.0, DeltaNet"
CASES = [
    Case("delta_net", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("delta_net", FLA, "relu, use_gate, allow_neg_eigval", "layer", _relu, 1e-9),
    Case("delta_net", FLA, "elu, qk_norm=sum, conv_bias", "layer", _elu, 1e-9),
    Case("delta_net", FLA, "identity, qk_norm=sum, no convolution", "layer", _identity, 1e-9),
    Case("delta_net", FLA, "silu, qk_norm=sum, no convolution", "layer", _silu, 1e-9),
    Case("delta_net", FLA, "use_beta=False", "layer", _without_beta, 1e-9),
]
