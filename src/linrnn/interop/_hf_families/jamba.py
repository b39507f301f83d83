"""Jamba: Mamba with norms inside and layers of attention, with a network or experts each."""

from typing import Any

from transformers import JambaForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_layouts import AFFINE
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    attention_weights,
    check_usual,
    expert_weights,
    gated_weights,
    in_blocks,
    layers,
)
from linrnn.interop._hf_weights import Weight, equal, renamed, within


def _stack(theirs: Any) -> dict[str, Any]:
    parts = _parts(theirs)
    experts = {
        "n_experts": theirs.num_experts,
        "top_k": theirs.num_experts_per_tok,
        "normalise": False,
    }
    return {
        **layers(theirs.layers_block_type, _options(theirs)),
        "block": "swiglu",
        "block_pattern": tuple(parts),
        "block_options": {"moe": experts} if "moe" in parts else None,
        "d_ffn": theirs.intermediate_size,
    }


def _parts(theirs: Any) -> list[str]:
    """The network of each layer."""
    return ["moe" if number > 1 else "swiglu" for number in theirs.layers_num_experts]


def _options(theirs: Any) -> dict[str, Any]:
    mamba = {
        "d_state": theirs.mamba_d_state,
        "d_conv": theirs.mamba_d_conv,
        "expand": theirs.mamba_expand,
        "dt_rank": theirs.mamba_dt_rank,
        "conv_bias": bool(theirs.mamba_conv_bias),
        "bias": bool(theirs.mamba_proj_bias),
        "bcdt_norm": "weighted",
        "norm_eps": theirs.rms_norm_eps,
    }
    return {"mamba": mamba, "attention": attention_options(theirs, d_rotary=0, bias=False)}


def _weights(theirs: Any) -> list[Weight]:
    mixers = {
        "mamba": within("mixer.", "mamba.", mamba_weights(_options(theirs)["mamba"])),
        "attention": within(
            "mixer.", "self_attn.", attention_weights(_options(theirs)["attention"])
        ),
    }
    experts = renamed({"moe.router.weight": "feed_forward.router.weight"})
    networks = {
        "moe": experts + expert_weights("moe", "feed_forward.experts"),
        "swiglu": gated_weights("swiglu", "feed_forward"),
    }
    blocks = []
    for mixer, part in zip(theirs.layers_block_type, _parts(theirs), strict=True):
        norms = {
            "norm.weight": "input_layernorm.weight",
            f"{part}_norm.weight": "pre_ff_layernorm.weight",
        }
        blocks.append([*renamed(norms), *mixers[mixer], *networks[part]])
    outer = renamed({**OUTER, "final_norm.weight": "model.final_layernorm.weight"})
    return in_blocks(outer, blocks)


def mamba_weights(options: dict[str, Any]) -> list[Weight]:
    """Weights of `linrnn.mixers.Mamba` with these options, which have the same names there."""
    parts = ["A_log", "D", *(f"dt_proj.{word}" for word in AFFINE)]
    parts += [f"{p}.weight" for p in ("in_proj", "conv1d", "x_proj", "out_proj")]
    parts += ["conv1d.bias"] if options["conv_bias"] else []
    parts += ["in_proj.bias", "out_proj.bias"] if options["bias"] else []
    if options.get("bcdt_norm") == "weighted":
        parts += [f"{p}_layernorm.weight" for p in ("dt", "b", "c")]
    return equal(*parts)


FAMILY = Family(JambaForCausalLM, _stack, _weights, check_usual)
