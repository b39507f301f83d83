"""Weights of transformers' xLSTM in and out, with equal logits."""

import math
import os
from typing import Any, cast

import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

from linrnn.errors import ArgumentError, DataError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_layouts import (
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
from linrnn.mixers.mlstm_large import EPS

# kernels, what they compute in and how long their chunks are say nothing about the weights
_KEYS = (
    *(*SHARED_KEYS, "embedding_dim", "num_blocks", "num_heads", "qk_dim_factor", "v_dim_factor"),
    *("ffn_proj_factor", "ffn_round_up_to_multiple_of", "use_bias", "weight_mode"),
    *("gate_soft_cap", "output_logit_soft_cap", "norm_eps", "eps"),
)
_OUTER = {
    "encoder.weight": "backbone.embeddings.weight",
    "final_norm.weight": "backbone.out_norm.weight",
    "head.weight": "lm_head.weight",
}
_MAPS = ("q", "k", "v", "ogate_preact", "igate_preact", "fgate_preact", "multihead_norm")
_BLOCK = {
    "norm.weight": "norm_mlstm.weight",
    **{f"mixer.{p}.weight": f"mlstm_layer.{p}.weight" for p in (*_MAPS, "out_proj")},
    **{f"mixer.{p}.bias": f"mlstm_layer.{p}.bias" for p in ("igate_preact", "fgate_preact")},
    "swiglu_norm.weight": "norm_ffn.weight",
    "swiglu.gate.weight": "ffn.proj_up_gate.weight",
    "swiglu.up.weight": "ffn.proj_up.weight",
    "swiglu.down.weight": "ffn.proj_down.weight",
}


def from_xlstm(model: xLSTMForCausalLM | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """The xLSTM of ``transformers``, as xLSTM 7B is, as a model of ours, with equal logits.

    Args:
        model: an ``xLSTMForCausalLM``, the folder of one, or its name on the hub; weights in
            safetensors only.

    Returns:
        A copy, in evaluation mode, with the mixer ``mlstm_large`` in blocks with ``swiglu``.

    Raises:
        DataError: a folder that holds no such model, or one that we have no counterpart of: with
            biases, fused weights, or another epsilon of the memory.
        DTypeError: a model of another class.

    Reference:
        Beck et al. 2025, arXiv:2503.13427. Kernels, their chunks and their dtypes are not taken
        over, nor are norms in another dtype than that of the weights: in half precision that
        makes a difference.
    """
    peer = load_peer("from_xlstm", model, xLSTMForCausalLM, _KEYS, _check)
    theirs, first = peer.config, peer.backbone.blocks[0]
    config = LinrnnConfig(
        vocab_size=theirs.vocab_size,
        mixer="mlstm_large",
        mixer_options={
            "n_heads": theirs.num_heads,
            "d_key": first.mlstm_layer.qk_dim // theirs.num_heads,
            "d_value": first.mlstm_layer.v_dim // theirs.num_heads,
            "gate_soft_cap": theirs.gate_soft_cap,
            "norm_eps": theirs.norm_eps,
        },
        d_model=theirs.hidden_size,
        n_layers=theirs.num_hidden_layers,
        norm="rms",
        norm_eps=theirs.norm_eps,
        block="swiglu",
        d_ffn=first.ffn.up_proj_dim,
        final_norm=True,
        head_bias=False,
        logit_soft_cap=theirs.output_logit_soft_cap,
    )
    names = names_of(_OUTER, _BLOCK, "backbone.blocks", config)
    return import_weights(config, peer, peer.state_dict(), names)


def to_xlstm(model: LinrnnForCausalLM) -> xLSTMForCausalLM:
    """The inverse of `from_xlstm`.

    transformers can keep a state between calls only where the keys of all heads together, and the
    values, are multiples of 64; for others ``use_cache`` is False.

    Args:
        model: with the mixer ``mlstm_large`` and the block structure of xLSTM 7B.

    Raises:
        ArgumentError: a model that xLSTM's layout cannot express.
    """
    ours, layer = model.config, cast("Any", model.model.mixers[0])
    parts = {"mixer": "mlstm_large", "norm": "rms", "block": "swiglu"}
    require_stack("to_xlstm", ours, **parts, logit_soft_cap=ours.logit_soft_cap)
    if ours.logit_soft_cap is None:
        raise ArgumentError("to_xlstm: logit_soft_cap must be a number to be converted, got None.")
    eps = torch.finfo(model.dtype).eps if ours.norm_eps is None else ours.norm_eps
    if layer.norm_eps != eps:
        raise ArgumentError(
            f"to_xlstm: the mixer's norm_eps must be that of the model, {eps}, to be converted, "
            f"got {layer.norm_eps}."
        )
    part: Any = model.model.blocks[0]
    keys, values = layer.n_heads * layer.d_key, layer.n_heads * layer.d_value
    peer = xLSTMForCausalLM(
        xLSTMConfig(
            vocab_size=ours.vocab_size,
            hidden_size=ours.d_model,
            num_hidden_layers=ours.n_layers,
            num_heads=layer.n_heads,
            qk_dim_factor=_factor(keys, ours.d_model),
            v_dim_factor=_factor(values, ours.d_model),
            ffn_proj_factor=_factor(part.swiglu.d_inner, ours.d_model),
            ffn_round_up_to_multiple_of=1,
            gate_soft_cap=layer.gate_soft_cap,
            output_logit_soft_cap=ours.logit_soft_cap,
            norm_eps=eps,
            use_cache=keys % 64 == values % 64 == 0,
            **special_tokens(ours),
        )
    )
    names = names_of(_OUTER, _BLOCK, "backbone.blocks", ours)
    return export_weights("to_xlstm", model, peer, names)


def _factor(width: int, d_model: int) -> float:
    """The factor that gives the width when multiplied by d_model and rounded down."""
    factor = width / d_model
    return factor if int(factor * d_model) == width else math.nextafter(factor, math.inf)


def _check(where: str, theirs: Any) -> None:
    require(where, theirs, weight_mode="single", use_bias=False, eps=EPS)
    require(where, theirs, embedding_dim=theirs.hidden_size, num_blocks=theirs.num_hidden_layers)
    cap = theirs.output_logit_soft_cap
    if not 0 < cap < math.inf:
        raise DataError(
            f"{where}: output_logit_soft_cap must be positive and finite to be converted, got "
            f"{cap}."
        )
