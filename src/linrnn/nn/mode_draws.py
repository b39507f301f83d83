"""Draw a bank of modes: random modes, and random quantiles of their waves."""

from math import log, pi

import numpy as np
import torch
from torch import Tensor

from linrnn.nn.exceedance import Drive, Modes, waves

_SERIES = 32  # series among whose waves a threshold is drawn
_SAMPLE = 4096  # numbers of a wave among which it is
_WAVES = 1 << 23  # numbers of waves that are held at once


def random_modes(
    d_input: int, n_modes: int, length: int, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Modes of all time scales up to ``length``, the second half of them for first differences.

    Returns:
        In float64: ``rate`` and ``angle`` (modes,), ``out`` (modes, 2), the real and the imaginary
        part, and ``weight`` (modes, 2 * d_input), for a series and its differences.

    Example:
        >>> modes = random_modes(3, 10, length=100)
        >>> modes["weight"].shape, (modes["weight"][:5, 3:] == 0).all().item()
        (torch.Size([10, 6]), True)
    """

    def uniform() -> Tensor:
        return torch.rand(n_modes, generator=generator, dtype=torch.float64, device="cpu")

    def between(low: float, high: float) -> Tensor:
        """Log-uniform."""
        return low * (uniform() * log(max(high, low) / low)).exp()

    rate = 1 / between(1, length / 3)
    angle = 2 * pi / between(2, length / 2)
    phase = 2 * pi * uniform()
    gain = torch.sqrt(-torch.expm1(-2 * rate))  # of a wave that noise of variance 1 drives
    direction = torch.randn(
        n_modes, d_input, generator=generator, dtype=torch.float64, device="cpu"
    )
    direction = direction / direction.norm(dim=1, keepdim=True)
    weight = torch.zeros(n_modes, 2, d_input, dtype=torch.float64, device="cpu")
    first = n_modes - n_modes // 2
    weight[:first, 0], weight[first:, 1] = direction[:first], direction[first:]
    out = gain[:, None] * torch.stack([phase.cos(), phase.sin()], 1)
    return {"rate": rate, "angle": angle, "out": out, "weight": weight.flatten(1)}


def some_rows(count: int, time: int, generator: torch.Generator | None = None) -> Tensor:
    """Random rows of ``count`` series, few enough to limit the waves in memory."""
    n_rows = max(1, min(_SERIES, _WAVES // max(1, time)))
    return torch.randperm(count, generator=generator, device="cpu")[:n_rows]


def random_quantiles(
    modes: Modes, drive: Drive, generator: torch.Generator | None = None
) -> Tensor:
    """For each mode a quantile of its wave over the observed steps, uniform from 0 to 1: (modes,).

    Args:
        modes: the recurrences.
        drive: of some series, at least one step of which was observed.
        generator: of the random numbers; None is PyTorch's own.
    """
    observed = drive.observed[..., 0].flatten() > 0
    places = observed.nonzero()[:, 0].cpu()
    sample = torch.randperm(len(places), generator=generator, device="cpu")[:_SAMPLE]
    places = places[sample].sort().values
    # between two numbers of the wave: at one of them rounding would decide
    level = torch.rand(len(modes.rate), generator=generator, device="cpu").to(observed.device)
    level = level * (len(places) - 1)
    under = level.long().clamp(max=max(0, len(places) - 2))
    quantiles = []
    for part in torch.arange(len(level), device="cpu").split(max(1, _WAVES // observed.numel())):
        part_modes = Modes(*(x[part] for x in modes))
        low, high = _ranked(waves(part_modes, drive, places), under[part])
        quantiles.append(torch.lerp(low, high, (level - under)[part].to(low.dtype)))
    return torch.cat(quantiles)


def _ranked(wave: Tensor, under: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the number with ``under`` smaller ones, and the next larger one.

    To part a row around a number takes a tenth of the time of sorting it.
    """
    if wave.shape[1] == 1:
        return wave[:, 0], wave[:, 0]
    if wave.device.type != "cpu":
        ranked = wave.sort(1).values
        return ranked.gather(1, under[:, None])[:, 0], ranked.gather(1, under[:, None] + 1)[:, 0]
    rows = wave.numpy()
    ranked_rows = np.empty((2, len(rows)), rows.dtype)
    for k, (row, rank) in enumerate(zip(rows, under.tolist(), strict=True)):
        row.partition(rank)
        ranked_rows[:, k] = row[rank], row[rank + 1 :].min()
    low, high = torch.from_numpy(ranked_rows)
    return low, high
