"""Count what a wave does above a threshold, inside the scan of its mode.

Equal steps use a special kernel, where there is one; otherwise the step is a cell.
"""

from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import cell
from linrnn.compute.backend import choose, module_of
from linrnn.compute.modes import eager
from linrnn.ops import cell_scan

_KERNELS = (("cpu", "linrnn.nn._exceedance_cpu"),)
_STATES = "h run steps excess place longest top end"
_BELOW = -1e30  # a wave where nothing was observed: under every threshold, and no maximum


class Modes(NamedTuple):
    """Diagonal modes ``h_t = exp((-rate + i angle) dt) h_{t-1} + W x_t``, (N,), and their waves."""

    rate: Tensor
    angle: Tensor
    out: Tensor
    """(N,), complex: the wave is ``Re(out h)``."""
    weight: Tensor
    """(N, inputs)."""


class Drive(NamedTuple):
    """The inputs of modes at each step, (B, T, ...)."""

    x: Tensor
    """(B, T, inputs), finite: 0 where nothing was observed."""
    observed: Tensor
    """(B, T, 1): 1 where something was observed, else 0."""
    time: Tensor
    """(B, T, 1): when."""
    dt: Tensor | None = None
    """(B, T, 1): since the step before; None is 1 everywhere."""


class Tally(NamedTuple):
    """Modes and what was counted of their waves over the observed steps, (B, N)."""

    h: Tensor
    """Complex: the modes."""
    run: Tensor
    """For how many steps the wave has been above its threshold without a break."""
    steps: Tensor
    """How many steps it was above."""
    excess: Tensor
    """The sum over them of how far it was above."""
    place: Tensor
    """The sum over them of when."""
    longest: Tensor
    """The longest ``run``."""
    top: Tensor
    """The largest value of the wave."""
    end: Tensor
    """The last value of the wave."""


def _read(h: Any, decay: Any, x: Any, W: Any) -> Any:
    return decay * h + F.linear(x, W)


def _counted(wave: Any, tally: Any, q: Any, observed: Any, time: Any) -> tuple[Any, ...]:
    """The statistics after a step at which the wave is ``wave``."""
    run, steps, excess, place, longest, top, end = tally
    end = torch.where(observed > 0.0, wave, end)
    wave = torch.where(observed > 0.0, wave, _BELOW)
    above = wave > q
    one = torch.where(above, 1.0, 0.0)
    run = torch.where(above, run + 1.0, torch.where(observed > 0.0, 0.0, run))
    excess = excess + torch.where(above, wave - q, 0.0)
    longest, top = torch.maximum(longest, run), torch.maximum(top, wave)
    return run, steps + one, excess, place + one * time, longest, top, end


@cell(state=_STATES, constant="decay out q", matrix="W ones", complex="h decay out")
def _steps(
    h: Any, run: Any, steps: Any, excess: Any, place: Any, longest: Any, top: Any, end: Any,
    x: Any, observed: Any, t: Any,
    decay: Any, out: Any, q: Any, W: Any, ones: Any,
) -> Any:  # fmt: skip
    """Equal steps. The products with ones hand a number to all modes without a copy of it."""
    h = _read(h, decay, x, W)
    tally = (run, steps, excess, place, longest, top, end)
    next_tally = _counted((out * h).real, tally, q, F.linear(observed, ones), F.linear(t, ones))
    return (), (h, *next_tally)


@cell(state=_STATES, constant="rate angle out q", matrix="W ones", complex="h out")
def _times(
    h: Any, run: Any, steps: Any, excess: Any, place: Any, longest: Any, top: Any, end: Any,
    x: Any, observed: Any, t: Any, dt: Any,
    rate: Any, angle: Any, out: Any, q: Any, W: Any, ones: Any,
) -> Any:  # fmt: skip
    """Steps that a time of ``dt`` lies before."""
    dt = F.linear(dt, ones)
    h = _read(h, torch.polar(torch.exp(-rate * dt), angle * dt), x, W)
    tally = (run, steps, excess, place, longest, top, end)
    next_tally = _counted((out * h).real, tally, q, F.linear(observed, ones), F.linear(t, ones))
    return (), (h, *next_tally)


