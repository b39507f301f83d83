"""One streaming step of a whole layer in one native call, without gradients.

A step of a few sequences is little arithmetic beside reading the weights; as twenty operators it
is mostly calls. The kernels are ``src/native/kernels/*_step.cpp``.
"""

import functools
import struct
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from linrnn.ops import _native
from linrnn.ops._native import DTYPES
from linrnn.ops._scan_op import _eager, _transformed

#: More sequences at once are better served by the matrix products of PyTorch.
_MOST_SEQUENCES = 4


def weight(layer: nn.Module, part: str, name: str = "weight") -> Tensor | None:
    """A parameter of a part of a layer, None where it is computed: faster than two attributes."""
    module = layer._modules[part]
    return None if module is None else module._parameters.get(name)


def available(
    x: Tensor, weights: Iterable[Tensor | None], biases: Iterable[Tensor | None] = ()
) -> bool:
    """Whether a kernel can compute: nobody watches, plain CPU tensors, one wide dtype.

    Args:
        x: (batch, channels).
        weights: all of them must be there.
        biases: None for one that the layer does not have.
    """
    dtype = x.dtype
    return (
        not torch.is_grad_enabled()
        and (dtype is torch.float32 or dtype is torch.float64)
        and x.device.type == "cpu"
        and 0 < x.shape[0] <= _MOST_SEQUENCES
        and _eager(x)
        and not _transformed()
        and not torch.is_autocast_enabled("cpu")
        and all(w is not None and _readable(w, dtype) for w in weights)
        and all(b is None or _readable(b, dtype) for b in biases)
        and _native.load()[0] is not None
    )


def _readable(w: Tensor, dtype: torch.dtype) -> bool:
    return w.dtype is dtype and not w.is_cuda and w.is_contiguous()


def fits(state: object, x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a state is what a kernel needs beside ``x``, (batch, ...), in any layout."""
    return (
        type(state) is Tensor
        and state.shape == (x.shape[0], *shape)
        and state.dtype is x.dtype
        and not state.is_cuda
    )


def mamba_step(
    x: Tensor,
    weights: tuple[Tensor | None, ...],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None],
    state: dict[str, Tensor],
    *,
    zoh: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A step of `linrnn.mixers.Mamba`: ``(y, state)``.

    Args:
        x: (batch, d_model).
        weights: in_proj, convolution, x_proj, dt_proj, its bias, A_log, D and out_proj.
        biases: of in_proj, the convolution and out_proj.
        state: ``h`` and ``conv``.
        zoh: discretise B exactly.
    """
    in_proj, conv, x_proj, dt_proj, dt_bias, A_log, D, out_proj = cast(tuple[Tensor, ...], weights)
    in_bias, conv_bias, out_bias = biases
    h, past, x = state["h"].contiguous(), state["conv"].contiguous(), x.contiguous()
    y, new_h, new_past = torch.empty_like(x), torch.empty_like(h), torch.empty_like(past)
    before = (x, in_proj, in_bias, conv, conv_bias, x_proj, dt_proj, dt_bias, A_log, D)
    sizes = (zoh, *h.shape, x.shape[1], conv.shape[1], dt_proj.shape[1])
    tensors = (*before, out_proj, out_bias, h, past, y, new_h, new_past)
    _run("mamba_step", h.dtype, sizes, tensors)
    return y, {"h": new_h, "conv": new_past}


def time_mix_step(
    x: Tensor, weights: tuple[Tensor | None, ...], state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """A step of `linrnn.mixers.RWKV4`: ``(y, state)``.

    Args:
        x: (batch, d_model).
        weights: mu_k, mu_v and mu_r, if any; key, value, receptance and output; time_decay and
            time_first.
        state: ``mean``, ``log_norm`` and, with mu, ``shift``.
    """
    x, state = x.contiguous(), {name: h.contiguous() for name, h in state.items()}
    mean, log_norm, shift = state["mean"], state["log_norm"], state.get("shift")
    y, new = torch.empty_like(x), {name: torch.empty_like(h) for name, h in state.items()}
    mixes = () if len(weights) == 9 else (None, None, None)
    tensors = (x, *mixes, *weights, mean, log_norm, shift)
    after = (y, new["mean"], new["log_norm"], new.get("shift"))
    _run("time_mix_step", x.dtype, (*x.shape, mean.shape[1]), (*tensors, *after))
    return y, new


def channel_mix_step(
    x: Tensor, weights: tuple[Tensor | None, ...], past: Tensor
) -> tuple[Tensor, Tensor]:
    """A step of `linrnn.nn.ChannelMix`: ``(y, past)``.

    Args:
        x: (batch, d_model).
        weights: mu_k, mu_r, key, receptance and value.
        past: the input before, (batch, 1, d_model).
    """
    x, past, inner = x.contiguous(), past.contiguous(), cast(Tensor, weights[2]).shape[0]
    y, new = torch.empty_like(x), torch.empty_like(past)
    _run("channel_mix_step", x.dtype, (*x.shape, inner), (x, *weights, past, y, new))
    return y, new


def linear_step(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` for x (batch, columns)."""
    x = x.contiguous()
    y = x.new_empty(x.shape[0], weight.shape[0])
    _run("linear_step", x.dtype, (*x.shape, weight.shape[0]), (x, weight, bias, y))
    return y


def _run(
    kernel: str, dtype: torch.dtype, sizes: tuple[int, ...], tensors: Iterable[Tensor | None]
) -> None:
    """The record of every step: what it is, sizes, then addresses, 0 for no tensor."""
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    record = _record(3 + len(sizes) + len(addresses))
    head = (record.size, DTYPES[dtype], _native.threads())
    _native.run(kernel, record.pack(*head, *sizes, *addresses))


@functools.cache
def _record(fields: int) -> struct.Struct:
    return struct.Struct(f"={fields}q")
