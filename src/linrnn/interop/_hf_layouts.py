"""Weights of transformers' RWKV-4 and Mamba in and out, with equal logits."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    RwkvConfig,
    RwkvForCausalLM,
)

from linrnn.errors import ArgumentError, DataError, DTypeError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_files import read_config
from linrnn.interop._hf_load import (
    check_numbers,
    check_weights,
    configured,
    files_of,
    load,
    weights_of,
)
from linrnn.interop._hf_model import LinrnnForCausalLM

Peer = TypeVar("Peer", bound=PreTrainedModel)

_AFFINE = ("weight", "bias")
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
# what is taken from their configurations: what says which weights there are, and special tokens
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "layer_norm_epsilon")
_SHARED = (*_SIZES, "tie_word_embeddings", "use_cache", *_SPECIAL)
_RWKV_KEYS = (
    *(*_SHARED, "context_length", "attention_hidden_size", "intermediate_size", "rescale_every"),
)
_MAMBA_KEYS = (
    *(*_SHARED, "state_size", "expand", "conv_kernel", "use_bias", "use_conv_bias", "hidden_act"),
    *("time_step_rank", "residual_in_fp32"),
)
_LAYER_EPS = 1e-5  # PyTorch's for a layer norm, which RWKV's last one always has

# names of ours to theirs, outside the blocks and inside block i
_RWKV_OUTER = {
    "encoder.weight": "rwkv.embeddings.weight",
    **{f"encoder_norm.{p}": f"rwkv.blocks.0.pre_ln.{p}" for p in _AFFINE},
    **{f"final_norm.{p}": f"rwkv.ln_out.{p}" for p in _AFFINE},
    "head.weight": "head.weight",
}
_RWKV_BLOCK = {
    **{f"norm.{p}": f"ln1.{p}" for p in _AFFINE},
    **{f"channel_mix_norm.{p}": f"ln2.{p}" for p in _AFFINE},
    **{f"mixer.{p}": f"attention.{p}" for p in ("time_decay", "time_first")},
    "mixer.mu_k": "attention.time_mix_key",
    "mixer.mu_v": "attention.time_mix_value",
    "mixer.mu_r": "attention.time_mix_receptance",
    **{
        f"mixer.{p}.weight": f"attention.{p}.weight"
        for p in ("key", "value", "receptance", "output")
    },
    "channel_mix.mu_k": "feed_forward.time_mix_key",
    "channel_mix.mu_r": "feed_forward.time_mix_receptance",
    **{
        f"channel_mix.{p}.weight": f"feed_forward.{p}.weight"
        for p in ("key", "receptance", "value")
    },
}
_MAMBA_OUTER = {
    "encoder.weight": "backbone.embeddings.weight",
    "final_norm.weight": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}


def from_rwkv(model: RwkvForCausalLM | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """RWKV-4 of ``transformers`` as a model of ours, with equal logits.

    Args:
        model: a ``RwkvForCausalLM``, the folder of one, or its name on the hub; weights in
            safetensors only.

    Returns:
        A copy, in evaluation mode, with the mixer ``rwkv4`` in blocks with ``channel_mix``.

    Raises:
        DataError: a folder that holds no such model, or one that we have no counterpart of.
        DTypeError: a model of another class.

    Reference:
        Peng et al. 2023, arXiv:2305.13048. transformers halves the activations every
        ``rescale_every`` layers, and the weights with them once a model was called; here neither.
    """
    peer = _load("from_rwkv", model, RwkvForCausalLM, _RWKV_KEYS, _check_rwkv)
    theirs = peer.config
    config = LinrnnConfig(
        vocab_size=theirs.vocab_size,
        mixer="rwkv4",
        # as it once started, which spares drawing large orthogonal matrices to overwrite them
        mixer_options={"d_state": theirs.attention_hidden_size, "init": "published"},
        d_model=theirs.hidden_size,
        n_layers=theirs.num_hidden_layers,
        norm="layer",
        block="channel_mix",
        encoder_norm=True,
        final_norm=True,
        head_bias=False,
        tie_word_embeddings=theirs.tie_word_embeddings,
    )
    weights = dict(peer.state_dict())
    if peer.rwkv.layers_are_rescaled and theirs.rescale_every > 0:
        for i in range(theirs.num_hidden_layers):
            for part in ("attention.output", "feed_forward.value"):
                name = f"rwkv.blocks.{i}.{part}.weight"
                weights[name] = weights[name] * 2 ** (i // theirs.rescale_every)
    return _import(config, peer, weights, _names(_RWKV_OUTER, _RWKV_BLOCK, "rwkv.blocks", config))


def to_rwkv(model: LinrnnForCausalLM) -> RwkvForCausalLM:
    """The inverse of `from_rwkv`.

    Args:
        model: with the mixer ``rwkv4`` and the block structure of RWKV.

    Raises:
        ArgumentError: a model that RWKV's layout cannot express.
    """
    ours, options = model.config, dict(model.config.mixer_options or {})
    expected = {"mixer": "rwkv4", "norm": "layer", "block": "channel_mix", "encoder_norm": True}
    _require("to_rwkv", ours, **expected, final_norm=True, prenorm=True, conv_width=0)
    if not options.get("token_shift", True):
        raise ArgumentError("to_rwkv: token_shift must be True, got False.")
    if ours.norm_eps not in (None, _LAYER_EPS):
        raise ArgumentError(f"to_rwkv: norm_eps must be {_LAYER_EPS}, got {ours.norm_eps}.")
    peer = RwkvForCausalLM(
        RwkvConfig(
            vocab_size=ours.vocab_size,
            hidden_size=ours.d_model,
            attention_hidden_size=options.get("d_state"),
            num_hidden_layers=ours.n_layers,
            layer_norm_epsilon=_LAYER_EPS,
            tie_word_embeddings=ours.tie_word_embeddings,
            **_special(ours),
        )
    )
    return _export("to_rwkv", model, peer, _names(_RWKV_OUTER, _RWKV_BLOCK, "rwkv.blocks", ours))


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
    peer = _load("from_mamba", model, MambaForCausalLM, _MAMBA_KEYS, _check_mamba)
    theirs = peer.config
    config = LinrnnConfig(
        vocab_size=theirs.vocab_size,
        mixer="mamba",
        mixer_options={
            "d_state": theirs.state_size,
            "d_conv": theirs.conv_kernel,
            "expand": int(theirs.expand),
            "dt_rank": int(theirs.time_step_rank),
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
    return _import(config, peer, peer.state_dict(), _mamba_names(config))


def to_mamba(model: LinrnnForCausalLM) -> MambaForCausalLM:
    """The inverse of `from_mamba`.

    Args:
        model: with the mixer ``mamba`` and the block structure of Mamba.

    Raises:
        ArgumentError: a model that Mamba's layout cannot express.
    """
    ours = model.config
    expected = {"mixer": "mamba", "norm": "rms", "block": "bare", "encoder_norm": False}
    _require("to_mamba", ours, **expected, final_norm=True, prenorm=True, conv_width=0)
    mixer: Any = model.model.mixers[0]
    if mixer.b_disc != "euler":
        raise ArgumentError(f"to_mamba: b_disc must be 'euler', got {mixer.b_disc!r}.")
    eps = torch.finfo(model.dtype).eps if ours.norm_eps is None else ours.norm_eps
    peer = MambaForCausalLM(
        MambaConfig(
            vocab_size=ours.vocab_size,
            hidden_size=ours.d_model,
            num_hidden_layers=ours.n_layers,
            layer_norm_epsilon=eps,
            state_size=mixer.d_state,
            conv_kernel=mixer.d_conv,
            expand=mixer.expand,
            time_step_rank=mixer.dt_rank,
            use_conv_bias=mixer.conv_bias,
            use_bias=mixer.bias,
            tie_word_embeddings=ours.tie_word_embeddings,
            **_special(ours),
        )
    )
    return _export("to_mamba", model, peer, _mamba_names(ours))


def _names(
    outer: Mapping[str, str], block: Mapping[str, str], blocks: str, config: LinrnnConfig
) -> dict[str, str]:
    """Every name of ours to theirs."""
    inner = {
        f"blocks.{i}.{ours}": f"{blocks}.{i}.{theirs}"
        for i in range(config.n_layers)
        for ours, theirs in block.items()
    }
    return {**outer, **inner}


def _mamba_names(config: LinrnnConfig) -> dict[str, str]:
    options = config.mixer_options or {}
    parts = ["A_log", "D", "in_proj.weight", "conv1d.weight", "x_proj.weight", "out_proj.weight"]
    parts += [f"dt_proj.{p}" for p in _AFFINE]
    parts += ["conv1d.bias"] if options.get("conv_bias", True) else []
    parts += ["in_proj.bias", "out_proj.bias"] if options.get("bias", False) else []
    block = {"norm.weight": "norm.weight", **{f"mixer.{p}": f"mixer.{p}" for p in parts}}
    return _names(_MAMBA_OUTER, block, "backbone.layers", config)


def _check_rwkv(where: str, theirs: Any) -> None:
    _require(where, theirs, intermediate_size=4 * theirs.hidden_size)
    _require(where, theirs, layer_norm_epsilon=_LAYER_EPS)


def _check_mamba(where: str, theirs: Any) -> None:
    _require(where, theirs, hidden_act="silu", expand=int(theirs.expand))


def _load(
    where: str,
    model: Any,
    cls: type[Peer],
    keys: Sequence[str],
    check: Callable[[str, Any], None],
) -> Peer:
    """A model of transformers, or the one that a folder holds; its configuration is checked."""
    if isinstance(model, cls):
        check(where, model.config)
        return model
    if not isinstance(model, str | os.PathLike):
        raise DTypeError(
            f"{where}: model must be a {cls.__name__}, or the folder of one, got "
            f"{type(model).__name__}."
        )
    files, made = files_of(where, model, {}), cls.config_class
    values = read_config(files, made.model_type, keys)
    weights = weights_of(files, values)
    config = configured(files, lambda: made.from_dict(values))
    check(where, config)  # before a class of transformers acts on it
    peer, info = load(files, config, weights, cls.from_pretrained)
    check_weights(files, info)
    check_numbers(files, weights, peer)
    return cast(Peer, peer)


def _require(where: str, config: Any, **expected: Any) -> None:
    """Raise unless the fields of a configuration have these values."""
    error = ArgumentError if isinstance(config, LinrnnConfig) else DataError
    for name, value in expected.items():
        if (got := getattr(config, name)) != value:
            raise error(f"{where}: {name} must be {value!r} to be converted, got {got!r}.")


def _special(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name, None) for name in _SPECIAL}


def _import(
    config: LinrnnConfig,
    peer: PreTrainedModel,
    weights: Mapping[str, Tensor],
    names: dict[str, str],
) -> LinrnnForCausalLM:
    for name, value in _special(peer.config).items():
        setattr(config, name, value)
    model = LinrnnForCausalLM(config)
    model.to(peer.device, peer.dtype)
    _copy({ours: weights[theirs] for ours, theirs in names.items()}, model.model.state_dict())
    model.generation_config = peer.generation_config
    model.eval()
    return model


def _export(where: str, model: LinrnnForCausalLM, peer: Peer, names: Mapping[str, str]) -> Peer:
    weights = dict(model.model.state_dict())
    bias = weights.pop("head.bias", None)
    if bias is not None and bias.any():
        raise ArgumentError(
            f"{where}: the head must have no bias to be converted, got one. Train with "
            "head_bias=False."
        )
    peer.to(model.device, model.dtype)
    own = peer.state_dict()
    _copy({theirs: weights[ours] for ours, theirs in names.items()}, own)
    peer.generation_config = model.generation_config
    peer.eval()
    return peer


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Put every tensor into its place; axes of length 1 may come and go.

    Raises:
        DataError: not the same names, or another shape.
    """
    if other := source.keys() ^ target.keys():
        raise DataError(f"the weights must be those of the layout, got a difference: {min(other)}.")
    for name, value in source.items():
        if value.squeeze().shape != target[name].squeeze().shape:
            raise DataError(
                f"{name}: the weights must have shape {tuple(target[name].shape)}, got "
                f"{tuple(value.shape)}."
            )
        target[name].copy_(value.reshape(target[name].shape))
