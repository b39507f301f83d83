"""Weights of transformers' RWKV-4 in and out, with equal logits."""

import os
from typing import Any

from transformers import RwkvConfig, RwkvForCausalLM

from linrnn.errors import ArgumentError
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_layouts import (
    AFFINE,
    LAYER_EPS,
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

_KEYS = (
    *(
        *SHARED_KEYS,
        "context_length",
        "attention_hidden_size",
        "intermediate_size",
        "rescale_every",
    ),
)
# names of ours to theirs, outside the blocks and inside block i
_OUTER = {
    "encoder.weight": "rwkv.embeddings.weight",
    **{f"encoder_norm.{p}": f"rwkv.blocks.0.pre_ln.{p}" for p in AFFINE},
    **{f"final_norm.{p}": f"rwkv.ln_out.{p}" for p in AFFINE},
    "head.weight": "head.weight",
}
_BLOCK = {
    **{f"norm.{p}": f"ln1.{p}" for p in AFFINE},
    **{f"channel_mix_norm.{p}": f"ln2.{p}" for p in AFFINE},
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


def from_rwkv4(model: RwkvForCausalLM | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """RWKV-4 of ``transformers`` as a model of ours: see ``from_rwkv``.

    transformers halves the activations every ``rescale_every`` layers, and the weights with them
    once a model was called; here neither.
    """
    peer = load_peer("from_rwkv", model, RwkvForCausalLM, _KEYS, _check)
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
        d_ffn=theirs.intermediate_size,
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
    return import_weights(config, peer, weights, names_of(_OUTER, _BLOCK, "rwkv.blocks", config))


def to_rwkv(model: LinrnnForCausalLM) -> RwkvForCausalLM:
    """RWKV-4 as a model of ``transformers``, which has no class of other versions.

    Args:
        model: with the mixer ``rwkv4`` and the block structure of RWKV. See `to_rwkv_weights` for
            ``rwkv5`` and ``rwkv6``.

    Raises:
        ArgumentError: a model that RWKV's layout cannot express.
    """
    ours, options = model.config, dict(model.config.mixer_options or {})
    expected = {"mixer": "rwkv4", "norm": "layer", "block": "channel_mix", "encoder_norm": True}
    require_stack("to_rwkv", ours, **expected)
    if not options.get("token_shift", True):
        raise ArgumentError("to_rwkv: token_shift must be True, got False.")
    if ours.norm_eps not in (None, LAYER_EPS):
        raise ArgumentError(f"to_rwkv: norm_eps must be {LAYER_EPS}, got {ours.norm_eps}.")
    if ours.n_layers < 2:  # which transformers divides by, less one
        raise ArgumentError(f"to_rwkv: n_layers must be at least 2, got {ours.n_layers}.")
    peer = RwkvForCausalLM(
        RwkvConfig(
            vocab_size=ours.vocab_size,
            hidden_size=ours.d_model,
            attention_hidden_size=options.get("d_state"),
            # with which transformers can compute no other width
            use_cache=options.get("d_state", ours.d_model) == ours.d_model,
            intermediate_size=ours.d_ffn,
            num_hidden_layers=ours.n_layers,
            layer_norm_epsilon=LAYER_EPS,
            tie_word_embeddings=ours.tie_word_embeddings,
            **special_tokens(ours),
        )
    )
    return export_weights("to_rwkv", model, peer, names_of(_OUTER, _BLOCK, "rwkv.blocks", ours))


def _check(where: str, theirs: Any) -> None:
    require(where, theirs, layer_norm_epsilon=LAYER_EPS)
