"""Weights of transformers' Mamba-2 in and out, with equal logits."""

import os
from math import inf
from typing import Any

from transformers import Mamba2Config, Mamba2ForCausalLM

from linrnn.errors import ArgumentError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_layouts import export_weights, import_weights, load_peer
from linrnn.interop._hf_mamba import KEYS, check, names, of_bare_blocks, to_bare_blocks
from linrnn.interop._hf_model import LinrnnForCausalLM

_KEYS = (*KEYS, "num_heads", "head_dim", "n_groups", "time_step_limit", "chunk_size")


def from_mamba2(model: Mamba2ForCausalLM | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """Mamba-2 of ``transformers`` as a model of ours, with equal logits.

    Args:
        model: a ``Mamba2ForCausalLM``, the folder of one, or its name on the hub; weights in
            safetensors only.

    Returns:
        A copy, in evaluation mode, with the mixer ``mamba2`` in bare blocks.

    Raises:
        DataError: a folder that holds no such model, or one that we have no counterpart of.
        DTypeError: a model of another class.

    Reference:
        Dao and Gu 2024, arXiv:2405.21060. The residual stream has the dtype of the weights;
        ``residual_in_fp32`` makes a difference in half precision only.
    """
    peer = load_peer("from_mamba2", model, Mamba2ForCausalLM, _KEYS, check)
    theirs = peer.config
    options = {
        "d_head": theirs.head_dim,
        "n_groups": theirs.n_groups,
        "expand": int(theirs.expand),
        "norm_eps": theirs.layer_norm_epsilon,
        **_limits(theirs),
    }
    config = of_bare_blocks(theirs, "mamba2", options)
    return import_weights(config, peer, peer.state_dict(), _names(config))


def to_mamba2(model: LinrnnForCausalLM) -> Mamba2ForCausalLM:
    """The inverse of `from_mamba2`.

    Args:
        model: with the mixer ``mamba2`` and the block structure of Mamba-2.

    Raises:
        ArgumentError: a model that Mamba-2's layout cannot express.
    """
    shared = to_bare_blocks("to_mamba2", model, "mamba2")
    mixer: Any = model.model.mixers[0]
    eps = shared["layer_norm_epsilon"]
    if mixer.norm_eps != eps:
        raise ArgumentError(
            f"to_mamba2: the mixer's norm_eps must be that of the model, {eps}, to be converted, "
            f"got {mixer.norm_eps}."
        )
    expressed = {
        "d_inner": (mixer.d_inner, mixer.expand * mixer.d_model),
        "d_ssm": (mixer.d_ssm, mixer.d_inner),
        "D_has_hdim": (mixer.D_has_hdim, False),
        "rmsnorm": (mixer.rmsnorm, True),
        "norm_before_gate": (mixer.norm_before_gate, False),
    }
    for name, (value, expected) in expressed.items():
        if value != expected:
            raise ArgumentError(f"to_mamba2: {name} must be {expected}, got {value}.")
    high = inf if mixer.dt_high is None else mixer.dt_high
    shared["time_step_limit"] = (mixer.dt_low, high)
    sizes = {"num_heads": mixer.n_heads, "head_dim": mixer.d_head, "n_groups": mixer.n_groups}
    peer = Mamba2ForCausalLM(Mamba2Config(**sizes, **shared))
    return export_weights("to_mamba2", model, peer, _names(model.config))


def _names(config: LinrnnConfig) -> dict[str, str]:
    return names(config, ["dt_bias", "norm.weight"])


def _limits(theirs: Any) -> dict[str, float]:
    """Bounds of the step sizes, as far as there are any."""
    low, high = theirs.time_step_limit
    bounds = {"dt_low": low} if low > 0 else {}
    return bounds | ({"dt_high": high} if high < inf else {})
