"""`selective_scan` from its definition: PyTorch operations on a few steps at a time.

Runs on any device and is differentiable to any order. A chunk's (B, steps, d, N) tensors are
dropped when it is done and computed again by the backward pass.
"""

import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linrnn.compute.layout import n_sequences
from linrnn.ops.linear.linear_scan import linear_scan

#: Steps whose expanded states exist at once. With 32 instead of 64 a training step of Mamba takes
#: 0.83 (8 rows of 256 steps, 128 channels) to 1.44 times as long (1 row of 2,048), with 16 0.87 to
#: 2.42 (medians of 9 in turn, six shapes of 32 to 128 channels, float32, float64 and bfloat16,
#: processor time), with 128 1.02 (2026-11-29, EPYC with AVX-512, one core of a shared machine).
CHUNK = 64


class Problem(NamedTuple):
    """Checked arguments of a selective scan; see `linrnn.ops.selective_scan` for shapes."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    initial_state: Tensor | None
    z: Tensor | None
    dt_bias: Tensor | None
    reset: Tensor | None
    cu_seqlens: Tensor | None
    dt_softplus: bool
    zoh: bool
    reverse: bool

    @property
    def seqs(self) -> int:
        """How many sequences there are."""
        return n_sequences(self.x, self.cu_seqlens)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Those through which gradients flow."""
        required = (self.x, self.dt, self.A, self.B, self.C)
        return (*required, self.D, self.initial_state, self.z, self.dt_bias)


def selective_scan(*fields: Any, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """``(y, final_state)`` of the fields of a `Problem`.

    The states of each chunk are found by `linear_scan` on ``backend``.
    """
    p = Problem(*fields)
    if p.cu_seqlens is None:
        return _read(p, p.initial_state, backend)
    ys, finals = [], []
    for s, (start, end) in enumerate(itertools.pairwise(p.cu_seqlens.tolist())):
        state = None if p.initial_state is None else p.initial_state[s : s + 1]
        y, final = _read(_steps(p, slice(start, end)), state, backend)
        ys.append(y)
        finals.append(final)
    return torch.cat(ys, 1), torch.cat(finals)  # (1, T, d), (seqs, d, N)


def _read(p: Problem, state: Tensor | None, backend: str | None) -> tuple[Tensor, Tensor]:
    """One sequence a row, chunk by chunk in the order of reading."""
    batch, time, channels = p.x.shape
    if state is None:
        state = p.x.new_zeros(batch, channels, p.A.shape[1], dtype=p.A.dtype)
    ys = []
    for start in range(0, time, CHUNK):
        window = slice(start, start + CHUNK)
        if p.reverse:
            window = slice(max(0, time - start - CHUNK), time - start)
        part = _steps(p, window)
        if torch.is_grad_enabled() and time > CHUNK and not torch.compiler.is_compiling():
            y, state = checkpoint(
                _chunk, part, state, backend, use_reentrant=False, preserve_rng_state=False
            )
        else:
            y, state = _chunk(part, state, backend)
        ys.append(y)
    if not ys:
        return p.x.clone(), state.clone()
    return torch.cat(ys[::-1] if p.reverse else ys, 1), state  # (B, T, d), (B, d, N)


def discretise(dt: Tensor, A: Tensor, zoh: bool) -> tuple[Tensor, Tensor]:
    """Decay ``exp(dt A)`` and the weight of ``B x``, (..., d, N), from ``dt`` (..., d).

    The weight is ``dt`` (Euler), or exactly ``(exp(dt A) - 1) / A`` (zero-order hold), whose limit
    where ``A`` vanishes is ``dt`` again.
    """
    dt = dt[..., None]
    if not zoh:
        return torch.exp(dt * A), dt
    at_zero = A == 0
    weight = torch.where(at_zero, dt, torch.expm1(dt * A) / torch.where(at_zero, 1, A))
    return torch.exp(dt * A), weight


def _steps(p: Problem, window: slice) -> Problem:
    """The same problem on a few steps."""
    return p._replace(
        x=p.x[:, window],
        dt=p.dt[:, window],
        B=p.B[:, window],
        C=p.C[:, window],
        z=None if p.z is None else p.z[:, window],
        reset=None if p.reset is None else p.reset[:, window],
    )


def _chunk(p: Problem, state: Tensor, backend: str | None) -> tuple[Tensor, Tensor]:
    x, dt, B, C = (part.to(p.A.dtype) for part in (p.x, p.dt, p.B, p.C))
    if p.dt_bias is not None:
        dt = dt + p.dt_bias
    if p.dt_softplus:
        dt = F.softplus(dt)
    a, weight = discretise(dt, p.A, p.zoh)  # (B, T, d, N)
    b = weight * x[..., None] * B[:, :, None]
    h, state = linear_scan(a, b, state, reset=p.reset, reverse=p.reverse, backend=backend)
    y = torch.einsum("btdn,btn->btd", h, C)  # (B, T, d)
    if p.D is not None:
        y = y + p.D * x
    if p.z is not None:
        y = y * F.silu(p.z.to(y.dtype))
    return y.to(p.x.dtype), state
