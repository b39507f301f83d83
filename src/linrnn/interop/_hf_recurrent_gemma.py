"""Weights of transformers' RecurrentGemma in and out, with equal logits."""

import os
from typing import Any, cast

import torch
from torch import Tensor
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from linrnn.errors import ArgumentError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_layouts import (
    AFFINE,
    SHARED_KEYS,
    export_weights,
    import_weights,
    load_peer,
    require,
    require_stack,
    special_tokens,
)
from linrnn.interop._hf_model import LinrnnForCausalLM
from linrnn.mixers import RGLRU, Attention

_KEYS = (
    *(*SHARED_KEYS, "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("lru_width", "conv1d_width", "attention_window_size", "attention_bias", "attention_dropout"),
    *("rms_norm_eps", "logits_soft_cap", "hidden_activation", "block_types"),
    *("rope_parameters", "rope_theta", "partial_rotary_factor"),
)
_OUTER = {
    "encoder.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.final_norm.weight",
    "head.weight": "lm_head.weight",
}
_BLOCK = {
    "norm.weight": "temporal_pre_norm.weight",
    "geglu_norm.weight": "channel_pre_norm.weight",
    **{f"geglu.{p}.{w}": f"mlp_block.{p}_proj.{w}" for p in ("gate", "up", "down") for w in AFFINE},
}
_MIXERS = {
    "linear_attention": (
        *("rg_lru", RGLRU),
        {
            "Lambda": "rg_lru.recurrent_param",
            **{f"{p}_proj.{w}": f"linear_{p}.{w}" for p in ("x", "y", "out") for w in AFFINE},
            **{f"conv1d.{w}": f"conv_1d.{w}" for w in AFFINE},
            **{f"r_gate.{w}": f"rg_lru.recurrent_gate_{w}" for w in AFFINE},
            **{f"i_gate.{w}": f"rg_lru.input_gate_{w}" for w in AFFINE},
        },
    ),
    "sliding_attention": (
        *("attention", Attention),
        {f"{p}_proj.{w}": f"{p}_proj.{w}" for p in "qkvo" for w in AFFINE},
    ),
}
"""By kind of layer: our name of it, its class, and its weights."""


def from_recurrent_gemma(
    model: RecurrentGemmaForCausalLM | str | os.PathLike[str],
) -> LinrnnForCausalLM:
    """RecurrentGemma of ``transformers``, a Griffin or a Hawk, as a model of ours, equal logits.

    Args:
        model: a ``RecurrentGemmaForCausalLM``, the folder of one, or its name on the hub; weights
            in safetensors only.

    Returns:
        A copy, in evaluation mode, with the mixers ``rg_lru`` and ``attention`` in blocks of kind
        ``geglu``.

    Raises:
        DataError: a folder that holds no such model, or one that we have no counterpart of.
        DTypeError: a model of another class.

    Reference:
        De et al. 2024, arXiv:2402.19427. Weights of norms are stored as 1 + w, which half precision
        rounds; theirs are w. Embeddings are scaled by the root of their width, rounded to bfloat16.
    """
    peer = load_peer("from_recurrent_gemma", model, RecurrentGemmaForCausalLM, _KEYS, _check)
    theirs = peer.config
    kinds = [_MIXERS[kind][0] for kind in theirs.layers_block_type]
    options = {name: _options(theirs)[name] for name in dict.fromkeys(kinds)}
    config = LinrnnConfig(
        vocab_size=theirs.vocab_size,
        mixer=",".join(kinds[: len(theirs.block_types)]),
        mixer_options=options,
        d_model=theirs.hidden_size,
        n_layers=theirs.num_hidden_layers,
        norm="rms",
        norm_eps=theirs.rms_norm_eps,
        block="geglu",
        encoder_scale=_scale(theirs.hidden_size),
        final_norm=True,
        head_bias=False,
        logit_soft_cap=float(theirs.logits_soft_cap),
        tie_word_embeddings=theirs.tie_word_embeddings,
    )
    names = _names(theirs)
    weights = dict(peer.state_dict())
    for ours, name in names.items():
        weights[name] = _ours(ours, weights[name], theirs)
    return import_weights(config, peer, weights, names)


def to_recurrent_gemma(model: LinrnnForCausalLM) -> RecurrentGemmaForCausalLM:
    """The inverse of `from_recurrent_gemma`.

    Args:
        model: with the mixers ``rg_lru`` and ``attention`` and the block structure of
            RecurrentGemma.

    Raises:
        ArgumentError: a model that RecurrentGemma's layout cannot express.
    """
    where, ours = "to_recurrent_gemma", model.config
    free = {"logit_soft_cap": ours.logit_soft_cap, "encoder_scale": _scale(ours.d_model)}
    require_stack(where, ours, norm="rms", block="geglu", **free)
    if ours.logit_soft_cap is None:
        raise ArgumentError(
            f"{where}: logit_soft_cap must be a number, which theirs have, got None."
        )
    peer = RecurrentGemmaForCausalLM(_their_config(where, model))
    names = _names(peer.config)
    peer = export_weights(where, model, peer, names)
    weights = peer.state_dict()
    with torch.no_grad():
        for our_name, name in names.items():
            weights[name].copy_(_theirs(our_name, weights[name], peer.config))
    return peer


def _options(theirs: Any) -> dict[str, dict[str, Any]]:
    """Options of both mixers."""
    heads, rope = theirs.num_attention_heads, theirs.rope_parameters
    width = theirs.hidden_size // heads
    recurrent = {"d_inner": theirs.lru_width, "n_heads": heads, "d_conv": theirs.conv1d_width}
    attention = {
        **{"n_heads": heads, "d_head": width, "n_kv_heads": theirs.num_key_value_heads},
        **{"d_rotary": _rotary(theirs), "base": float(rope["rope_theta"])},
        **{"window": theirs.attention_window_size, "init": "lecun"},
        **{"bias": theirs.attention_bias, "out_bias": True},
    }
    return {"rg_lru": recurrent, "attention": attention}


def _their_config(where: str, model: LinrnnForCausalLM) -> RecurrentGemmaConfig:
    ours, mixers = model.config, cast("list[Any]", model.model.mixers)
    kinds = {cls: kind for kind, (_, cls, _) in _MIXERS.items()}
    for mixer in mixers:
        if type(mixer) not in kinds:
            raise ArgumentError(
                f"{where}: mixers must be rg_lru and attention, got {type(mixer).__name__}."
            )
    words = {"linear_attention": "recurrent", "sliding_attention": "attention"}
    fields: dict[str, Any] = {"block_types": [words[kinds[type(mixer)]] for mixer in mixers]}
    mixer_of = {type(mixer): mixer for mixer in mixers}
    recurrent, attention = mixer_of.get(RGLRU), mixer_of.get(Attention)
    fields["num_attention_heads"] = heads = mixers[0].n_heads
    fields["use_cache"] = attention is not None  # transformers counts steps in attention's alone
    if recurrent is not None:
        fields |= {"lru_width": recurrent.d_inner, "conv1d_width": recurrent.d_conv}
    if attention is not None:
        rope = {"rope_type": "default", "rope_theta": attention.base}
        rope["partial_rotary_factor"] = attention.d_rotary / attention.d_head
        fields |= {"rope_parameters": rope, "attention_window_size": attention.window}
        fields |= {"num_key_value_heads": attention.n_kv_heads, "attention_bias": attention.bias}
    _check_sizes(where, ours, heads, recurrent, attention)
    eps = torch.finfo(model.dtype).eps if ours.norm_eps is None else ours.norm_eps
    return RecurrentGemmaConfig(
        **{"vocab_size": ours.vocab_size, "hidden_size": ours.d_model, "rms_norm_eps": eps},
        **{"num_hidden_layers": ours.n_layers, "intermediate_size": 6 * ours.d_model},
        **{"logits_soft_cap": ours.logit_soft_cap, "tie_word_embeddings": ours.tie_word_embeddings},
        **fields,
        **special_tokens(ours),
    )


def _check_sizes(
    where: str, ours: LinrnnConfig, heads: int, recurrent: Any, attention: Any
) -> None:
    sizes: list[tuple[str, Any, Any]] = (
        [] if recurrent is None else [("rg_lru.n_heads", recurrent.n_heads, heads)]
    )
    if attention is not None:
        sizes += [
            ("attention.n_heads", attention.n_heads, heads),
            ("attention.d_head", attention.d_head, ours.d_model / heads),
            ("attention.out_bias", attention.out_bias or attention.bias, True),
        ]
        if attention.window is None:
            raise ArgumentError(f"{where}: attention.window must be a number, got None.")
    for name, got, want in sizes:
        if got != want:
            raise ArgumentError(f"{where}: {name} must be {want} to be converted, got {got}.")


def _names(theirs: Any) -> dict[str, str]:
    """Names of all our weights to theirs."""
    names = dict(_OUTER)
    for i, kind in enumerate(theirs.layers_block_type):
        mixer = {
            f"mixer.{our_name}": f"temporal_block.{name}"
            for our_name, name in _MIXERS[kind][2].items()
        }
        if not theirs.attention_bias and kind == "sliding_attention":
            mixer = {k: v for k, v in mixer.items() if k[6] == "o" or not k.endswith("bias")}
        inner = _BLOCK | mixer
        names |= {
            f"blocks.{i}.{our_name}": f"model.layers.{i}.{name}" for our_name, name in inner.items()
        }
    return names


def _ours(name: str, weight: Tensor, theirs: Any) -> Tensor:
    """A weight of theirs as we have it: see `_theirs`."""
    if name.endswith("norm.weight"):
        return weight + 1
    return weight[_order(theirs, weight)] if _is_rotated(name) else weight


def _theirs(name: str, weight: Tensor, theirs: Any) -> Tensor:
    """The inverse: their norms lack a 1, and channels i and i + half of them turn together."""
    if name.endswith("norm.weight"):
        return weight - 1
    return weight[_order(theirs, weight).argsort()] if _is_rotated(name) else weight


def _is_rotated(name: str) -> bool:
    return ".mixer.q_proj." in name or ".mixer.k_proj." in name


def _order(theirs: Any, weight: Tensor) -> Tensor:
    """Which of their rows of queries or keys each of ours is: of a pair, ours are neighbours."""
    width, d_rotary = theirs.hidden_size // theirs.num_attention_heads, _rotary(theirs)
    pairs = torch.arange(d_rotary).view(2, -1).T.flatten()
    head = torch.cat([pairs, torch.arange(d_rotary, width)])
    first = torch.arange(0, len(weight), width)
    return (first[:, None] + head).flatten().to(weight.device)


def _rotary(theirs: Any) -> int:
    width = theirs.hidden_size // theirs.num_attention_heads
    return int(width * theirs.rope_parameters.get("partial_rotary_factor", 1.0))


def _scale(width: int) -> float:
    """The factor of the embeddings."""
    return float(torch.tensor(width**0.5, dtype=torch.bfloat16))


def _check(where: str, theirs: Any) -> None:
    require(where, theirs, intermediate_size=6 * theirs.hidden_size, attention_dropout=0.0)
    require(where, theirs, hidden_activation="gelu_pytorch_tanh")
