"""Weights of transformers' Mamba in and out, with equal logits."""

import os
from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import MambaConfig, MambaForCausalLM

from linrnn.errors import ArgumentError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_layouts import (
    AFFINE,
    SHARED_KEYS,
    export_weights,
    import_weights,
    load_peer,
    names_of,
    require,
    require_stack,
    special_tokens,
)
from linrnn.interop._hf_model import LinrnnForCausalLM

KEYS = (
    *(*SHARED_KEYS, "state_size", "expand", "conv_kernel", "use_bias", "use_conv_bias"),
    *("hidden_act", "residual_in_fp32"),
)
"""Fields in the configurations of Mamba and of Mamba-2, which has more."""
_OUTER = {
    "encoder.weight": "backbone.embeddings.weight",
    "final_norm.weight": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}


def from_mamba(model: MambaForCausalLM | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """Mamba of ``transformers`` as a model of ours, with equal logits.

    Args:
        model: a ``MambaForCausalLM``, the folder of one, or its name on the hub; weights in
            safetensors only.

    Returns:
        A copy, in evaluation mode, with the mixer ``mamba`` in bare blocks.

    Raises:
        DataError: a folder that holds no such model, or one that we have no counterpart of.
        DTypeError: a model of another class.

    Reference:
        Gu and Dao 2023, arXiv:2312.00752. The residual stream has the dtype of the weights;
        ``residual_in_fp32`` makes a difference in half precision only.
    """
    peer = load_peer("from_mamba", model, MambaForCausalLM, (*KEYS, "time_step_rank"), check)
    theirs = peer.config
    options = {"dt_rank": int(theirs.time_step_rank), "expand": int(theirs.expand)}
    config = of_bare_blocks(theirs, "mamba", options)
    return import_weights(config, peer, peer.state_dict(), _names(config))


def to_mamba(model: LinrnnForCausalLM) -> MambaForCausalLM:
    """The inverse of `from_mamba`.

    Args:
        model: with the mixer ``mamba`` and the block structure of Mamba.

    Raises:
        ArgumentError: a model that Mamba's layout cannot express.
    """
    shared = to_bare_blocks("to_mamba", model, "mamba")
    mixer: Any = model.model.mixers[0]
    if mixer.b_disc != "euler":
        raise ArgumentError(f"to_mamba: b_disc must be 'euler', got {mixer.b_disc!r}.")
    if mixer.bcdt_norm != "none":
        raise ArgumentError(f"to_mamba: bcdt_norm must be 'none', got {mixer.bcdt_norm!r}.")
    for name in ("selective_dt", "selective_B", "selective_C"):
        if not getattr(mixer, name):
            raise ArgumentError(f"to_mamba: {name} must be True, got False.")
    peer = MambaForCausalLM(MambaConfig(time_step_rank=mixer.dt_rank, **shared))
    return export_weights("to_mamba", model, peer, _names(model.config))


def of_bare_blocks(theirs: Any, mixer: str, options: dict[str, Any]) -> LinrnnConfig:
    """Configuration of a model that has nothing but Mamba's layers, each behind a norm."""
    return LinrnnConfig(
        vocab_size=theirs.vocab_size,
        mixer=mixer,
        mixer_options={
            **options,
            "d_state": theirs.state_size,
            "d_conv": theirs.conv_kernel,
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


def to_bare_blocks(where: str, model: LinrnnForCausalLM, mixer: str) -> dict[str, Any]:
    """The inverse: what the configurations of Mamba and Mamba-2 share.

    Raises:
        ArgumentError: a model of other blocks or with another mixer.
    """
    ours, layer = model.config, cast("Any", model.model.mixers[0])
    require_stack(where, ours, mixer=mixer, norm="rms", block="bare")
    eps = torch.finfo(model.dtype).eps if ours.norm_eps is None else ours.norm_eps
    return {
        "vocab_size": ours.vocab_size,
        "hidden_size": ours.d_model,
        "num_hidden_layers": ours.n_layers,
        "layer_norm_epsilon": eps,
        "state_size": layer.d_state,
        "conv_kernel": layer.d_conv,
        "expand": layer.expand,
        "use_conv_bias": layer.conv_bias,
        "use_bias": layer.bias,
        "tie_word_embeddings": ours.tie_word_embeddings,
        **special_tokens(ours),
    }


def names(config: LinrnnConfig, parts: Sequence[str]) -> dict[str, str]:
    """Names of our weights to theirs, in a model of Mamba's layers that have those ``parts``."""
    options = config.mixer_options or {}
    parts = [*parts, "A_log", "D"]
    parts += [f"{p}.weight" for p in ("in_proj", "conv1d", "out_proj")]
    parts += ["conv1d.bias"] if options.get("conv_bias", True) else []
    parts += ["in_proj.bias", "out_proj.bias"] if options.get("bias", False) else []
    block = {"norm.weight": "norm.weight", **{f"mixer.{p}": f"mixer.{p}" for p in parts}}
    return names_of(_OUTER, block, "backbone.layers", config)


def check(where: str, theirs: Any) -> None:
    """Raise unless a configuration of Mamba or Mamba-2 has SiLU and an integer ``expand``."""
    require(where, theirs, hidden_act="silu", expand=int(theirs.expand))


def _names(config: LinrnnConfig) -> dict[str, str]:
    return names(config, ["x_proj.weight", *(f"dt_proj.{p}" for p in AFFINE)])
