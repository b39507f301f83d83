"""PaTH attention as the layer of flash-linear-attention has it."""

import torch

from linrnn.mixers import PathAttention
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    ours = {
        "heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "w_proj.down.weight": weights["w_proj.0.weight"],
        "w_proj.up.weight": weights["w_proj.1.weight"],
        "conv1d.weight": weights["w_conv1d.weight"][:, 0],
        "beta_proj.weight": weights["bt_proj.weight"],
        "beta_proj.bias": weights["bt_proj.bias"],
        "o_proj.weight": weights["o_proj.weight"],
    }
    if "g_proj.weight" in weights:
        ours |= {f"f_proj.{kind}": weights[f"g_proj.{kind}"] for kind in ("weight", "bias")}
    for name in ("q_norm", "k_norm"):  # theirs has the same weights in all heads
        if f"maybe_{name}.weight" in weights:
            ours[f"{name}.weight"] = weights[f"maybe_{name}.weight"].repeat(2)
    return ours


def _fla(configuration, **options):
    layer = PathAttention(16, n_heads=2, **options, dtype=torch.float64)
    numbers = golden("path_attention")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 16), _mapped, numbers)


def _default():
    return _fla("default")


def _forget():
    return _fla("forget", forget=True, scale_gates=True, qk_norm=True)


FLA = "flash-linear-attention 0.6.0, PaTHAttention"
CASES = [
    Case("path_attention", FLA, "default but for the sizes", "layer", _default, 1e-9),
    Case("path_attention", FLA, "use_forget_gate, use_qk_norm", "layer", _forget, 1e-9),
    Case(
        *("path_attention", FLA, "num_kv_heads=1", "layer", None),
        note="keys and reflections that several heads share are no option here",
    ),
]
