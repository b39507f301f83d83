"""Qwen3.5's language model: gated DeltaNet with layers of gated attention."""

from typing import Any

from transformers import Qwen3_5ForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import DELTA, delta_options, gated_attention_weights, norms
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    check_rotary,
    check_usual,
    gated_weights,
    in_blocks,
    layers,
    qk_norm_weights,
)
from linrnn.interop._hf_weights import Weight, one_more, renamed, within

_KINDS = {"linear_attention": "gated_delta_net", "full_attention": "attention"}
_DELTA = {
    **DELTA,
    "qkv.heads.proj.weight": "in_proj_qkv.weight",
    "out.gate_proj.weight": "in_proj_z.weight",
    "beta_proj.weight": "in_proj_b.weight",
    "decay.proj.weight": "in_proj_a.weight",
    "out.norm_weight": "norm.weight",
    "out.out_proj.weight": "out_proj.weight",
}
MORE_KEYS = ("full_attention_interval",)


def options_of(theirs: Any) -> dict[str, dict[str, Any]]:
    """Options of both mixers."""
    attention = {"qk_norm": "head", "norm_eps": theirs.rms_norm_eps, "gate": "sigmoid"}
    return {
        "gated_delta_net": delta_options(theirs, dt_start="one"),
        "attention": attention_options(theirs, **attention),
    }


def mixer_weights(theirs: Any, delta: list[Weight] | None = None) -> dict[str, list[Weight]]:
    """Weights of both mixers and the norm before them, by their words for them.

    Args:
        theirs: the configuration.
        delta: of gated DeltaNet, where they are others.
    """
    options = options_of(theirs)["attention"]
    attention = [*gated_attention_weights(options), *qk_norm_weights(options, one=True)]
    delta = renamed(_DELTA) if delta is None else delta
    norm = one_more("norm.weight", "input_layernorm.weight")
    return {
        "linear_attention": [norm, *within("mixer.", "linear_attn.", delta)],
        "full_attention": [norm, *within("mixer.", "self_attn.", attention)],
    }


def stack_of(theirs: Any) -> dict[str, Any]:
    """Fields of all but the feed-forward networks."""
    return layers([_KINDS[kind] for kind in theirs.layer_types], options_of(theirs))


def part_norm(part: str) -> list[Weight]:
    """Weights of the norm before a feed-forward network."""
    return norms({f"{part}_norm.weight": "post_attention_layernorm.weight"}, one=True)


def outer() -> list[Weight]:
    """Weights around the stack."""
    ends = {name: OUTER[name] for name in OUTER if "norm" not in name}
    return [*renamed(ends), one_more("final_norm.weight", "model.norm.weight")]


def check(where: str, theirs: Any) -> None:
    """Raise `DataError` for a configuration that we have no counterpart of."""
    check_usual(where, theirs)
    check_rotary(where, theirs)


def _stack(theirs: Any) -> dict[str, Any]:
    return {**stack_of(theirs), "block": "swiglu", "d_ffn": theirs.intermediate_size}


def _weights(theirs: Any) -> list[Weight]:
    mixers = mixer_weights(theirs)
    around = [*part_norm("swiglu"), *gated_weights("swiglu", "mlp")]
    return in_blocks(outer(), [[*around, *mixers[kind]] for kind in theirs.layer_types])


FAMILY = Family(Qwen3_5ForCausalLM, _stack, _weights, check, MORE_KEYS)
