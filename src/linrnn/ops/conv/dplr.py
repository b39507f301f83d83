r"""Systems of one input and one output, diagonal plus low rank: ``A = Lambda - P P^*``, S4.

All vectors are of conjugate pairs: one of each is kept, and sums over all are twice the real part
of those over the kept. With real numbers for pairs, ``A`` plus its transpose is ``2 Re Lambda``
less a square, so that ``A`` is stable wherever ``Re Lambda < 0``. The bilinear rule makes it

``h_t = a h_{t-1} + b u_t - sum_r p_r 2 Re(q_r h_{t-1})``, a `Transition`,

by the formula of Woodbury, a step of as many operations as a state has numbers. A sequence is
computed in blocks of time, whose matrices are powers of the dense transition, or by FFT.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.layout import stacked
from linrnn.compute.modes import may_look, seen_zero
from linrnn.compute.pairs import columns, conjugate, pairs, rows
from linrnn.ops.conv._blocks import add_now, convolve_shapes, scan_all, scan_shapes
from linrnn.ops.conv._dplr_powers import Matrices
from linrnn.ops.conv._fft import causal_product
from linrnn.ops.conv.cauchy import cauchy

# Longer blocks take more powers, shorter ones more products by a dense matrix. A training step of
# S4 (64 channels, 4 rows) takes 1.13 times as long with 16 and 1.17 with 64 at 512 steps. From LONG
# steps on powers are a small part, and blocks are twice as long: at 2,048 it takes 1.05 times as
# long with half of that and 1.17 with double
# (2026-11-27, EPYC with AVX-512, one busy core, in turn).
BLOCK = 32
LONG = 1024
# A training step of S4 with resets (64 channels, 4 rows of 1,024 steps) takes 1.25 times as long
# with 8, 1.21 with 32 and 1.82 with 64 (2026-11-28, EPYC with AVX-512, one core, in turn).
RESET_BLOCK = 16
_SLOWEST = 2e-5  # of dt/2 Re lam: at 2.5e-4, where LegS begins, `kernel` errs by 5e-7 in float32
_TINY = 1e-8  # of a pole: its fourth power and the inverse of that float32 still holds


class System(NamedTuple):
    """``h' = (lam - P P^*) h + b u``, ``y = Re sum_m c_m h_m + d u``, in steps of ``dt``.

    The first four are complex128, dt float64. Since one of each pair is kept, ``c`` is twice that
    of all. ``dt`` may have axes of batch and time before, for `varying` and `step`, and these two
    read systems of several outputs, (..., outputs, channels), where ``c`` and ``d`` have such an
    axis first.
    """

    lam: Tensor  # (channels, modes)
    P: Tensor  # (channels, rank, modes)
    b: Tensor  # (channels, modes)
    c: Tensor  # (channels, modes)
    dt: Tensor  # (channels,)
    d: Tensor  # (channels,)


class Transition(NamedTuple):
    """The system in discrete time; the axes of dt stand before channels and modes."""

    a: Tensor  # (..., H, M)
    b: Tensor  # (..., H, M)
    p: Tensor  # (..., H, rank, M)
    q: Tensor  # (..., H, rank, M)

    @classmethod
    def of(cls, system: System) -> "Transition":
        """By the bilinear rule, in double precision."""
        half = 0.5 * system.dt[..., None]
        inverse = 1 / (1 - half * system.lam)  # of the diagonal part of I - dt/2 A
        RP, q = inverse[..., None, :] * system.P, inverse[..., None, :] * conjugate(system.P)
        gram = _dot(
            conjugate(system.P)[..., :, None, :], RP[..., None, :, :]
        )  # (..., H, rank, rank)
        S = _inverse(half[..., None] * gram)
        p = 2 * half[..., None] * (S.transpose(-1, -2).to(RP.dtype) @ RP)  # (..., N)
        b = 2 * half * inverse * system.b
        b = b - half * (p * _dot(q, system.b[..., None, :])[..., None]).sum(-2)
        return cls(2 * inverse - 1, b, p, q)

    def apply(self, h: Tensor) -> Tensor:
        """The state (..., H, M) after a step without input."""
        return self.a * h - (self.p * _dot(self.q, h[..., None, :])[..., None]).sum(-2)

    def to(self, dtype: torch.dtype) -> "Transition":
        """In another precision."""
        return Transition(*(x.to(dtype) for x in self))

    def at(self, t: int) -> "Transition":
        """The transition of one step, where each step has its own."""
        return Transition(*(x[:, t] for x in self))

    def matrices(self, c: Tensor, time: int, most: int, dtype: torch.dtype) -> Matrices:
        """`Matrices` of blocks of at most ``most`` steps, a power of two; ``c`` reads states."""
        return Matrices.of((self.a, self.b, c, self.p, 2 * self.q), time, most, dtype)

    def dense(self) -> Tensor:
        """(H, K, K): what a row, the real numbers of a state, is multiplied with."""
        return self.matrices(torch.zeros_like(self.b), 1, 1, torch.float64).decay


def step(system: System, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step: ``u`` (B, H), ``h`` (B, H, M); ``(y, h)``."""
    now = Transition.of(system).to(h.dtype)
    h = now.apply(h) + now.b * u[..., None]
    return _outputs(system, u, h), h


