"""GAU and the causal unit of FLASH-pytorch without its norm and skip, which are a block's."""

import torch

from linrnn.mixers import GAU
from published.case import Case, compare_mapped, fill, waves

TIME = 21


def _mapped(weights):
    """Their gate is the second half of a map; what distances add is times sqrt(d), over steps."""
    parts = {}
    for kind in ("weight", "bias"):
        v, r = weights[f"to_hidden.0.{kind}"].chunk(2)
        parts[kind] = torch.cat([r, v, weights[f"to_qk.0.{kind}"]])
    table = weights["rel_pos_bias.relative_attention_bias.weight"].flatten()
    return {
        "W_in": parts["weight"],
        "b_in": parts["bias"],
        "gamma": weights["offsetscale.gamma"],
        "beta": weights["offsetscale.beta"],
        "W_out": weights["to_out.0.weight"],
        "b_out": weights["to_out.0.bias"],
        "distances": table * 8**0.5 / TIME,
    }


def _flash_pytorch(attention):
    import flash_pytorch

    theirs = flash_pytorch.GAU(
        dim=8, query_key_dim=6, causal=True, laplace_attn_fn=attention == "laplace"
    ).double()
    theirs.norm = torch.nn.Identity()
    fill(list(theirs.parameters()))
    form = {"rotary": False, "relative_bias": False, "bias": True, "buckets": 32}
    ours = GAU(8, d_key=6, n=TIME, attention=attention, **form, dtype=torch.float64)
    return compare_mapped(ours, theirs, waves(2, TIME, 8), _mapped, lambda x: theirs(x) - x)


def _default():
    return _flash_pytorch("relu_squared")


def _laplace():
    return _flash_pytorch("laplace")


HUB = "FLASH-pytorch 0.1.9, GAU"
CASES = [
    Case("gau", HUB, "causal", "layer", _default, 1e-9),
    Case("gau", HUB, "causal, laplace_attn_fn", "layer", _laplace, 1e-9),
    Case(
        *("gau", HUB, "default, which is not causal", "layer", None),
        note="a step would see later ones",
    ),
]
