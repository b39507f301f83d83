"""Recurrent layers, ours and other people's, behind one interface: (B, T, D) in and out."""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linrnn


class Layer(NamedTuple):
    """A layer to time: the package it comes from and how to build it for a width."""

    package: str
    build: Callable[[int], nn.Module]
    output: Callable[[Any], Tensor] = lambda y: y  # the sequence among what a call returns

    def missing(self) -> bool:
        """Whether the package is not installed."""
        return importlib.util.find_spec(self.package) is None


def _ours(name: str, **options: Any) -> Layer:
    def build(d_model: int) -> nn.Module:
        return linrnn.mixers.build(name, d_model, options)

    return Layer("linrnn", build, lambda y: y[0])


def _min_gru(d_model: int) -> nn.Module:
    from minGRU_pytorch import minGRU

    return minGRU(d_model)


def _s5(d_model: int) -> nn.Module:
    from s5 import S5

    return S5(d_model, d_model)


def _mambapy(*, pscan: bool) -> Callable[[int], nn.Module]:
    def build(d_model: int) -> nn.Module:
        from mambapy.mamba import MambaBlock, MambaConfig

        return MambaBlock(MambaConfig(d_model=d_model, n_layers=1, pscan=pscan))

    return build


def transformers_mamba(d_model: int, n_layers: int, **options: Any) -> Any:
    """Its whole model, from whose first block the mixer is taken."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(
        vocab_size=16, hidden_size=d_model, num_hidden_layers=n_layers, state_size=16, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MambaModel(config)


def _transformers(**options: Any) -> Callable[[int], nn.Module]:
    return lambda d_model: transformers_mamba(d_model, 1, **options).layers[0].mixer


LAYERS = {
    "linrnn mingru": _ours("mingru"),
    "linrnn minlstm": _ours("minlstm"),
    "linrnn lru": _ours("lru"),
    "linrnn mamba": _ours("mamba"),
    "linrnn rwkv4": _ours("rwkv4"),
    "linrnn gru": _ours("gru"),
    "minGRU-pytorch": Layer("minGRU_pytorch", _min_gru),
    "nn.LSTM": Layer("torch", lambda d: nn.LSTM(d, d, batch_first=True), lambda y: y[0]),
    "nn.GRU": Layer("torch", lambda d: nn.GRU(d, d, batch_first=True), lambda y: y[0]),
    "s5-pytorch": Layer("s5", _s5),
    "mambapy": Layer("mambapy", _mambapy(pscan=True)),
    "mambapy, loop": Layer("mambapy", _mambapy(pscan=False)),
    "transformers Mamba": Layer("transformers", _transformers()),
    "transformers Mamba, mambapy": Layer("transformers", _transformers(use_mambapy=True)),
}

#: Which peers each of ours is compared with, and how many times faster it has to be at which T.
RIVALS: dict[str, dict[str, dict[int, float]]] = {
    "linrnn mingru": {
        "minGRU-pytorch": {256: 1.0, 1024: 5.0, 4096: 5.0, 16384: 5.0},
        "nn.LSTM": {256: 1.0, 1024: 2.5, 4096: 2.5, 16384: 2.5},
        "nn.GRU": {256: 1.0, 1024: 8.0, 4096: 8.0, 16384: 8.0},
    },
    "linrnn minlstm": {"nn.LSTM": {}, "nn.GRU": {}},
    "linrnn gru": {"nn.GRU": {1024: 2.0, 16384: 5.0}},
    "linrnn lru": {"s5-pytorch": {4096: 5.0}, "nn.LSTM": {}, "nn.GRU": {}},
    "linrnn mamba": {
        "mambapy": {1024: 8.0},
        "mambapy, loop": {1024: 8.0},
        "transformers Mamba": {512: 50.0},
        "transformers Mamba, mambapy": {},
    },
}


def training_step(
    layer: Layer, d_model: int, batch: int, time: int, *, half: bool = False
) -> Callable[[], object]:
    """Forward and backward to the parameters and the input, gradients released afterwards.

    With ``half`` the forward pass is inside of autocast to bfloat16, as of trainers.
    """
    torch.manual_seed(0)
    module = layer.build(d_model).train()
    x = torch.randn(batch, time, d_model, requires_grad=True)
    grad = torch.randn(batch, time, d_model)
    sources = [x, *(p for p in module.parameters() if p.requires_grad)]

    def call() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = layer.output(module(x))
        return torch.autograd.grad(y, sources, grad.to(y.dtype), allow_unused=True)

    return call


#: How many times as long as its own products a layer may take, in training.
PRODUCT_FLOORS = {
    "linrnn mingru": 1.35,
    "linrnn minlstm": 1.35,
    "linrnn lru": 1.35,
    "linrnn rwkv4": 1.8,
    "linrnn mamba": 1.6,
}
#: The same in bfloat16, recurrent products among them, inside of autocast.
HALF_FLOORS = {
    **dict.fromkeys(("gru", "lstm", "lru", "s5", "mamba2"), 1.6),
    **dict.fromkeys(("mingru", "minlstm", "gla", "gated_delta_net"), 2.0),
    **dict.fromkeys(("rwkv4", "rwkv5", "rwkv6", "rwkv7"), 2.0),
    "mamba": 2.5,
}
HALF_LAYERS = {name: _ours(name) for name in HALF_FLOORS}
_FEW = 8  # rows or columns of a matrix that is no projection of a sequence
_RECURRENT = ("weight_hh_l0", "A_log")


def own_products(
    layer: Layer,
    d_model: int,
    batch: int,
    time: int,
    *,
    dtype: torch.dtype = torch.float32,
    recurrent: bool = False,
) -> Callable[[], object]:
    """Forward and backward of the products of a layer with a sequence, and nothing else of it.

    With ``recurrent`` those of recurrent matrices are among them, all steps at once.
    """
    torch.manual_seed(0)
    module = layer.build(d_model)
    pairs = []
    for name, weight in module.named_parameters():
        if weight.ndim == 3:  # complex, its parts in an axis of their own
            weight = weight.flatten(1) if weight.shape[-1] == 2 else weight.flatten(0, 1)
        left_out = () if recurrent else _RECURRENT
        if weight.ndim == 2 and min(weight.shape) > _FEW and name not in (*left_out, "A_log"):
            x = torch.randn(batch, time, weight.shape[1], dtype=dtype, requires_grad=True)
            weight = weight.detach().to(dtype).requires_grad_()
            pairs.append((x, weight, torch.randn(batch, time, weight.shape[0], dtype=dtype)))

    def call() -> object:
        return [torch.autograd.grad(F.linear(x, w), (x, w), grad) for x, w, grad in pairs]

    return call


def streaming_steps(d_model: int, n_layers: int) -> dict[str, Callable[[], object]]:
    """One step of a stack of layers with a carried state, for ours and the peers that can."""
    torch.manual_seed(0)
    calls: dict[str, Callable[[], object]] = {}
    x = torch.randn(1, d_model)
    for name in ("mingru", "lru", "mamba"):
        model = linrnn.SequenceModel(
            d_model,
            d_model,
            mixer=name,
            d_model=d_model,
            n_layers=n_layers,
            norm="rms",
            pool="none",
        ).eval()
        calls[f"linrnn {name}"] = _stepper(model.step, model.init_state(1), x)
    calls["transformers Mamba"] = _transformers_step(d_model, n_layers, x)
    for kind in (nn.GRU, nn.LSTM):
        rnn = kind(d_model, d_model, num_layers=n_layers, batch_first=True).eval()
        calls[f"nn.{kind.__name__}"] = _stepper(rnn, rnn(x[:, None])[1], x[:, None])
    return calls


def _stepper(step: Callable[..., Any], state: Any, x: Tensor) -> Callable[[], object]:
    def call() -> object:
        nonlocal state
        with torch.inference_mode():
            y, state = step(x, state)
        return y

    return call


def _transformers_step(d_model: int, n_layers: int, x: Tensor) -> Callable[[], object]:
    model = transformers_mamba(d_model, n_layers).eval()
    with torch.inference_mode():
        cache = model(inputs_embeds=x[:, None], use_cache=True).cache_params

    def call() -> object:
        with torch.inference_mode():
            return model(inputs_embeds=x[:, None], cache_params=cache, use_cache=True)[0]

    return call
