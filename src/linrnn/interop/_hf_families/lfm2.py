"""LFM2: short convolutions with layers of attention, each followed by a gated network."""

from typing import Any

from transformers import Lfm2ForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import check_whole_heads
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    attention_weights,
    check_rotary,
    in_blocks,
    layers,
    qk_norm_weights,
)
from linrnn.interop._hf_weights import Weight, equal, renamed, within

_KINDS = {"conv": "short_conv", "full_attention": "attention"}
_MLP = {"gate": "w1", "up": "w3", "down": "w2"}
MLP = renamed({f"swiglu.{our}.weight": f"feed_forward.{w}.weight" for our, w in _MLP.items()})
LAST_NORM = {"final_norm.weight": "model.embedding_norm.weight"}


def options_of(theirs: Any) -> dict[str, dict[str, Any]]:
    """Options of both mixers."""
    norm = {"qk_norm": "head", "norm_eps": theirs.norm_eps}
    return {
        "short_conv": {"d_conv": theirs.conv_L_cache, "bias": theirs.conv_bias},
        "attention": attention_options(theirs, **norm),
    }


def mixer_weights(theirs: Any) -> dict[str, list[Weight]]:
    """Weights of both mixers, by their words for them."""
    options, names = options_of(theirs)["attention"], ("q_layernorm", "k_layernorm")
    ends = ("weight", "bias") if theirs.conv_bias else ("weight",)
    conv = equal(*(f"{part}.{end}" for part in ("in_proj", "conv", "out_proj") for end in ends))
    attention = [*attention_weights(options), *qk_norm_weights(options, names)]
    attention = [
        weight._replace(theirs=tuple(n.replace("o_proj", "out_proj") for n in weight.theirs))
        for weight in attention
    ]
    return {
        "conv": within("mixer.", "conv.", conv),
        "full_attention": within("mixer.", "self_attn.", attention),
    }


def stack_of(theirs: Any) -> dict[str, Any]:
    """Fields of all but the feed-forward networks."""
    mixers = [_KINDS[kind] for kind in theirs.layer_types]
    return {**layers(mixers, options_of(theirs)), "norm_eps": theirs.norm_eps}


def check(where: str, theirs: Any) -> None:
    """Raise `DataError` for a configuration that we have no counterpart of."""
    check_rotary(where, theirs)
    check_whole_heads(where, theirs)


def norms(part: str) -> list[Weight]:
    """Weights of both norms of a block."""
    return renamed(
        {"norm.weight": "operator_norm.weight", f"{part}_norm.weight": "ffn_norm.weight"}
    )


def _width(theirs: Any) -> int:
    width: int = theirs.intermediate_size
    if theirs.block_auto_adjust_ff_dim:
        width = int(2 * width / 3)
        if theirs.block_ffn_dim_multiplier is not None:
            unit = theirs.block_multiple_of
            width = -(-int(theirs.block_ffn_dim_multiplier * width) // unit) * unit
    return width


def _stack(theirs: Any) -> dict[str, Any]:
    return {**stack_of(theirs), "block": "swiglu", "d_ffn": _width(theirs)}


def _weights(theirs: Any) -> list[Weight]:
    mixers = mixer_weights(theirs)
    around = [*norms("swiglu"), *MLP]
    blocks = [[*around, *mixers[kind]] for kind in theirs.layer_types]
    return in_blocks(renamed({**OUTER, **LAST_NORM}), blocks)


FAMILY = Family(Lfm2ForCausalLM, _stack, _weights, check, ("block_ff_dim", "tie_embedding"))
