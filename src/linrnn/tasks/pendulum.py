"""Pendulum: the angle of a swinging rod, from noisy images at irregular times."""

from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_in
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    Regression,
    check_options,
    check_readable,
    normal,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

SIDE = 24
"""Pixels of an image in each direction."""
_CANVAS, _ROD, _WIDTH = 128, 55, 8  # pixels of the canvas, length and width of the rod on it
_GRAVITY, _INERTIA, _FRICTION = 9.81, 1 / 3, 0.1  # mass and length are 1
_STEP = 0.01  # seconds
_TRANSITION_NOISE, _OBSERVATION_NOISE = 0.1, 1e-5  # of the velocity a step; of the angle drawn
_CLEAN = 5  # first images without noise
_WALK, _LOW, _HIGH = 0.2, (0.0, 0.25), (0.75, 1.0)
_CLEAR = 0.16  # correlation of an image that is read alone: least error of 0.1, 0.13, ..., 0.6
_CRU = "Schirmer et al. 2022, arXiv:2111.11344"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"


@dataclass(frozen=True, kw_only=True)
class PendulumOptions(GeneratedOptions):
    """Options of the task `pendulum`."""

    length: int = 50
    """Images of a sequence."""
    steps: int = 100
    """Simulated steps of 0.01 s, of which ``length`` are observed, at random."""
    times: Literal["column", "dt", "none"] = "column"
    """Place of the steps since the image before.
    column: one more column of the input. dt: for layers that read `dt`. none: nowhere."""
    train_size: int = 2_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 1_000
    """Validation sequences."""
    test_size: int = 1_000
    """Test sequences."""


