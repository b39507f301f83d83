"""Weights of transformers' Mamba-2 in and out, with equal logits."""

import os
from typing import Any

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from linrnn.errors import ArgumentError, DataError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_layouts import (
    SHARED_KEYS,
    export_weights,
    import_weights,
    load_peer,
    names_of,
    require,
    special_tokens,
)
from linrnn.interop._hf_model import LinrnnForCausalLM

_KEYS = (
    *(*SHARED_KEYS, "state_size", "expand", "conv_kernel", "use_bias", "use_conv_bias"),
    *("hidden_act", "num_heads", "head_dim", "n_groups", "time_step_limit", "chunk_size"),
    "residual_in_fp32",
)
_OUTER = {
    "encoder.weight": "backbone.embeddings.weight",
    "final_norm.weight": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}


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
    peer = load_peer("from_mamba2", model, Mamba2ForCausalLM, _KEYS, _check)
    theirs = peer.config
    config = LinrnnConfig(
        vocab_size=theirs.vocab_size,
        mixer="mamba2",
        mixer_options={
            "d_state": theirs.state_size,
            "d_head": theirs.head_dim,
            "n_groups": theirs.n_groups,
            "d_conv": theirs.conv_kernel,
            "expand": int(theirs.expand),
            "norm_eps": theirs.layer_norm_epsilon,
            "conv_bias": theirs.use_conv_bias,
            "bias": theirs.use_bias,
        },
        d_model=theirs.hidden_size,
        n_layers=theirs.num_hidden_layers,
        norm="rms",
        norm_eps=theirs.layer_norm_epsilon,
        block="bare",
        final_norm=True,
        head_bias=False,
        tie_word_embeddings=theirs.tie_word_embeddings,
    )
    return import_weights(config, peer, peer.state_dict(), _names(config))


def to_mamba2(model: LinrnnForCausalLM) -> Mamba2ForCausalLM:
    """The inverse of `from_mamba2`.

    Args:
        model: with the mixer ``mamba2`` and the block structure of Mamba-2.

    Raises:
        ArgumentError: a model that Mamba-2's layout cannot express.
    """
    ours = model.config
    expected = {"mixer": "mamba2", "norm": "rms", "block": "bare", "encoder_norm": False}
    require("to_mamba2", ours, **expected, final_norm=True, prenorm=True, conv_width=0)
    mixer: Any = model.model.mixers[0]
    eps = torch.finfo(model.dtype).eps if ours.norm_eps is None else ours.norm_eps
    if mixer.norm_eps != eps:
        raise ArgumentError(
            f"to_mamba2: the mixer's norm_eps must be that of the model, {eps}, to be converted, "
            f"got {mixer.norm_eps}."
        )
    peer = Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=ours.vocab_size,
            hidden_size=ours.d_model,
            num_hidden_layers=ours.n_layers,
            layer_norm_epsilon=eps,
            state_size=mixer.d_state,
            num_heads=mixer.n_heads,
            head_dim=mixer.d_head,
            n_groups=mixer.n_groups,
            conv_kernel=mixer.d_conv,
            expand=mixer.expand,
            use_conv_bias=mixer.conv_bias,
            use_bias=mixer.bias,
            tie_word_embeddings=ours.tie_word_embeddings,
            **special_tokens(ours),
        )
    )
    return export_weights("to_mamba2", model, peer, _names(ours))


def _names(config: LinrnnConfig) -> dict[str, str]:
    options = config.mixer_options or {}
    parts = ["A_log", "D", "dt_bias", *(f"{p}.weight" for p in ("in_proj", "conv1d", "norm"))]
    parts += ["out_proj.weight"]
    parts += ["conv1d.bias"] if options.get("conv_bias", True) else []
    parts += ["in_proj.bias", "out_proj.bias"] if options.get("bias", False) else []
    block = {"norm.weight": "norm.weight", **{f"mixer.{p}": f"mixer.{p}" for p in parts}}
    return names_of(_OUTER, block, "backbone.layers", config)


def _check(where: str, theirs: Any) -> None:
    require(where, theirs, hidden_act="silu", expand=int(theirs.expand))
    if tuple(theirs.time_step_limit) != (0.0, float("inf")):
        raise DataError(
            f"{where}: time_step_limit must be (0.0, inf) to be converted, got "
            f"{theirs.time_step_limit}."
        )
