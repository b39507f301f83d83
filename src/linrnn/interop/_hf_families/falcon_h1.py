"""Falcon-H1: Mamba-2 and attention side by side, with fixed numbers before most products."""

from typing import Any

from transformers import FalconH1ForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_layouts import require
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    attention_weights,
    check_rotary,
    check_usual,
    gated_weights,
    in_blocks,
    mamba2_options,
    mamba2_weights,
)
from linrnn.interop._hf_weights import Weight, renamed, within


def _stack(theirs: Any) -> dict[str, Any]:
    of_gate, of_output = map(float, theirs.mlp_multipliers)
    return {
        "mixer": "falcon_h1",
        "mixer_options": _options(theirs),
        "block": "swiglu",
        "block_options": {"swiglu": {"gate_scale": of_gate, "out_scale": of_output}},
        "d_ffn": theirs.intermediate_size,
        "encoder_scale": float(theirs.embedding_multiplier),
        "head_scale": float(theirs.lm_head_multiplier),
    }


def _options(theirs: Any) -> dict[str, Any]:
    mamba, attention = mamba2_options(theirs), attention_options(theirs)
    options = {**mamba, **attention}
    options |= {"mamba_head": mamba["d_head"], "attention_bias": attention["bias"]}
    options |= {"bias": mamba["bias"], "rmsnorm": theirs.mamba_rms_norm}
    options["norm_before_gate"] = theirs.mamba_rms_norm and theirs.mamba_norm_before_gate
    # without biases a number before an input is one before all that is made of it
    names, of_input = ("z", "s", "B", "C", "dt"), float(theirs.ssm_in_multiplier)
    for name, factor in zip(names, theirs.ssm_multipliers, strict=True):
        options[f"{name}_scale"] = of_input * factor
    of_input = float(theirs.attention_in_multiplier)
    options["ssm_out"] = float(theirs.ssm_out_multiplier)
    options["attention_out"] = of_input * theirs.attention_out_multiplier
    options["score_scale"] = of_input**2 * theirs.key_multiplier
    return options


def _weights(theirs: Any) -> list[Weight]:
    options = _options(theirs)
    inner = renamed(
        {"norm.weight": "input_layernorm.weight", "swiglu_norm.weight": "pre_ff_layernorm.weight"}
    )
    inner += gated_weights("swiglu", "feed_forward")
    inner += within("mixer.mamba.", "mamba.", mamba2_weights(options))
    attention = attention_weights({**options, "bias": options["attention_bias"]})
    inner += within("mixer.attention.", "self_attn.", attention)
    outer = renamed({**OUTER, "final_norm.weight": "model.final_layernorm.weight"})
    return in_blocks(outer, [inner] * theirs.num_hidden_layers)


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs)
    check_rotary(where, theirs)
    require(where, theirs, projectors_bias=theirs.mamba_proj_bias)
    if theirs.mamba_proj_bias:
        require(where, theirs, ssm_in_multiplier=1.0)
    if theirs.attention_bias:
        require(where, theirs, attention_in_multiplier=1.0)


FAMILY = Family(FalconH1ForCausalLM, _stack, _weights, _check)
