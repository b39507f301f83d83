"""Stick-breaking attention as the layer of flash-linear-attention has it."""

import torch

from linrnn.mixers import StickBreaking
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    return {
        "heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "o_proj.weight": weights["o_proj.weight"],
    }


def _fla(configuration, **options):
    layer = StickBreaking(16, n_heads=4, d_head=4, **options, dtype=torch.float64)
    numbers = golden("stick_breaking")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 16), _mapped, numbers)


def _default():
    return _fla("default")


def _current():
    return _fla("current", n_kv_heads=2, current=True)


FLA = "flash-linear-attention 0.6.0, StickBreakingAttention"
CASES = [
    Case("stick_breaking", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("stick_breaking", FLA, "num_kv_heads=2, attend_current", "layer", _current, 1e-9),
    Case(
        *("stick_breaking", FLA, "qk_norm", "layer", None),
        note="a norm of queries and keys is no option here",
    ),
]
