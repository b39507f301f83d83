"""Attention as hybrids of transformers have it; theirs turn channels i and i + d_rotary / 2."""

import importlib

import torch

from linrnn.mixers import Attention
from published.case import Case, compare_mapped, fill, waves


def _neighbours(rows, d_head, d_rotary):
    """Rows (heads d_head, ...) whose first channels are pairs of neighbours, as ours are."""
    heads = rows.unflatten(0, (-1, d_head))
    turned, rest = heads[:, :d_rotary], heads[:, d_rotary:]
    turned = turned.unflatten(1, (2, d_rotary // 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, rest], 1).flatten(0, 1)


def _mapped(weights, d_head, d_rotary, centre):
    """``centre``: what their norms add to their weights."""
    ours = {}
    for name, weight in weights.items():
        which = name.split("_")[0]
        if "norm" in name:
            weight = centre + weight
        if which in ("q", "k"):
            weight = _neighbours(weight, d_head, d_rotary)
        ours[name] = weight
    return ours


def _with_gate(weights, d_head, d_rotary, centre):
    """Weights of Qwen3-Next, whose q_proj has the rows of a head's queries, then of its gate."""
    q, gate = weights["q_proj.weight"].unflatten(0, (-1, 2, d_head)).unbind(1)
    rest = {name: weight for name, weight in weights.items() if name != "q_proj.weight"}
    apart = {**rest, "q_proj.weight": q.flatten(0, 1)}
    return {**_mapped(apart, d_head, d_rotary, centre), "g_proj.weight": gate.flatten(0, 1)}


def _of_transformers(family, name, layer, mapped=_mapped, centre=0.0, **options):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    settings = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(settings, f"{name}TextConfig", None) or getattr(settings, f"{name}Config")
    sizes = {"hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    made = config(**sizes, num_hidden_layers=2, attn_implementation="eager", **options)
    index = made.layer_types.index("full_attention")
    theirs = getattr(module, f"{name}Attention")(made, index).double().eval()
    fill(list(theirs.parameters()))
    x = waves(2, 29, 8)
    turns = getattr(module, f"{name}RotaryEmbedding")(made)(x, torch.arange(29)[None])
    hidden = torch.full((29, 29), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    return compare_mapped(
        *(layer, theirs, x),
        lambda weights: mapped(weights, layer.d_head, layer.d_rotary, centre),
        lambda x: theirs(x, position_embeddings=turns, attention_mask=hidden)[0],
    )


SIZES = {"n_heads": 4, "n_kv_heads": 2, "d_head": 8, "dtype": torch.float64}


def _qwen3_next():
    layer = Attention(8, **SIZES, d_rotary=2, qk_norm="head", gate="sigmoid")
    types = {"layer_types": ["linear_attention", "full_attention"]}
    return _of_transformers("qwen3_next", "Qwen3Next", layer, _with_gate, 1.0, **types)


def _qwen3():
    layer = Attention(8, **SIZES, qk_norm="head")
    return _of_transformers("qwen3", "Qwen3", layer)


def _olmo_hybrid():
    layer = Attention(8, **SIZES, qk_norm="all")
    types = {"layer_types": ["linear_attention", "full_attention"]}
    return _of_transformers("olmo_hybrid", "OlmoHybrid", layer, **types)


def _gemma2():
    # theirs divides by the root of query_pre_attn_scalar, here of d_head
    layer = Attention(8, **SIZES, soft_cap=50.0)
    return _of_transformers("gemma2", "Gemma2", layer, query_pre_attn_scalar=8)


def _low_cap():
    layer = Attention(8, **SIZES, soft_cap=0.5)
    options = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5}
    return _of_transformers("gemma2", "Gemma2", layer, **options)


HUB, DEFAULT = "transformers 5.23, ", "default but for the sizes"
CASES = [
    Case("attention", HUB + "Qwen3NextAttention", DEFAULT, "layer", _qwen3_next, 1e-5),
    Case("attention", HUB + "Qwen3Attention", DEFAULT, "layer", _qwen3, 1e-5),
    Case("attention", HUB + "OlmoHybridAttention", DEFAULT, "layer", _olmo_hybrid, 1e-5),
    Case("attention", HUB + "Gemma2Attention", DEFAULT, "layer", _gemma2, 1e-5),
    Case("attention", HUB + "Gemma2Attention", "logits capped at 0.5", "layer", _low_cap, 1e-5),
]
