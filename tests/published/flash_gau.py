"""FLASH and the causal layer of FLASH-pytorch without its norm and skip, which are a block's."""

import torch

from linrnn.mixers import FlashGAU
from published.case import Case, compare_mapped, fill, waves


def _mapped(weights):
    """Their gate is the second half of a map, and maps of z are near q, far q, near k, far k."""
    parts = {}
    for kind in ("weight", "bias"):
        v, r = weights[f"to_hidden.0.{kind}"].chunk(2)
        parts[kind] = torch.cat([r, v, weights[f"to_qk.0.{kind}"]])
    table = weights["rel_pos_bias.relative_attention_bias.weight"].flatten()
    return {
        "W_in": parts["weight"],
        "b_in": parts["bias"],
        "gamma": weights["qk_offset_scale.gamma"][[0, 2, 1, 3]],
        "beta": weights["qk_offset_scale.beta"][[0, 2, 1, 3]],
        "W_out": weights["to_out.weight"],
        "b_out": weights["to_out.bias"],
        "distances": table * 6**0.5,
    }


def _flash_pytorch(attention):
    import flash_pytorch

    theirs = flash_pytorch.FLASH(
        dim=8,
        group_size=8,
        query_key_dim=6,
        causal=True,
        laplace_attn_fn=attention == "laplace",
    ).double()
    theirs.norm = torch.nn.Identity()
    fill(list(theirs.parameters()))
    form = {"relative_bias": False, "bias": True, "buckets": 32, "rotary": False}
    ours = FlashGAU(8, d_key=6, chunk=8, attention=attention, **form, dtype=torch.float64)
    return compare_mapped(ours, theirs, waves(2, 27, 8), _mapped, lambda x: theirs(x) - x)


def _default():
    return _flash_pytorch("relu_squared")


def _laplace():
    return _flash_pytorch("laplace")


HUB = "FLASH-pytorch 0.1.9, FLASH"
CASES = [
    Case("flash_gau", HUB, "causal", "layer", _default, 1e-9),
    Case("flash_gau", HUB, "causal, laplace_attn_fn", "layer", _laplace, 1e-9),
    Case(
        *("flash_gau", HUB, "default, which is not causal", "layer", None),
        note="a step would see later ones",
    ),
]