@cell(state="h", constant="decay out", matrix="W", complex="h decay out")
def _wave(h: Any, x: Any, decay: Any, out: Any, W: Any) -> Any:
    h = _read(h, decay, x, W)
    return (out * h).real, h


@cell(state="h", constant="rate angle out", matrix="W ones", complex="h out")
def _timed_wave(h: Any, x: Any, dt: Any, rate: Any, angle: Any, out: Any, W: Any, ones: Any) -> Any:
    dt = F.linear(dt, ones)
    h = _read(h, torch.polar(torch.exp(-rate * dt), angle * dt), x, W)
    return (out * h).real, h


def waves(modes: Modes, drive: Drive, places: Tensor) -> Tensor:
    """Some numbers of the waves, (N, places), from zero.

    Args:
        modes: the recurrences.
        drive: of some series.
        places: rising, among the steps of all series behind one another.
    """
    kernels = _kernels(drive)
    if kernels is not None:
        chosen: Tensor = kernels.waves_at(_constants(modes), drive[:3], places)
        return chosen
    operands: dict[str, Any] = {"x": drive.x, "out": modes.out, "W": modes.weight}
    if drive.dt is None:
        step, operands = _wave, operands | {"decay": _decay(modes)}
    else:
        step, operands = _timed_wave, operands | {"dt": drive.dt, "ones": _ones(modes)}
        operands |= {"rate": modes.rate, "angle": modes.angle}
    every: Tensor = cell_scan(step, **operands)[0]  # (B, T, N)
    return every.flatten(0, 1)[places].T.contiguous()


def tally(modes: Modes, threshold: Tensor, drive: Drive, start: Tally) -> Tally:
    """Read on and count: all steps in one scan, of which nothing but the last state is kept.

    Args:
        modes: the recurrences.
        threshold: (N,).
        drive: of at least one step.
        start: the state before the first step.
    """
    kernels = _kernels(drive)
    if kernels is not None:
        return Tally(*kernels.tally(_constants(modes), threshold, drive[:3], list(start)))
    operands: dict[str, Any] = {
        "x": drive.x,
        "observed": drive.observed,
        "t": drive.time,
        "out": modes.out,
    }
    operands |= {"q": threshold, "W": modes.weight, "ones": _ones(modes)}
    if drive.dt is None:
        step, operands = _steps, operands | {"decay": _decay(modes)}
    else:
        step = _times
        operands |= {"dt": drive.dt, "rate": modes.rate, "angle": modes.angle}
    _, final = cell_scan(step, state=tuple(start), **operands)
    return Tally(*final)


def describe(modes: Modes, threshold: Tensor, drive: Drive) -> Tensor | None:
    """The features of `linrnn.nn.ModeBank`, (B, 6 * N), of whole series; None without a kernel."""
    kernels = _kernels(drive)
    if kernels is None:
        return None
    features: Tensor = kernels.features(_constants(modes), threshold, drive[:3])
    return features


def _kernels(drive: Drive) -> ModuleType | None:
    single = drive.x.dtype in (torch.float32, torch.float64)
    if drive.dt is not None or not single or not eager(drive.x):
        return None
    name, _ = choose("exceedance", _KERNELS, None, drive.x.device, drive.x.dtype)
    return module_of(_KERNELS, name)


def _constants(modes: Modes) -> tuple[Tensor, ...]:
    return _decay(modes), modes.out, modes.weight


def _decay(modes: Modes) -> Tensor:
    return torch.polar(torch.exp(-modes.rate), modes.angle)


def _ones(modes: Modes) -> Tensor:
    return torch.ones_like(modes.rate)[:, None]
