"""Kimi Linear: KDA with layers of latent attention without positions, and experts."""

from typing import Any

from transformers import KimiLinearForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import (
    DEEPSEEK,
    deepseek_moe,
    kda_options,
    kda_weights,
    latent_options,
    latent_weights,
    mixture_weights,
)
from linrnn.interop._hf_parts import OUTER, check_usual, gated_weights, in_blocks, layers
from linrnn.interop._hf_weights import Weight, renamed, within

_KINDS = {"linear_attention": "kda", "full_attention": "latent_attention"}
_PARTS = {"dense": "swiglu", "sparse": "moe"}
_KDA = {
    "decay.proj.down.weight": "forget_gate.f_a_proj.weight",
    "decay.proj.up.weight": "forget_gate.f_b_proj.weight",
    "out.gate_proj.down.weight": "g_a_proj.weight",
    "out.gate_proj.up.weight": "g_b_proj.weight",
}


def _options(theirs: Any) -> dict[str, dict[str, Any]]:
    latent = latent_options(theirs, rotary=False, q_rank=theirs.q_lora_rank)
    return {"kda": kda_options(theirs), "latent_attention": latent}


def stack_of(theirs: Any, options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Fields of a stack of KDA and latent attention, dense networks and experts."""
    parts = [_PARTS[kind] for kind in theirs.mlp_layer_types]
    stack = layers([_KINDS[kind] for kind in theirs.layer_types], options)
    if "swiglu" in parts:
        stack["d_ffn"] = theirs.intermediate_size
    if "moe" in parts:
        stack["block_options"] = {"moe": deepseek_moe(theirs)}
    return {**stack, "block_pattern": tuple(parts)}


def weights_of(theirs: Any, kda: list[Weight], latent: list[Weight]) -> list[Weight]:
    """All weights, of those of both mixers."""
    mixers = {
        "linear_attention": within("mixer.", "self_attn.", kda),
        "full_attention": within("mixer.", "self_attn.", latent),
    }
    parts = {
        "dense": gated_weights("swiglu", "mlp"),
        "sparse": mixture_weights("mlp", DEEPSEEK, shared="shared_experts"),
    }
    blocks = []
    for kind, part in zip(theirs.layer_types, theirs.mlp_layer_types, strict=True):
        norms = {"norm.weight": "input_layernorm.weight"}
        norms[f"{_PARTS[part]}_norm.weight"] = "post_attention_layernorm.weight"
        blocks.append([*renamed(norms), *mixers[kind], *parts[part]])
    return in_blocks(renamed(OUTER), blocks)


def _stack(theirs: Any) -> dict[str, Any]:
    return stack_of(theirs, _options(theirs))


def _weights(theirs: Any) -> list[Weight]:
    options = _options(theirs)
    kda = kda_weights(options["kda"], _KDA)
    return weights_of(theirs, kda, latent_weights(options["latent_attention"]))


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs, num_key_value_heads=theirs.num_attention_heads)


FAMILY = Family(
    *(KimiLinearForCausalLM, _stack, _weights, _check),
    (
        *("linear_attn_config", "first_k_dense_replace", "model_max_length", "moe_renormalize"),
        *("num_expert_group", "num_experts", "num_experts_per_token", "num_shared_experts"),
    ),
)
