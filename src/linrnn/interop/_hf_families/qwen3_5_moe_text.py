"""Qwen3.5's language model with mixtures of experts."""

from typing import Any

from transformers import Qwen3_5MoeForCausalLM

from linrnn.interop._hf_families import qwen3_5_text as dense
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import mixture_weights
from linrnn.interop._hf_parts import in_blocks
from linrnn.interop._hf_weights import Weight

_ROUTER = {"router.weight": "gate.weight", "shared_gate.weight": "shared_expert_gate.weight"}


def experts(theirs: Any) -> dict[str, Any]:
    """Options of the mixtures."""
    return {
        "n_experts": theirs.num_experts,
        "top_k": theirs.num_experts_per_tok,
        "d_inner": theirs.moe_intermediate_size,
        "d_shared": theirs.shared_expert_intermediate_size,
        "shared_gate": True,
    }


def expert_part() -> list[Weight]:
    """Weights of a mixture and the norm before it."""
    return [*dense.part_norm("moe"), *mixture_weights("mlp", _ROUTER, shared="shared_expert")]


def _stack(theirs: Any) -> dict[str, Any]:
    return {**dense.stack_of(theirs), "block": "moe", "block_options": {"moe": experts(theirs)}}


def _weights(theirs: Any) -> list[Weight]:
    mixers, around = dense.mixer_weights(theirs), expert_part()
    return in_blocks(dense.outer(), [[*around, *mixers[kind]] for kind in theirs.layer_types])


FAMILY = Family(Qwen3_5MoeForCausalLM, _stack, _weights, dense.check, dense.MORE_KEYS)
