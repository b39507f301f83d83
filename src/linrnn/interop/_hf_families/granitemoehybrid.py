"""Granite 4: Mamba-2 with layers of attention, each followed by experts and a network for all."""

from typing import Any

from transformers import GraniteMoeHybridForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    attention_weights,
    check_rotary,
    check_usual,
    expert_weights,
    in_blocks,
    layers,
    mamba2_options,
    mamba2_weights,
)
from linrnn.interop._hf_weights import Weight, joined, renamed, within


def _stack(theirs: Any) -> dict[str, Any]:
    mixers = [_kind(kind) for kind in theirs.layer_types]
    has_experts = bool(theirs.num_local_experts)
    experts = {
        "n_experts": theirs.num_local_experts,
        "top_k": theirs.num_experts_per_tok,
        "d_shared": theirs.shared_intermediate_size,
    }
    return {
        **layers(mixers, _options(theirs)),
        "block": "moe" if has_experts else "swiglu",
        "block_options": {"moe": experts} if has_experts else None,
        "d_ffn": theirs.intermediate_size if has_experts else theirs.shared_intermediate_size,
        "encoder_scale": float(theirs.embedding_multiplier),
        "residual_scale": float(theirs.residual_multiplier),
        "head_scale": 1 / theirs.logits_scaling,
    }


def _kind(kind: str) -> str:
    return "mamba2" if kind == "linear_attention" else "attention"


def _options(theirs: Any) -> dict[str, Any]:
    free = {} if theirs.position_embedding_type == "rope" else {"d_rotary": 0}
    scale = float(theirs.attention_multiplier)
    return {
        "mamba2": mamba2_options(theirs),
        "attention": attention_options(theirs, scale=scale, **free),
    }


def _weights(theirs: Any) -> list[Weight]:
    options = _options(theirs)
    parts = {
        "mamba2": within("mixer.", "mamba.", mamba2_weights(options["mamba2"])),
        "attention": within("mixer.", "self_attn.", attention_weights(options["attention"])),
    }
    has_experts = bool(theirs.num_local_experts)
    part, network = ("moe", "moe.shared") if has_experts else ("swiglu", "swiglu")
    around = renamed(
        {
            "norm.weight": "input_layernorm.weight",
            f"{part}_norm.weight": "post_attention_layernorm.weight",
            f"{network}.down.weight": "shared_mlp.output_linear.weight",
        }
    )
    halves = f"{network}.gate.weight", f"{network}.up.weight"
    around.append(joined(halves, "shared_mlp.input_linear.weight"))
    if has_experts:
        around += renamed({"moe.router.weight": "block_sparse_moe.router.weight"})
        around += expert_weights("moe", "block_sparse_moe.experts")
    blocks = [[*around, *parts[_kind(kind)]] for kind in theirs.layer_types]
    return in_blocks(renamed(OUTER), blocks)


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs)
    if theirs.position_embedding_type == "rope":
        check_rotary(where, theirs)


FAMILY = Family(GraniteMoeHybridForCausalLM, _stack, _weights, _check)
