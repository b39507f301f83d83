"""Modes and what is counted of their waves, by ``src/native/kernels/exceedance.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense
from linrnn.compute.native import pointer

_EXCEEDANCE = native.Kernel(
    "exceedance",
    "seqs time inputs modes x observed when decay out weight threshold before after features "
    "places count waves row",
)
_NUMBERS = 9  # of a mode: its two parts and what is counted
_STATISTICS = 6
_APART = 16  # numbers between rows of waves: else all of a step would lie in one set of the cache


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    if dtype in (torch.bfloat16, torch.float16):
        return f"it has no kernel for {dtype}"
    return native.unavailable(device, dtype, real=True, kernel="exceedance")


def tally(
    modes: tuple[Tensor, ...], threshold: Tensor, drive: tuple[Tensor, ...], start: list[Tensor]
) -> list[Tensor]:
    """`linrnn.nn.exceedance.tally`, of equal steps."""
    h, *counts = start
    parts = [h.real, h.imag, *counts]
    before = torch.stack([part.expand(h.shape) for part in parts]).to(threshold.dtype)
    after = torch.empty_like(before)  # (numbers, B, N)
    _run(modes, threshold, drive, before=before, after=after)
    return [torch.complex(after[0], after[1]), *after[2:]]


def features(modes: tuple[Tensor, ...], threshold: Tensor, drive: tuple[Tensor, ...]) -> Tensor:
    """`linrnn.nn.ModeBank.features` of whole sequences, (B, 6 * N)."""
    rows = len(drive[0])
    described = threshold.new_empty(rows, _STATISTICS * len(threshold))
    _run(modes, threshold, drive, features=described)
    return described


def waves_at(modes: tuple[Tensor, ...], drive: tuple[Tensor, ...], places: Tensor) -> Tensor:
    """Waves, (N, places), at some steps.

    Args:
        modes, drive: see `linrnn.nn.exceedance`.
        places: rising, among the steps of all sequences behind one another.
    """
    row = len(places) + _APART
    waves = modes[0].new_empty(len(modes[-1]), row, dtype=drive[0].dtype)
    _run(modes, None, drive, places=dense(places), waves=waves)
    return waves[:, : len(places)]


def _run(
    modes: tuple[Tensor, ...],
    threshold: Tensor | None,
    drive: tuple[Tensor, ...],
    *,
    before: Tensor | None = None,
    after: Tensor | None = None,
    features: Tensor | None = None,
    places: Tensor | None = None,
    waves: Tensor | None = None,
) -> None:
    decay, out, weight = map(dense, modes)
    x, observed, when = map(dense, drive)
    threshold = None if threshold is None else dense(threshold)
    inputs = (x, observed, when, decay, out, weight, threshold)
    addresses = (pointer(z) for z in (*inputs, before, after, features, places))
    count = 0 if places is None else len(places)
    row = 0 if waves is None else waves.stride(0)
    _EXCEEDANCE(x.dtype, *x.shape, len(weight), *addresses, count, pointer(waves), row)
