"""MiniMax-01: lightning attention with layers of softmax attention, and experts."""

from typing import Any

import torch
from transformers import MiniMaxForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import check_whole_heads, mixture_weights
from linrnn.interop._hf_layouts import require
from linrnn.interop._hf_parts import (
    attention_options,
    attention_weights,
    check_rotary,
    check_usual,
    in_blocks,
    layers,
)
from linrnn.interop._hf_weights import Tensors, Weight, renamed, within

_KINDS = {"linear_attention": "transnormer_llm", "full_attention": "attention"}
_NORM_EPS = 1e-6  # of lightning attention, whatever the configuration says


def _options(theirs: Any) -> dict[str, dict[str, Any]]:
    attention = attention_options(theirs, window=theirs.sliding_window)
    lightning = {
        **{"n_heads": theirs.num_attention_heads, "d_head": attention["d_head"]},
        **{"decay": "minimax", "v_activation": "silu", "gate": "sigmoid", "lrpe": "never"},
        **{"norm_eps": _NORM_EPS, "norm_weight": True},
    }
    return {"transnormer_llm": lightning, "attention": attention}


def _stack(theirs: Any) -> dict[str, Any]:
    experts = {
        "n_experts": theirs.num_local_experts,
        "top_k": theirs.num_experts_per_tok,
        "d_inner": theirs.intermediate_size,
    }
    return {
        **layers([_KINDS[kind] for kind in theirs.layer_types], _options(theirs)),
        **{"block": "moe", "block_options": {"moe": experts}},
        # a norm's output goes on past the part as well, so each norm is that behind the part before
        **{"prenorm": False, "encoder_norm": True, "final_norm": False},
        "skip_scale": float(theirs.mlp_alpha_factor),
        "residual_scale": float(theirs.mlp_beta_factor),
    }


def _lightning(options: dict[str, Any]) -> list[Weight]:
    heads, width = options["n_heads"], options["d_head"]

    def to_ours(x: Tensors) -> Tensors:
        vectors = x[0].unflatten(0, (heads, 3, width)).unbind(1)  # q, k, v of every head
        return [torch.cat([*(v.flatten(0, 1) for v in vectors), x[1]])]

    def to_theirs(x: Tensors) -> Tensors:
        vectors = x[0].unflatten(0, (4, heads, width))
        return [vectors[:3].transpose(0, 1).flatten(0, 2), vectors[3].flatten(0, 1)]

    maps = ("heads.proj.weight",), ("qkv_proj.weight", "output_gate.weight")
    same = {"norm_scale": "norm.weight", "out_proj.weight": "out_proj.weight"}
    return [Weight(*maps, to_ours, to_theirs), *renamed(same)]


def _weights(theirs: Any) -> list[Weight]:
    options, depth = _options(theirs), theirs.num_hidden_layers
    mixers = {
        "linear_attention": _lightning(options["transnormer_llm"]),
        "full_attention": attention_weights(options["attention"]),
    }
    experts = mixture_weights("mlp", {"router.weight": "gate.weight"})
    blocks = [
        [*within("mixer.", "self_attn.", mixers[kind]), *experts] for kind in theirs.layer_types
    ]
    first = "model.layers.0.input_layernorm.weight"
    outer = {
        "encoder.weight": "model.embed_tokens.weight",
        "encoder_norm.weight": first,
        "head.weight": "lm_head.weight",
    }
    for i in range(depth):
        outer[f"blocks.{i}.norm.weight"] = f"model.layers.{i}.post_attention_layernorm.weight"
        last = "model.norm" if i + 1 == depth else f"model.layers.{i + 1}.input_layernorm"
        outer[f"blocks.{i}.moe_norm.weight"] = f"{last}.weight"
    return in_blocks(renamed(outer), blocks)


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs, router_jitter_noise=0.0)
    check_rotary(where, theirs)
    check_whole_heads(where, theirs)
    for kind in ("alpha", "beta"):
        factor = getattr(theirs, f"mlp_{kind}_factor")
        names = [f"{part}_{kind}_factor" for part in ("full_attn", "linear_attn")]
        require(where, theirs, **dict.fromkeys(names, factor))


FAMILY = Family(
    *(MiniMaxForCausalLM, _stack, _weights, _check),
    ("num_experts",),
    derived=("slope_rate", "query_decay", "key_decay", "diagonal_decay"),
)