class Pendulum(Regression, Task):
    """Say at which angle a pendulum stands, from noisy images of it at irregular times.

    A rod of length and mass 1 swings under gravity, ``w' = 29.43 sin(a) - 0.1 w``, ``a' = w``, with
    a the angle from the upright. It starts at rest at a uniform angle, and at every step of 0.01 s
    its velocity is disturbed by a normal number of deviation 0.1. Of 100 steps 50, drawn at random,
    are observed, each by an image of 24x24 pixels of a line from the centre: 55 long and 8 wide on
    a canvas of 128. The target is ``(sin, cos)`` of ``a - pi`` at each of them, and the metric
    their mean squared error.

    Images are mixed with noise, ``f image + (1 - f) u`` with u uniform in [0, 1) for each pixel.
    The share f walks at random: it starts uniform in [0, 1), each step adds a uniform number in
    [-0.2, 0.2), and it is cut to [0, 1]. The share used is ``(f - a) / (b - a)``, cut likewise,
    with a in [0, 0.25) and b in [0.75, 1) for each sequence. Of the 100 images the first five are
    clean.

    Steps carry the time since the step before, in steps of 0.01 s, as in the task `gaps`. The first
    has the time since step -1, so that it is at least 1.

    Always answering the mean of all targets, ``(0, mean cos)``, has the error `chance`, 0.425.
    `baselines` measures that, and an interpolation between the angles of single images.

    Departures from the public code: a step is one of Runge and Kutta's method, where it has 100 of
    Euler's; a pixel is the part of it that the rod covers, where it draws on the canvas and
    shrinks; and the test sequences are not those that a model is selected on.

    Args:
        options: `PendulumOptions`.

    Raises:
        ArgumentError: a length or size below 1, fewer steps than images, a negative data_seed.
        UnknownNameError: another value of times.

    Reference:
        Schirmer et al., "Modeling Irregular Time Series with Continuous Recurrent Units", ICML
        2022, arXiv:2111.11344, after Becker et al., "Recurrent Kalman Networks", ICML 2019.
    """

    Options: ClassVar[type] = PendulumOptions
    summary: ClassVar[str] = "angle of a pendulum, from noisy images at irregular times"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="CRU", value=4.63e-3, source=_CRU),
        Published(model="CRU, as rerun for S5", value=3.94e-3, source=_S5),
        Published(model="S5, 4 layers of width 30", value=3.41e-3, source=_S5),
    )
    number_names: tuple[str, ...] = ("sin", "cos")

    chance = 0.425
    d_output = 2

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("Pendulum", options, "length")
        check_in("Pendulum", "times", options.times, ("column", "dt", "none"))
        if options.steps < options.length:
            raise ArgumentError(
                f"Pendulum: steps must be at least length = {options.length}, got {options.steps}."
            )
        self.sequence_length = options.length
        self.d_input = SIDE * SIDE + (options.times == "column")
        self.time_unit = 1.0 if options.times == "dt" else None

    def datasets(self) -> Splits:
        """Splits of x (time, 576 or 577) and target (time, 2), and dt (time,) with ``times``.

        See `Task.datasets`.
        """
        return splits(self.options, self._draw)

    def read(self, path: Path) -> Tensor:
        """Sequences from a user's file; with ``times="dt"`` a table cannot hold the times.

        Raises:
            ArgumentError: the task has ``times="dt"``.
        """
        check_readable("Pendulum", self.options.times)
        return super().read(path)

    def picture(self, x: Tensor) -> Tensor:
        """The first images side by side, eight at most: see `Task.picture`."""
        images = x[:8, : SIDE * SIDE].reshape(-1, SIDE, SIDE)
        return torch.cat(list(images), 1)

    def example(self) -> str:
        """When the first images of a sequence come, and what they show."""
        task = type(self)(PendulumOptions(times="dt", data_seed=self.options.data_seed))
        _, target, gaps = task.datasets().train[0]
        times = ", ".join(f"{gap:.0f}" for gap in gaps[:6].tolist())
        vectors = ", ".join(f"({sine:+.2f}, {cosine:+.2f})" for sine, cosine in target[:6].tolist())
        return f"input 24x24 pixels after {times}, ... steps\ntarget {vectors}, ..."

    def baselines(self) -> dict[str, float]:
        """The error on the test sequences of predictions without a model.

        ``mean`` is the mean target of the training sequences. ``interpolation`` reads each image
        alone, by the angle of the rod that correlates with it most, takes those with a correlation
        above 0.16, and interpolates sine and cosine between them, with the true times. It looks at
        later images too, which a causal model cannot.
        """
        train, test = (
            splits(self.options, self._simulate)[part][list(range(size))]
            for part, size in ((0, self.options.train_size), (2, self.options.test_size))
        )
        images, target, when = (v.double() for v in test)
        mean = train[1].double().mean((0, 1)).expand_as(target)
        angles, correlation = by_correlation(images)
        vectors = np.stack([np.sin(angles), np.cos(angles)], -1)
        interpolated = np.empty_like(vectors)
        for row, times in enumerate(when.numpy()):
            clear = correlation[row] >= min(_CLEAR, correlation[row].max())
            for part in (0, 1):
                known = vectors[row, clear, part]
                interpolated[row, :, part] = np.interp(times, times[clear], known)
        answers = {"mean": mean, "interpolation": torch.from_numpy(interpolated)}
        return {name: self.scores(y, target).mean().item() for name, y in answers.items()}

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        images, target, when = self._simulate(uniform)
        gaps = torch.diff(when, dim=1, prepend=torch.full((len(when), 1), -1.0))
        if self.options.times == "column":
            return torch.cat([images, gaps[..., None]], 2), target
        return (images, target, gaps) if self.options.times == "dt" else (images, target)

    def _simulate(self, uniform: Uniform) -> tuple[Tensor, ...]:
        """Images (B, T, 576), sine and cosine (B, T, 2) and numbers of the steps (B, T)."""
        options = self.options
        angles = swing(uniform, options.steps)  # (B, steps)
        when = np.sort(uniform(options.steps).argsort(1, kind="stable")[:, : options.length], 1)
        share = np.take_along_axis(shares(uniform, options.steps), when, 1)[..., None]
        share = share.astype(np.float32)
        seen = np.take_along_axis(angles, when, 1)
        drawn = rod(seen + _OBSERVATION_NOISE * normal(uniform, options.length))
        noise = uniform(options.length * SIDE * SIDE).reshape(drawn.shape)
        images = share * drawn + (1 - share) * noise.astype(np.float32)
        return to_tensors(images, np.stack([np.sin(seen), np.cos(seen)], -1), when.astype(float))


