"""Many independent diagonal systems of one input and one output each: S4D, the core of H3.

A sequence is computed either in blocks of time, with matrix products inside a block and a scan
over the blocks, or as a convolution by FFT. Neither holds a state for every step: the block form
holds one a block, the convolution one in about the square root of the length.
"""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops._modes import seen_finite
from linrnn.ops._opaque import opaque
from linrnn.ops.linear_scan import linear_scan
from linrnn.ops.past import recall

BLOCK = 32  # longer ones do more arithmetic, shorter ones move more states
RESET_BLOCK = 16  # with resets the inside of a block is a loop of that many shifts


class System(NamedTuple):
    """``h_t = a h_{t-1} + b u_t``, ``y_t = Re sum_m c_m h_{t,m} + d u_t``, for every channel.

    The first three are (channels, modes) and float64 or complex128: a rounding of ``a`` to
    float32 would be an error of the phase that grows with the distance in time. They may have the
    axes of batch and time before these, for `varying` and `step`.
    """

    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor  # (channels,)


def step(system: System, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step: ``u`` (B, H), ``h`` (B, H, M); ``(y, h)``."""
    a, b, c = (p.to(h.dtype) for p in system[:3])
    h = a * h + b * u[..., None]
    return (_columns(c) * _rows(h)).sum(-1) + system.d * u, h


def varying(system: System, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """A `System` of which every step has its own: as `scan`, with all states held at once."""
    a, b, c = (p.to(h.dtype) for p in system[:3])
    states, last = linear_scan(a, b * u[..., None], h, reset=reset)
    return (_columns(c) * _rows(states)).sum(-1) + system.d * u, last


def _shapes(
    system: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), h.new_empty(h.shape)


def _convolved(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return _shapes(system, u, h, None)


@opaque("siso_scan", "Tensor[] system, Tensor u, Tensor h, Tensor? reset", _shapes)
def scan(
    system: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A `System`, in blocks: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``, and any ``reset``."""
    system, time = System(*system), u.shape[1]
    if u.numel() == 0:
        return u, h
    size = BLOCK if reset is None else RESET_BLOCK
    whole = time - time % size
    powers = _powers(system.a, min(size, time) + 1)
    ys = []
    for lo, hi, length in ((0, whole, size), (whole, time, time - whole)):
        if lo < hi:
            part = None if reset is None else reset[:, lo:hi]
            blocks = _Blocks.of(system, powers[..., : length + 1], h.dtype)
            y, h = blocks.scan(u[:, lo:hi], h, part)
            ys.append(y)
    return (torch.cat(ys, 1) if len(ys) > 1 else ys[0]), h


class _Blocks(NamedTuple):
    """The matrices of one block of Q steps; a complex mode is two real columns."""

    kernel: Tensor  # (H, Q): the response to an impulse
    into: Tensor  # (H, Q, M): what each input leaves in the state at the end
    out: Tensor  # (H, M, Q): what a state before the block adds to each output
    decay: Tensor  # (H, M): of a state across the block

    @classmethod
    def of(cls, system: System, powers: Tensor, dtype: torch.dtype) -> "_Blocks":
        """From ``a^0 .. a^Q`` (H, M, Q + 1)."""
        decay, powers = powers[..., -1].to(dtype), powers.to(dtype).transpose(1, 2)
        b, c = system.b.to(dtype), system.c.to(dtype)
        into = _rows(b[:, None] * powers[:, :-1].flip(1))
        out = _columns(c[:, None] * powers).transpose(1, 2)
        kernel = (_rows(b)[:, None] @ out[..., :-1])[:, 0]
        return cls(_add_now(kernel, system.d), into, out[..., 1:], decay)

    def scan(self, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """A whole number of blocks."""
        batch, time, channels = u.shape
        size = self.kernel.shape[1]
        shape = (batch, time // size, size)
        cut = None if reset is None else reset.view(shape)
        # channels first, since every channel has its own matrices: (H, B * T/Q, Q)
        x = u.view(*shape, channels).permute(3, 0, 1, 2).reshape(channels, -1, size)
        if cut is None:
            y, left = self._whole(x)
        else:
            later = cut.flip(-1).cumsum(-1).flip(-1) > cut  # a reset after it in the block
            left = torch.where(later.reshape(-1, size), 0, x) @ self.into
            y = self._inside(u, cut).permute(2, 0, 1)
        before, h = self._carry(left, h, shape, None if cut is None else cut.any(-1))
        if cut is None:
            y = torch.baddbmm(y, before, self.out)
        else:
            y = y + torch.where((cut.cumsum(-1) > 0).reshape(-1, size), 0, before @ self.out)
        return y.view(channels, *shape).permute(1, 2, 3, 0).reshape(u.shape), h

    def _whole(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (H, n, Q) and states left (H, n, M) of blocks that nothing cuts, from zero.

        Half of the matrix is zero, and zero times infinity is not: what is not finite is kept out
        of the product, lest it reach steps before it, and marks those after it.
        """
        size = x.shape[-1]
        matrix = torch.cat([_toeplitz(self.kernel), self.into], -1)
        finite = seen_finite(x)
        x_safe = x if finite else x.nan_to_num(0, 0, 0)
        y, left = (x_safe @ matrix).split([size, self.into.shape[-1]], 2)
        if finite:
            return y, left
        mark = (x.detach() * 0).cumprod(-1)  # 0, and NaN from the first bad step on
        return y + mark, left + mark[..., -1:]

    def _carry(
        self, left: Tensor, h: Tensor, shape: tuple[int, int, int], cut: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The states before every block, (H, B * T/Q, M), and the last one."""
        batch, count, _ = shape
        left = left.view(left.shape[0], batch, count, left.shape[-1]).permute(1, 2, 0, 3)
        states, last = linear_scan(self.decay, _pairs(left, h), h, reset=cut)
        states = torch.cat(  # one copy for the shift and the new layout
            [_rows(s).permute(2, 0, 1, 3) for s in (h[:, None], states[:, :-1])], 2
        )
        return states.flatten(1, 2), last

    def _inside(self, u: Tensor, cut: Tensor) -> Tensor:
        """Outputs (B * T/Q, Q, H) from the inputs of the same block and the same sequence."""
        size = cut.shape[-1]
        u, cut = u.reshape(-1, size, u.shape[-1]), cut.reshape(-1, size)
        nothing = u.new_zeros(()).expand(u.shape)
        y = self.kernel[:, 0] * u
        for delay in range(1, size):
            y = y + self.kernel[:, delay] * recall(u, nothing, delay, cut)
        return y


@opaque("siso_convolve", "Tensor[] system, Tensor u, Tensor h", _convolved)
def convolve(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A `System`, by FFT: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``.

    Step t is ``i Q + j``, so that ``a^t = (a^Q)^i a^j``: a kernel of length T is a matrix product
    of two factors of sqrt(T) powers each, and the (H, M, T) powers are never written.
    """
    system, (batch, time, channels) = System(*system), u.shape
    if u.numel() == 0:  # an FFT refuses an empty batch
        return u, h
    size = isqrt(time - 1) + 1
    count = -(-time // size)
    fine = _powers(system.a, size + 1)  # (H, M, Q + 1)
    coarse = _powers(fine[..., -1], count + 1).to(h.dtype)
    a, b, c = (p.to(h.dtype) for p in system[:3])
    across = (coarse[..., time // size] * fine[..., time % size].to(h.dtype)) * h
    fine = fine[..., :-1].to(h.dtype).transpose(1, 2)  # (H, Q, M)

    weights = torch.cat([(c * b)[None], c * a * h])  # of the kernel, and of what the state adds
    left = _columns(weights[:, :, None] * coarse[..., :count].transpose(1, 2))
    response = (left @ _rows(fine).transpose(1, 2)).flatten(2)[..., :time]  # (1 + B, H, T)
    kernel = _add_now(response[0], system.d)
    spectrum = torch.fft.rfft(u.transpose(1, 2), 2 * time) * torch.fft.rfft(kernel, 2 * time)
    y = torch.fft.irfft(spectrum, 2 * time)[..., :time] + response[1:]

    padded = F.pad(u, (0, 0, size * count - time, 0)).view(batch, count, size, channels)
    sums = padded.permute(3, 0, 1, 2).flatten(1, 2) @ _rows(b[:, None] * fine.flip(1))
    sums = _pairs(sums.view(channels, batch, count, -1), h)  # (H, B, T/Q, M)
    left_over = (sums * coarse[..., :count].flip(-1).transpose(1, 2)[:, None]).sum(2)
    return y.transpose(1, 2), across + left_over.transpose(0, 1)


def _powers(a: Tensor, count: int) -> Tensor:
    """``a^0 .. a^(count - 1)`` along a new last axis, each from its binary digits."""
    powers, square = torch.ones_like(a)[..., None], a[..., None]
    while powers.shape[-1] < count:
        powers, square = torch.cat([powers, powers * square], -1), square * square
    return powers[..., :count]


def _add_now(kernel: Tensor, d: Tensor) -> Tensor:
    """The skip as part of the response (H, T) to an impulse: no pass of its own over the input."""
    return torch.cat([kernel[:, :1] + d.to(kernel.dtype)[:, None], kernel[:, 1:]], 1)


def _toeplitz(kernel: Tensor) -> Tensor:
    """(H, Q, Q): entry (j, i) is ``kernel[i - j]``, zero for i < j."""
    channels, size = kernel.shape
    row = F.pad(kernel, (size - 1, 0))  # (H, 2 Q - 1)
    # read with a period of one more than its length, each copy begins one later; ``unfold`` would
    # be shorter, but PyTorch has no batching rule for its gradient
    copies = row[:, None].expand(-1, size + 1, -1).reshape(channels, -1)
    shifted = copies[:, : size * 2 * size].view(channels, size, 2 * size)
    return shifted[..., :size].flip(1)


def _rows(z: Tensor) -> Tensor:
    """Real and imaginary parts interleaved on the last axis; a real tensor as it is."""
    return torch.view_as_real(z).flatten(-2) if z.is_complex() else z


def _columns(z: Tensor) -> Tensor:
    """What `_rows` of a state is multiplied with for ``Re(z h)``."""
    return torch.view_as_real(z.conj().resolve_conj()).flatten(-2) if z.is_complex() else z


def _pairs(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_rows`, where ``like`` is complex."""
    if not like.is_complex():
        return x
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
