"""Falcon-Mamba: Mamba with norms without weights inside."""

from typing import Any

from transformers import FalconMambaForCausalLM

from linrnn.interop._hf_families.jamba import mamba_weights
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_layouts import require
from linrnn.interop._hf_parts import check_usual, in_blocks
from linrnn.interop._hf_weights import Weight, equal, renamed, within

_OUTER = {
    "encoder.weight": "backbone.embeddings.weight",
    "final_norm.weight": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}


def _stack(theirs: Any) -> dict[str, Any]:
    return {
        "mixer": "mamba",
        "mixer_options": _options(theirs),
        "block": "bare",
        "norm_eps": theirs.layer_norm_epsilon,
    }


def _options(theirs: Any) -> dict[str, Any]:
    return {
        "d_state": theirs.state_size,
        "d_conv": theirs.conv_kernel,
        "expand": theirs.expand,
        "dt_rank": int(theirs.time_step_rank),
        "conv_bias": bool(theirs.use_conv_bias),
        "bias": bool(theirs.use_bias),
        "bcdt_norm": "rms",
        "norm_eps": theirs.mixer_rms_eps,
    }


def _weights(theirs: Any) -> list[Weight]:
    inner = [*equal("norm.weight"), *within("mixer.", "mixer.", mamba_weights(_options(theirs)))]
    return in_blocks(renamed(_OUTER), [inner] * theirs.num_hidden_layers, "backbone.layers")


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs)
    require(where, theirs, expand=int(theirs.expand))


FAMILY = Family(FalconMambaForCausalLM, _stack, _weights, _check)