def swing(uniform: Uniform, steps: int) -> np.ndarray:
    """Angles (examples, steps) from the lower rest, in radians, of pendulums that start at rest."""
    angle = 2 * pi * uniform(1)[:, 0]
    velocity = np.zeros_like(angle)
    kicks = _TRANSITION_NOISE * normal(uniform, steps)
    path = [angle]
    for step in range(1, steps):
        angle, velocity = advanced(angle, velocity, _STEP)
        velocity = velocity + kicks[:, step]
        path.append(angle)
    return np.stack(path, 1) - pi


def advanced(angle: np.ndarray, velocity: np.ndarray, dt: float) -> tuple[np.ndarray, np.ndarray]:
    """Angle from the upright and velocity ``dt`` seconds later, by Runge and Kutta's method."""

    def slope(a: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return w, _GRAVITY / _INERTIA * np.sin(a) - _FRICTION * w

    a1, w1 = slope(angle, velocity)
    a2, w2 = slope(angle + dt / 2 * a1, velocity + dt / 2 * w1)
    a3, w3 = slope(angle + dt / 2 * a2, velocity + dt / 2 * w2)
    a4, w4 = slope(angle + dt * a3, velocity + dt * w3)
    angle = angle + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
    return angle, velocity + dt / 6 * (w1 + 2 * w2 + 2 * w3 + w4)


def shares(uniform: Uniform, steps: int) -> np.ndarray:
    """Share (examples, steps) of the clean image in each, a random walk that is cut to [0, 1]."""
    walk, moves = uniform(1)[:, 0], _WALK * (2 * uniform(steps) - 1)
    path = [walk]
    for step in range(1, steps):
        walk = np.clip(walk + moves[:, step], 0, 1)
        path.append(walk)
    low, high = (a + (b - a) * uniform(1) for a, b in (_LOW, _HIGH))
    share: np.ndarray = np.clip((np.stack(path, 1) - low) / (high - low), 0, 1)
    share[:, :_CLEAN] = 1
    return share


def rod(angles: np.ndarray) -> np.ndarray:
    """Images (..., 576), float32 in [0, 1], of a rod at angles (...).

    An angle of 0 points to the last row. A pixel is the part of it that the rod covers: the part
    along the rod times the part across it.
    """
    pixel = _CANVAS / SIDE
    place = (np.arange(SIDE) + 0.5) * pixel - _CANVAS / 2
    column, row = np.tile(place, SIDE), np.repeat(place, SIDE)
    column, row = column.astype(np.float32), row.astype(np.float32)
    sine, cosine = (f(angles)[..., None].astype(np.float32) for f in (np.sin, np.cos))
    along, across = sine * column + cosine * row, cosine * column - sine * row
    inside = (_WIDTH / 2 - np.abs(across), along, _ROD - along)
    image: np.ndarray = np.ones_like(along)
    for distance in inside:
        image *= np.clip(0.5 + distance / pixel, 0, 1)
    return image


def by_correlation(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The angle of whole degrees whose rod correlates most with each image, and how much.

    Args:
        images: (..., 576).

    Returns:
        Angles in radians and correlations, (...) each.
    """
    angles = np.arange(360) * pi / 180
    templates, seen = torch.from_numpy(rod(angles)).double(), images.double()
    templates, seen = (v - v.mean(-1, keepdim=True) for v in (templates, seen))
    templates, seen = (torch.nn.functional.normalize(v, dim=-1) for v in (templates, seen))
    correlation, best = (seen @ templates.T).max(-1)
    return angles[best.numpy()], correlation.numpy()
