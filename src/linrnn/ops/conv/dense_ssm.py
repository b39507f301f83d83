"""Many independent dense systems of one input and a few outputs each: the core of LSSL."""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.ops.linear.matrix_scan import many_dense_scan


class DenseSystem(NamedTuple):
    """``h_t = a h_{t-1} + b u_t``, ``y_t = c h_t + d u_t``, for every channel; a and b float64."""

    a: Tensor  # (channels, N, N)
    b: Tensor  # (channels, N)
    c: Tensor  # (channels, outputs, N)
    d: Tensor  # (channels, outputs)


def step(system: DenseSystem, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step: ``u`` (B, H), ``h`` (B, H, N); ``(y, h)``, y (B, H, M)."""
    a, b = system.a.to(h), system.b.to(h)
    h = (a @ h[..., None])[..., 0] + b * u[..., None]  # (B, H, N)
    return read_out(system.c, system.d, u, h), h


def read_out(c: Tensor, d: Tensor, u: Tensor, h: Tensor) -> Tensor:
    """``c h + d u``: u (..., H) and h (..., H, N) to (..., H, M)."""
    return (c.to(h) @ h[..., None])[..., 0] + d.to(h) * u[..., None]  # (..., H, M)


def scan(system: DenseSystem, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """A sequence ``u`` (B, T, H), with any ``reset``: ``(y, h)``; all states are held at once."""
    pushed = u[..., None] * system.b.to(h)
    states, last = many_dense_scan(system.a, pushed, h, reset)
    return read_out(system.c, system.d, u, states), last


def _convolved(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return u.new_empty((*u.shape, system[3].shape[1])), h.new_empty(h.shape)


@composed("dense_ssm_convolve", "Tensor[] system, Tensor u, Tensor h", _convolved, lead=1)
def convolve(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A sequence ``u`` (B, T, H) by FFT: ``(y, h)``.

    Step t is ``i Q + j`` with Q about sqrt(T), so that ``c a^t b`` is a product of ``c a^j`` and
    ``a^(i Q) b``; each of the two is a Krylov matrix, found by squaring, and the (H, N, T) one is
    never written. Powers are double precision.
    """
    (a, b, c, d), (batch, time, channels) = DenseSystem(*system), u.shape
    if u.numel() == 0:  # an FFT refuses an empty batch
        return u.new_zeros((*u.shape, d.shape[1])), h
    size = isqrt(time - 1) + 1
    count = -(-time // size)
    far = torch.linalg.matrix_power(a, size)
    begun = torch.cat([b[:, None], (a @ h.to(a).permute(1, 2, 0)).mT], 1)  # (H, 1 + B, N)
    coarse = krylov(far, begun, count).to(h.dtype)  # (H, K, 1 + B, N)
    fine = krylov(a.mT, c.to(a), size).to(h.dtype)  # (H, Q, M, N)
    # (1 + B, H, M, T)
    response = torch.einsum("hkrn,hqmn->rhmkq", coarse, fine).flatten(3)[..., :time]
    # (H, M, T)
    kernel = torch.cat([response[0, ..., :1] + d.to(h)[..., None], response[0, ..., 1:]], -1)
    spectrum = torch.fft.rfft(u.transpose(1, 2), 2 * time)[:, :, None]  # (B, H, 1, T + 1)
    y = torch.fft.irfft(spectrum * torch.fft.rfft(kernel, 2 * time), 2 * time)[..., :time]
    y = (y + response[1:]).permute(0, 3, 1, 2)  # (B, T, H, M)

    # (B, K, Q, H)
    padded = F.pad(u, (0, 0, size * count - time, 0)).view(batch, count, size, channels)
    into = krylov(a, b[:, None], size)[:, :, 0].flip(1).to(h.dtype)  # (H, Q, N)
    sums = torch.einsum("bkqh,hqn->hbkn", padded, into)  # (H, B, K, N)
    across = h.to(a).transpose(0, 1) @ torch.linalg.matrix_power(a, time).mT  # (H, B, N)
    last = _gathered(far, sums) + across.to(h.dtype)
    return y, last.transpose(0, 1)  # (B, T, H, M), (B, H, N)


def krylov(a: Tensor, v: Tensor, count: int) -> Tensor:
    """``v, a v, ..., a^(count - 1) v`` of rows v (H, R, N), by repeated squaring: (H, count, R, N).

    Example:
        >>> krylov(torch.tensor([[[2.0]]]), torch.tensor([[[3.0]]]), 4).flatten()
        tensor([ 3.,  6., 12., 24.])
    """
    vectors = v[:, None]  # (H, 1, R, N)
    while vectors.shape[1] < count:
        vectors = torch.cat([vectors, vectors @ a.mT[:, None]], 1)  # (H, 2 n, R, N)
        a = a @ a if vectors.shape[1] < count else a  # (H, N, N)
    return vectors[:, :count]


def _gathered(a: Tensor, sums: Tensor) -> Tensor:
    """``sum_k a^(K - 1 - k) sums_k`` over the axis before the last: (H, B, K, N) to (H, B, N)."""
    while sums.shape[2] > 1:
        sums = F.pad(sums, (0, 0, sums.shape[2] % 2, 0))  # (H, B, K, N)
        sums = sums[:, :, ::2] @ a.mT[:, None].to(sums.dtype) + sums[:, :, 1::2]  # (H, B, K / 2, N)
        a = a @ a  # (H, N, N)
    return sums[:, :, 0]
