"""Language models of ours and of others, with the same weights where they can have them."""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Step = Callable[[], Tensor]
"""Decodes one token greedily, from the state the last call left: logits (1, vocabulary)."""


class Size(NamedTuple):
    """The size of every model in a comparison: the embedding is the head too."""

    vocabulary: int
    d_model: int
    rwkv_layers: int
    mamba_layers: int


SIZES = {
    "0.1M": Size(256, 64, 2, 4),
    "10M": Size(8192, 256, 9, 18),
    "130M": Size(50_280, 768, 12, 24),
    "tiny": Size(64, 16, 2, 2),
}
NAMES = {
    "rwkv": ("linrnn RWKV-4", "transformers RWKV"),
    "mamba": ("linrnn Mamba", "transformers Mamba", "mambapy"),
}
"""Ours first."""
BOUND = "weights and products alone"
"""The lower bound for all: reading every matrix once, or multiplying by it."""


class Decoder(NamedTuple):
    """A model: how it reads a prompt, how it goes on, and how often its weights are there."""

    prefill: Callable[[Tensor], Tensor]  # (1, time) to logits of the last, (1, vocabulary)
    start: Callable[[Tensor], Step]  # after a prompt
    generate: Callable[[Tensor, int], object] | None  # in transformers' own loop
    parameters: int


def missing() -> list[str]:
    """Packages that are not installed."""
    return [p for p in ("transformers", "mambapy") if importlib.util.find_spec(p) is None]


def build(kind: str, size: Size, dtype: torch.dtype = torch.float32) -> dict[str, Decoder]:
    """Everyone of a kind, ``rwkv`` or ``mamba``, by name; mambapy is for float32."""
    from transformers import MambaConfig, MambaForCausalLM, RwkvConfig, RwkvForCausalLM

    from linrnn.interop.hf import from_mamba, from_rwkv

    torch.manual_seed(0)
    vocabulary, width = size.vocabulary, size.d_model
    common = {"vocab_size": vocabulary, "hidden_size": width, "tie_word_embeddings": True}
    ours, *others = NAMES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "rwkv":
            config = RwkvConfig(**common, num_hidden_layers=size.rwkv_layers)
            peer = RwkvForCausalLM(config).eval().to(dtype)
            return {ours: _ours(from_rwkv(peer)), others[0]: _transformers(peer, "state")}
        config = MambaConfig(**common, num_hidden_layers=size.mamba_layers)
        peer = MambaForCausalLM(config).eval().to(dtype)
        found = {ours: _ours(from_mamba(peer)), others[0]: _transformers(peer, "cache_params")}
    if "mambapy" not in missing() and dtype == torch.float32:
        found[others[1]] = _mambapy(size, peer)
    return found


def our_model(kind: str, size: Size) -> Any:
    """Our `linrnn.SequenceModel` of that kind alone."""
    from linrnn import SequenceModel

    options: dict[str, Any] = {
        "rwkv": {"mixer": "rwkv4", "block": "channel_mix", "norm": "layer"},
        "mamba": {"mixer": "mamba", "block": "bare", "norm": "rms"},
        "mingru": {"mixer": "mingru", "block": "mlp", "conv_width": 4, "norm": "rms"},
    }[kind]
    layers = size.mamba_layers if kind == "mamba" else size.rwkv_layers
    torch.manual_seed(0)
    return SequenceModel(
        *(size.vocabulary, size.vocabulary),
        **{"d_model": size.d_model, "n_layers": layers, "final_norm": True, "head_bias": False},
        **{"pool": "none", "encoder": "tokens", "tie_embeddings": True},
        **options,
    ).eval()


def _count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _ours(wrapped: Any) -> Decoder:
    model = wrapped.model

    def prefill(ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return model.head(model.features(ids)[0][:, -1])

    def start(ids: Tensor) -> Step:
        with torch.inference_mode():
            z, state = model.features(ids)
            token = model.head(z[:, -1]).argmax(-1)

        def step() -> Tensor:
            nonlocal token, state
            with torch.inference_mode():
                logits, state = model.step(token, state)
                token = logits.argmax(-1)
            return logits

        return step

    return Decoder(prefill, start, _generation(wrapped), _count(model))


def bound(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, Callable[..., object]]:
    """``step`` and ``prefill`` of a prompt, for the matrices of a model and nothing else."""
    parts = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weights = [m.weight.detach().to(dtype) for m in parts]
    # as float32: adding bfloat16 numbers would be arithmetic, not reading
    words = [w.flatten().view(torch.float32) for w in weights]

    def step() -> Tensor:
        with torch.inference_mode():
            return torch.stack([w.sum() for w in words])

    def prefill(ids: Tensor) -> None:
        with torch.inference_mode():
            for weight in weights[:-1]:  # the head is for one token
                torch.nn.functional.linear(inputs[weight.shape[1]][: ids.shape[1]], weight)

    inputs = {w.shape[1]: torch.randn(4096, w.shape[1], dtype=dtype) for w in weights}
    return {"step": step, "prefill": prefill}


def _transformers(model: Any, cache: str) -> Decoder:
    """``cache`` is what its state is called."""

    def prefill(ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(ids, use_cache=True, logits_to_keep=1).logits[:, -1]

    def start(ids: Tensor) -> Step:
        with torch.inference_mode():
            out = model(ids, use_cache=True, logits_to_keep=1)
        token, state = out.logits[:, -1:].argmax(-1), out[cache]

        def step() -> Tensor:
            nonlocal token, state
            with torch.inference_mode():
                out = model(token, use_cache=True, **{cache: state})
                token, state = out.logits[:, -1:].argmax(-1), out[cache]
            return out.logits[:, -1]

        return step

    return Decoder(prefill, start, _generation(model), _count(model))


def _generation(model: Any) -> Callable[[Tensor, int], object]:
    def generate(ids: Tensor, count: int) -> object:
        mask = torch.ones_like(ids)
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        return model.generate(ids, attention_mask=mask, pad_token_id=0, eos_token_id=0, **options)

    return generate


def _mambapy(size: Size, peer: Any) -> Decoder:
    """Its layers between the embedding and head of ``peer``: its own LM needs a GPU's package."""
    from mambapy.mamba import Mamba, MambaConfig

    config = MambaConfig(d_model=size.d_model, n_layers=size.mamba_layers)
    layers = Mamba(config).eval()
    weights = peer.backbone.layers.state_dict(prefix="layers.")
    layers.load_state_dict(weights)
    embed, norm, head = peer.backbone.embeddings, peer.backbone.norm_f, peer.lm_head

    def prefill(ids: Tensor) -> Tensor:  # its parallel form; it returns no state
        with torch.inference_mode():
            return head(norm(layers(embed(ids))[:, -1]))

    def start(ids: Tensor) -> Step:
        blank = (None, torch.zeros(1, config.d_inner, config.d_conv - 1))
        caches: Any = [blank] * config.n_layers

        def after(token: Tensor) -> Tensor:
            nonlocal caches
            with torch.inference_mode():
                x, caches = layers.step(embed(token), caches)
                return head(norm(x))

        for t in range(ids.shape[1]):
            logits = after(ids[:, t])

        def step() -> Tensor:
            nonlocal logits
            logits = after(logits.argmax(-1))
            return logits

        return step

    return Decoder(
        prefill, start, None, _count(peer) - _count(peer.backbone.layers) + _count(layers)
    )
