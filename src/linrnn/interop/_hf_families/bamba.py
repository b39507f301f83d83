"""Bamba: Mamba-2 with layers of attention, each followed by a gated network."""

from typing import Any

from transformers import BambaForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    attention_weights,
    check_rotary,
    check_usual,
    gated_weights,
    in_blocks,
    layers,
    mamba2_options,
    mamba2_weights,
)
from linrnn.interop._hf_weights import Weight, renamed, within


def _stack(theirs: Any) -> dict[str, Any]:
    kinds = {"linear_attention": "mamba2", "full_attention": "attention"}
    mixers = [kinds[kind] for kind in theirs.layers_block_type]
    return {
        **layers(mixers, _options(theirs)),
        "block": "swiglu",
        "d_ffn": theirs.intermediate_size,
    }


def _options(theirs: Any) -> dict[str, Any]:
    return {"mamba2": mamba2_options(theirs), "attention": attention_options(theirs)}


def _weights(theirs: Any) -> list[Weight]:
    options = _options(theirs)
    parts = {
        "linear_attention": within("mixer.", "mamba.", mamba2_weights(options["mamba2"])),
        "full_attention": within("mixer.", "self_attn.", attention_weights(options["attention"])),
    }
    around = renamed(
        {"norm.weight": "input_layernorm.weight", "swiglu_norm.weight": "pre_ff_layernorm.weight"}
    )
    around += gated_weights("swiglu", "feed_forward")
    outer = renamed({**OUTER, "final_norm.weight": "model.final_layernorm.weight"})
    return in_blocks(outer, [[*around, *parts[kind]] for kind in theirs.layers_block_type])


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs)
    check_rotary(where, theirs)


FAMILY = Family(BambaForCausalLM, _stack, _weights, _check)
