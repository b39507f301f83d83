"""Spectra and Lyapunov exponents of the layers of a run, along a sequence of its test data."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import pi
from pathlib import Path

import torch
from torch import Tensor

from linrnn._files.storage import write_atomically
from linrnn.dynamics import lyapunov_exponents, spectrum, step_jacobians
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers import Mixer
from linrnn.train._memory import inputs_of_mixers
from linrnn.train.data import eval_loader
from linrnn.train.figures import legend_below, new_figure, save
from linrnn.train.folder import RunFolder
from linrnn.train.model import load_model
from linrnn.typing import Signals

_SHOWN = 16  # steps whose spectrum is drawn


@dataclass(frozen=True, kw_only=True)
class LayerDynamics:
    """How the state of one layer moves."""

    exponents: Tensor
    """(numbers,): Lyapunov exponents in nats a step, the largest first."""
    spectra: Tensor
    """(shown, numbers): eigenvalues of the Jacobian of some steps."""
    steps: tuple[int, ...]
    """Those steps, from 0."""
    radius: float
    """Mean over them of the largest |eigenvalue|."""


def measure_dynamics(run: Path | str, *, steps: int = 256) -> list[LayerDynamics]:
    """Lyapunov exponents of every layer of a run along its first test sequence.

    Everything is computed in float64. The first quarter of the steps turns the directions into
    place and does not count.

    Args:
        run: the run folder.
        steps: of the sequence that are read, fewer if it is shorter.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        DataError: the task's data is missing or damaged.
        ArgumentError: a layer that cannot be stepped, or with too large a state.
    """
    check_positive_int("measure_dynamics", steps=steps)
    model, task, _ = load_model(run)
    model = model.double()
    x = next(iter(eval_loader(task.datasets().test, 1)))[0][:, :steps]
    x = x.double() if x.is_floating_point() else x
    for mixer in model.mixers:
        if not mixer.causal:
            raise ArgumentError(
                "measure_dynamics: every layer must read in one direction, got a "
                f"{type(mixer).__name__}."
            )
    inputs = inputs_of_mixers(model, x)
    return [_measure(m, z[0], s) for m, (z, s) in zip(model.mixers, inputs, strict=True)]


def _measure(mixer: Mixer, z: Tensor, signals: Signals | None) -> LayerDynamics:
    count = len(z)
    shown = sorted({round(i * (count - 1) / (_SHOWN - 1)) for i in range(_SHOWN)})
    spectra: list[Tensor] = []

    def watched() -> Iterator[Tensor]:
        for t, J in enumerate(step_jacobians(mixer, z, signals=signals)):
            if t in shown:
                spectra.append(spectrum(J))
            yield J

    exponents = lyapunov_exponents(watched(), warm_up=count // 4)
    every = torch.stack(spectra)  # (steps, eigenvalues)
    radius = float(every.abs().amax(1).mean())
    return LayerDynamics(exponents=exponents, spectra=every, steps=tuple(shown), radius=radius)


def write_dynamics(run: Path | str, found: Sequence[LayerDynamics]) -> None:
    """Write ``lyapunov.csv`` and the plot ``lyapunov`` (PNG and SVG) into a run folder."""
    folder = RunFolder(Path(run))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("layer", "index", "exponent"))
    for layer, dynamics in enumerate(found, 1):
        for i, value in enumerate(dynamics.exponents.tolist(), 1):
            writer.writerow((layer, i, f"{value:.6g}"))
    write_atomically(folder.lyapunov, text.getvalue().encode(), inside=folder.path)
    _draw(found, folder.lyapunov_plot)


def _draw(layers: Sequence[LayerDynamics], path: Path) -> None:
    from matplotlib import colormaps

    figure = new_figure(8.6, 4.0 * len(layers))
    grid = figure.subplots(len(layers), 2, sharex="col", sharey="col", squeeze=False)
    circle = torch.linspace(0, 2 * pi, 361)
    for layer, (dynamics, (left, right)) in enumerate(zip(layers, grid, strict=True), 1):
        left.plot(circle.cos(), circle.sin(), color="black", linewidth=1)
        for i, (t, values) in enumerate(zip(dynamics.steps, dynamics.spectra, strict=True)):
            shade = colormaps["viridis"](0.9 * i / max(1, len(dynamics.steps) - 1))
            label = f"step {t + 1}" if i in (0, len(dynamics.steps) - 1) else None
            left.scatter(values.real, values.imag, s=9, color=[shade], label=label)
        left.set_aspect("equal")
        left.set(title=f"Layer {layer}: eigenvalues of the Jacobian", xlabel="Re", ylabel="Im")
        finite = [v for v in dynamics.exponents.tolist() if math.isfinite(v)]
        right.plot(range(1, len(finite) + 1), finite, "o-", markersize=3.5, color="#1f4e9c")
        right.axhline(0, color="black", linewidth=1)
        dead = len(dynamics.exponents) - len(finite)
        note = f", {dead} forgotten at once" if dead else ""
        right.set(title=f"Lyapunov exponents{note}", xlabel="direction", ylabel="nats per step")
        right.grid(alpha=0.3)
    legend_below(figure, grid[0][0])
    save(figure, path)
