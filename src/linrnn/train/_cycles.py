"""Fixed points and cycles of the layers of a run, with their inputs held."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from linrnn._files.storage import write_atomically
from linrnn.dynamics import Cycle, scyfi
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.train._memory import inputs_of_mixers
from linrnn.train.data import eval_loader
from linrnn.train.folder import RunFolder
from linrnn.train.model import load_model

_STEPS = 256  # of a test sequence, over which the input of a layer is averaged


def measure_cycles(run: Path | str, *, order: int = 1) -> list[list[Cycle]]:
    """Fixed points and cycles of every layer of a run, by `linrnn.dynamics.scyfi`.

    The input of a layer is held at its mean over the first 256 steps of the first test sequence.

    Args:
        run: the run folder.
        order: the longest cycles that are looked for, in steps.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        DataError: the task's data is missing or damaged.
        ArgumentError: an order below 1, or a layer that is not piecewise linear.
    """
    check_positive_int("measure_cycles", order=order)
    model, task, _ = load_model(run)
    model = model.double()
    x = next(iter(eval_loader(task.datasets().test, 1)))[0][:, :_STEPS]
    x = x.double() if x.is_floating_point() else x
    layers = []
    for mixer, (z, _) in zip(model.mixers, inputs_of_mixers(model, x), strict=True):
        step = mixer.piecewise_linear(z[0].mean(0))
        if step is None:
            raise ArgumentError(
                "measure_cycles: every layer must be piecewise linear, got a "
                f"{type(mixer).__name__}. Train one of the mixers plrnn and relu_rnn."
            )
        layers.append(scyfi(*step, order=order))
    return layers


def write_cycles(run: Path | str, found: Sequence[Sequence[Cycle]]) -> None:
    """Write ``cycles.csv`` into a run folder, a point a row."""
    folder = RunFolder(Path(run))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("layer", "cycle", "order", "kind", "stable", "radius", "step", "point"))
    for layer, cycles in enumerate(found, 1):
        for i, cycle in enumerate(cycles, 1):
            about = (cycle.order, cycle.kind, cycle.stable, f"{cycle.radius:.6g}")
            for step, point in enumerate(cycle.points.tolist(), 1):
                numbers = " ".join(f"{value:.9g}" for value in point)
                writer.writerow((layer, i, *about, step, numbers))
    write_atomically(folder.cycles, text.getvalue().encode(), inside=folder.path)