def varying(system: System, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """A `System` of which every step has its own dt (B, T, H): as `scan`, one after the other."""
    every, last = states(Transition.of(system).to(h.dtype), u, h, reset)
    return _outputs(system, u, every), last


def _outputs(system: System, u: Tensor, h: Tensor) -> Tensor:
    """Outputs from states (..., H, M) and inputs (..., H)."""
    if system.d.ndim == 2:
        u, h = u[..., None, :], h[..., None, :, :]
    return (columns(system.c.to(h.dtype)) * rows(h)).sum(-1) + system.d * u


def _all_states(
    transition: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    return h.new_empty((*u.shape, h.shape[-1])), h.new_empty(h.shape)


@composed(
    "dplr_states", "Tensor[] transition, Tensor u, Tensor h, Tensor? reset", _all_states, lead=1
)
def states(
    transition: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """All states (B, T, H, M) of steps that have their own transitions, and the last."""
    each, every = Transition(*transition), []
    for t in range(u.shape[1]):
        now = each.at(t)
        if reset is not None:
            h = torch.where(reset[:, t, None, None], 0, h)
        h = now.apply(h) + now.b * u[:, t, :, None]
        every.append(h)
    return stacked(every, h), h


@composed("dplr_scan", "Tensor[] system, Tensor u, Tensor h, Tensor? reset", scan_shapes, lead=1)
def scan(
    system: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A `System`, in blocks: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``, and any ``reset``."""
    system = System(*system)
    if u.numel() == 0:
        return u, h
    time = u.shape[1]
    largest = block(time) if reset is None else RESET_BLOCK
    matrices = Transition.of(system).matrices(system.c, time, largest, h.real.dtype)
    return scan_all(matrices.blocks(time, system.d, h.real.dtype), u, h, reset)


def block(time: int) -> int:
    """Steps of a block of so long a sequence, which no reset cuts."""
    return BLOCK if time < LONG else 2 * BLOCK


@composed("dplr_convolve", "Tensor[] system, Tensor u, Tensor h", convolve_shapes, lead=1)
def convolve(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A `System`, by FFT: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``."""
    system, time = System(*system), u.shape[1]
    if u.numel() == 0:  # an FFT refuses an empty batch
        return u, h
    matrices = Transition.of(system).matrices(system.c, time, block(time), torch.float64)
    parts, last = matrices.blocks(time, torch.zeros_like(system.d), h.real.dtype), h
    if _is_marginal(system):
        pulse = F.pad(torch.ones_like(u[:1, :1]), (0, 0, 0, time - 1))  # (1, T, C)
        taps = scan_all(parts, pulse, torch.zeros_like(h[:1]), None)[0][0].t()
    else:
        taps = kernel(system, time, matrices.after(system.c, time), h.dtype)
    y = causal_product(u, add_now(taps, system.d))
    for lo, hi, blocks in parts:
        last = blocks.last(u[:, lo:hi], last)
    return (y if seen_zero(h) else y + scan_all(parts, torch.zeros_like(u), h, None)[0]), last


def _is_marginal(system: System) -> bool:
    """Whether a mode fades so slowly that its pole is all but one of the roots of unity.

    The generating function of `kernel` divides by the distance: gradients of real parts at -1e-4
    were 9 times their size off in float32, and 1e-7 in float64. What cannot be looked at may be.
    """
    fading = 0.5 * system.dt[:, None] * system.lam.real
    return not may_look(fading) or bool((fading > -_SLOWEST).any())


def kernel(
    system: System, time: int, c_after: Tensor, dtype: torch.dtype = torch.complex128
) -> Tensor:
    """The response (H, T) to an impulse, by its generating function at the roots of unity.

    For the first T values it is the resolvent with ``c (I - A^T)`` instead of c, which is a
    Cauchy product and a correction for each rank; an inverse FFT makes values of it.

    Args:
        system: whose dt is (channels,).
        time: how many values.
        c_after: ``c A^time`` of the transition, (H, K), of `Matrices`.
        dtype: complex; that of the sums, unless poles are too near to 0 or too far for it.
    """
    rank, half = system.P.shape[1], 0.5 * system.dt[:, None]
    cut = conjugate(pairs(columns(system.c) - c_after, system.c))
    c, P = 0.5 * cut, system.P.transpose(0, 1)  # (H, M), (rank, H, M)
    # (1 + rank, H, M)
    left, right = torch.cat([c[None], conjugate(P)]), torch.cat([system.b[None], P])
    w = half * system.lam
    if may_look(w) and not bool(((w.abs() > _TINY) & (w.abs() < 1 / _TINY)).all()):
        dtype = torch.complex128
    v = (left[:, None] * right).flatten(0, 1).to(dtype)  # ((1 + rank)^2, H, M)
    angle = torch.arange(time // 2 + 1, device=c.device).double() * (2 * torch.pi / time)
    q = cauchy(v, w, angle).unflatten(0, (1 + rank, 1 + rank))  # (1 + rank, 1 + rank, H, nodes)
    q = q.permute(2, 3, 0, 1)  # (H, nodes, ., .)
    shift = (half * (1 + torch.complex(angle.cos(), -angle.sin()))).to(dtype)
    inverse = _inverse(shift[..., None, None] * q[..., 1:, 1:])
    correction = q[..., :1, 1:] @ (inverse @ q[..., 1:, :1])  # (H, nodes, 1, 1)
    spectrum = q[..., 0, 0] - shift * correction[..., 0, 0]
    response: Tensor = torch.fft.irfft(2 * half.to(spectrum.real.dtype) * spectrum, time)
    return response


def _dot(q: Tensor, h: Tensor) -> Tensor:
    """The sum over all modes of both kinds of a pair, real."""
    return 2 * (columns(q) * rows(h)).sum(-1)


def _inverse(gram: Tensor) -> Tensor:
    """``(I + gram)^-1`` of (..., rank, rank)."""
    if gram.shape[-1] == 1:
        return 1 / (1 + gram)
    inverse: Tensor = torch.linalg.inv(
        torch.eye(gram.shape[-1], device=gram.device).to(gram) + gram
    )
    return inverse
