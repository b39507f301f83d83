"""Helpers of the ops that use FFTs: causal products, and the pieces that resets cut."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import Ends
from linrnn.ops.conv.causal_conv import convolve as convolve_taps

# Taps without an FFT in `strict_product`. Hyena in blocks (64 channels, 1 row of 2,048 steps) takes
# 1.13 times as long with 8, 1.04 with 16, 0.98 with 64
# (2026-11-28, EPYC with AVX-512, one core, in turn).
DIRECT = 32
_SIZES = (1, 3, 5, 9, 15)  # times a power of two: lengths that every FFT is quick at


def fast_length(minimum: int) -> int:
    """The smallest length of at least ``minimum`` at which an FFT is quick.

    Example:
        >>> fast_length(1025)
        1152
    """
    return min(m << max(0, -(-minimum // m) - 1).bit_length() for m in _SIZES)


def causal_product(u: Tensor, kernel: Tensor, skip: int = 0) -> Tensor:
    """``y_t = sum_{s <= t} kernel_{t-s} u_s`` for the steps from ``skip`` on, (B, T - skip, C).

    Args:
        u: (B, T, C), T at least 1, real or complex like the kernel.
        kernel: (C, K); taps beyond the first T are left out.
        skip: steps whose outputs nobody wants, which makes the FFTs shorter.
    """
    time = u.shape[1]
    taps = min(kernel.shape[1], time)
    # what comes around the end of the circle falls on the first taps - 1 - (n - time) steps
    n = fast_length(max(time, time + taps - 1 - skip))
    if not (u.is_complex() or kernel.is_complex()):
        return circular_product(u, torch.fft.rfft(kernel[:, :taps], n), n)[:, skip:time]
    spectrum = torch.fft.fft(u.transpose(1, 2), n) * torch.fft.fft(kernel[:, :taps], n)  # (B, C, n)
    y: Tensor = torch.fft.ifft(spectrum, n)[..., skip:time].transpose(1, 2)  # (B, T - skip, C)
    return y


def strict_product(u: Tensor, kernel: Tensor, skip: int = 0) -> Tensor:
    """`causal_product` of real numbers, in which no output depends on later inputs in any digit.

    The first `DIRECT` taps are summed one by one. For the others, what a block of S steps adds to
    the S steps behind it is a circular product of 2 S, for S from `DIRECT` to what the taps reach:
    the even blocks of each size add to the odd ones, and each of the largest size to the next.
    """
    batch, time, channels = u.shape
    taps = min(kernel.shape[1], time)
    near = kernel[:, : min(taps, DIRECT)].flip(1)
    y, _ = convolve_taps(u, u.new_zeros(batch, near.shape[1] - 1, channels), near, None)
    far, size = F.pad(kernel[:, DIRECT:taps], (min(taps, DIRECT), 0)), DIRECT  # far: (C, taps)
    while size < time and taps > DIRECT:
        largest = size >= taps - 1
        stride = size if largest else 2 * size
        count = -(-(time - size) // stride)  # of blocks with steps behind them
        # (B, count stride, C)
        left = F.pad(u, (0, 0, 0, max(0, count * stride - time)))[:, : count * stride]
        left = left.reshape(-1, stride, channels)[:, :size]  # (B * count, S, C)
        spectrum = torch.fft.rfft(far[:, : 2 * size], 2 * size)
        added = circular_product(left, spectrum, 2 * size)[:, size:]
        # (B, count * stride, C)
        added = F.pad(added, (0, 0, stride - size, 0)).reshape(batch, -1, channels)
        # (B, more, C)
        added = F.pad(added, (0, 0, size if largest else 0, 0))  # from the first step on
        y = y + F.pad(added, (0, 0, 0, max(0, time - added.shape[1])))[:, :time]  # (B, T, C)
        if largest:
            break
        size *= 2
    return y[:, skip:]


def circular_product(u: Tensor, spectrum: Tensor, n: int) -> Tensor:
    """``y_t = sum_s kernel_{(t-s) mod n} u_s``, (B, n, C), of the kernel's `torch.fft.rfft`."""
    y: Tensor = torch.fft.irfft(torch.fft.rfft(u.transpose(1, 2), n) * spectrum, n)  # (B, C, n)
    return y.transpose(1, 2)  # (B, n, C)


def cuts(u: Tensor, reset: Tensor | None, edge: Ends) -> Tensor:
    """Return where pieces begin, in order, in the flattened rows of u (B, T, C).

    A piece begins with each sequence and at each reset.
    """
    batch, time, _ = u.shape
    # not new_zeros, which vmap would take for one of each call
    cut = torch.zeros(batch, time, dtype=torch.bool, device=u.device) if reset is None else reset
    cut = cut.index_put((edge.row, edge.first), cut.new_ones(()))
    return cut.flatten().nonzero().squeeze(1)  # (pieces,)


def piecewise(u: Tensor, start: Tensor, convolve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The outputs of all pieces of u (B, T, C), those of about one length computed together.

    Args:
        u: inputs.
        start: where the pieces begin, of `cuts`.
        convolve: given inputs (n, length, C), zero behind the end of a piece, and the indices of
            these n pieces, their outputs.
    """
    steps = u.shape[0] * u.shape[1]
    length = torch.diff(start, append=start.new_tensor([steps]))
    size = length.double().log2().ceil()  # pieces of one power of two waste less than half
    parts, places = [], []
    for exponent in size.unique().tolist():
        indices = (size == exponent).nonzero().squeeze(1)  # (pieces of that size,)
        step = torch.arange(int(length[indices].max()), device=u.device)
        inside = step < length[indices, None]
        place = (start[indices, None] + step).clamp(max=steps - 1)
        inputs = torch.where(inside[..., None], u.flatten(0, 1)[place], 0)  # (n, length, C)
        row, column = inside.nonzero(as_tuple=True)
        parts.append(convolve(inputs, indices)[row, column])
        places.append(place[row, column])
    order = torch.cat(places).argsort()  # (B * T,)
    return torch.cat(parts)[order].view(u.shape)  # (B, T, C)
