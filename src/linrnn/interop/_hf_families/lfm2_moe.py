"""LFM2 with mixtures of experts in all but its first layers."""

from typing import Any

from transformers import Lfm2MoeForCausalLM

from linrnn.interop._hf_families import lfm2
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import mixture_weights
from linrnn.interop._hf_parts import OUTER, in_blocks
from linrnn.interop._hf_weights import Weight, renamed

_EPS = 1e-6  # added to the sum of the weights of a step


def _stack(theirs: Any) -> dict[str, Any]:
    dense = min(theirs.num_dense_layers, theirs.num_hidden_layers)
    experts = {
        "n_experts": theirs.num_experts,
        "top_k": theirs.num_experts_per_tok,
        "d_inner": theirs.moe_intermediate_size,
        "router": "sigmoid",
        "normalise": theirs.norm_topk_prob,
        "scale": float(theirs.routed_scaling_factor),
        "corrected": theirs.use_expert_bias,
        "eps": _EPS,
    }
    return {
        **lfm2.stack_of(theirs),
        "block_pattern": ("swiglu",) * dense + ("moe",) * (theirs.num_hidden_layers - dense),
        "block_options": {"moe": experts},
        "d_ffn": theirs.intermediate_size,
    }


def _weights(theirs: Any) -> list[Weight]:
    mixers = lfm2.mixer_weights(theirs)
    names = {"router.weight": "gate.weight"}
    names |= {"correction": "expert_bias"} if theirs.use_expert_bias else {}
    parts = {"swiglu": lfm2.MLP, "moe": mixture_weights("feed_forward", names)}
    blocks = []
    for i, kind in enumerate(theirs.layer_types):
        part = "swiglu" if i < theirs.num_dense_layers else "moe"
        blocks.append([*lfm2.norms(part), *parts[part], *mixers[kind]])
    return in_blocks(renamed({**OUTER, **lfm2.LAST_NORM}), blocks)


FAMILY = Family(Lfm2MoeForCausalLM, _stack, _weights, lfm2.check, ("tie_embedding",))
