"""Forgetting attention as the layer of flash-linear-attention has it."""

import torch

from linrnn.mixers import ForgettingAttention
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    ours = {
        "heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "f_proj.weight": weights["f_proj.weight"],
        "f_proj.bias": weights["f_proj.bias"],
        "out.out_proj.weight": weights["o_proj.weight"],
    }
    if "g_proj.weight" in weights:
        ours["out.gate_proj.weight"] = weights["g_proj.weight"]
    norms = ("q_norm.weight", "k_norm.weight")
    return ours | {name: weights[name] for name in norms if name in weights}


def _fla(configuration, **options):
    layer = ForgettingAttention(16, **options, dtype=torch.float64)
    numbers = golden("forgetting_attention")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 16), _mapped, numbers)


def _default():
    return _fla("default", n_heads=2)


def _pro():
    more = {"qk_norm": True, "norm_eps": 1e-5, "gate": "sigmoid"}
    return _fla("pro", n_heads=4, d_head=4, n_kv_heads=2, **more)


FLA = "flash-linear-attention 0.6.0, ForgettingAttention"
PRO = "num_kv_heads=2, qk_norm, use_output_gate"
CASES = [
    Case("forgetting_attention", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("forgetting_attention", FLA, PRO, "layer", _pro, 1e-9),
]
