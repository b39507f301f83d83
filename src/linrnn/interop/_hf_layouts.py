"""Shared by the layouts of foreign checkpoints: reading, checking and renaming weights."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from linrnn.errors import ArgumentError, DataError, DTypeError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_files import Files, read_config
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

AFFINE = ("weight", "bias")
LAYER_EPS = 1e-5  # PyTorch's for a layer norm
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
# what is taken from their configurations: what says which weights there are, and special tokens
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "layer_norm_epsilon")
SHARED_KEYS = (*_SIZES, "tie_word_embeddings", "use_cache", *SPECIAL)


def names_of(
    outer: Mapping[str, str], block: Mapping[str, str], blocks: str, config: LinrnnConfig
) -> dict[str, str]:
    """Every name of ours to theirs."""
    inner = {
        f"blocks.{i}.{ours}": f"{blocks}.{i}.{theirs}"
        for i in range(config.n_layers)
        for ours, theirs in block.items()
    }
    return {**outer, **inner}


def load_peer(
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
    files = files_of(where, model, {})
    return peer_of(files, cls, read_config(files, cls.config_class.model_type, keys), check)


def peer_of(
    files: Files, cls: type[Peer], values: Mapping[str, Any], check: Callable[[str, Any], None]
) -> Peer:
    """A model of transformers with the weights of files, of the ``values`` of its configuration."""
    weights = weights_of(files, values)
    config = configured(files, lambda: cls.config_class.from_dict(values))
    check(files.where, config)  # before a class of transformers acts on it
    peer, info = load(files, config, weights, cls.from_pretrained)
    check_weights(files, info)
    check_numbers(files, weights, peer)
    return cast(Peer, peer)


def require(where: str, config: Any, **expected: Any) -> None:
    """Raise unless the fields of a configuration have these values."""
    error = ArgumentError if isinstance(config, LinrnnConfig) else DataError
    for name, value in expected.items():
        got = getattr(config, name)
        if (tuple(got) if isinstance(got, list) else got) != value:  # a file has lists
            raise error(f"{where}: {name} must be {value!r} to be converted, got {got!r}.")


def require_stack(where: str, config: LinrnnConfig, **expected: Any) -> None:
    """Raise unless a model of ours is the stack that all layouts have, and ``expected``."""
    require(where, config, **expected)
    usual: dict[str, Any] = {"encoder_norm": False, "final_norm": True, "prenorm": True}
    usual |= {"conv_width": 0, "identity_ends": "none", "block_pattern": ()}
    usual |= {"residual_scale": 1.0, "head_scale": 1.0, "out_norm": (), "skip_scale": 1.0}
    required = usual | {"encoder_scale": 1.0, "logit_soft_cap": None, "skip": True, "tiers": ()}
    require(where, config, **{k: v for k, v in required.items() if k not in expected})


def special_tokens(config: Any) -> dict[str, Any]:
    """The ids of special tokens of a configuration."""
    return {name: getattr(config, name, None) for name in SPECIAL}


def import_weights(
    config: LinrnnConfig,
    peer: PreTrainedModel,
    weights: Mapping[str, Tensor],
    names: dict[str, str],
) -> LinrnnForCausalLM:
    """A model of ours, in evaluation mode, with the ``weights`` under their ``names``."""
    for name, value in special_tokens(peer.config).items():
        setattr(config, name, value)
    model = LinrnnForCausalLM(config)
    model.to(peer.device, peer.dtype)
    _copy({ours: weights[theirs] for ours, theirs in names.items()}, model.model.state_dict())
    model.generation_config = peer.generation_config
    model.eval()
    return model


def weights_to_export(where: str, model: LinrnnForCausalLM) -> dict[str, Tensor]:
    """The weights of ours, none of them a bias of the head."""
    weights = dict(model.model.state_dict())
    bias = weights.pop("head.bias", None)
    if bias is not None and bias.any():
        raise ArgumentError(
            f"{where}: the head must have no bias to be converted, got one. Train with "
            "head_bias=False."
        )
    return weights


def export_weights(
    where: str, model: LinrnnForCausalLM, peer: Peer, names: Mapping[str, str]
) -> Peer:
    """``peer`` with the weights of ours under their ``names``."""
    weights = weights_to_export(where, model)
    peer.to(model.device, model.dtype)
    targets = peer.state_dict()
    _copy({theirs: weights[ours] for ours, theirs in names.items()}, targets)
    peer.generation_config = model.generation_config
    peer.eval()
    return peer


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Put every tensor into its place; axes of length 1 may come and go.

    Raises:
        DataError: not the same names, or another shape.
    """
    if unmatched := source.keys() ^ target.keys():
        raise DataError(
            f"the weights must be those of the layout, got a difference: {min(unmatched)}."
        )
    for name, value in source.items():
        if value.squeeze().shape != target[name].squeeze().shape:
            raise DataError(
                f"{name}: the weights must have shape {tuple(target[name].shape)}, got "
                f"{tuple(value.shape)}."
            )
        target[name].copy_(value.reshape(target[name].shape))
