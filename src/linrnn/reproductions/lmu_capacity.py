"""How much of a window a Legendre memory holds untrained, and an LSTM after training."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.mixers.lmu import lmu_system
from linrnn.nn.discretise import dense
from linrnn.ops.linear.matrix_scan import dense_scan
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import RUNS, Runs, decades
from linrnn.reproductions._page.student import with_interval
from linrnn.reproductions._page.verdict import REDUCED, Judged
from linrnn.reproductions._runs.legendre import EPSILON, RATE, LSTMLayer, read_out, stored
from linrnn.reproductions._runs.signals import signals
from linrnn.train.figures import new_figure, over_seeds
from linrnn.train.styles import styles

PART = "windows"
ORDER = UNITS = 100
OUTPUTS, CYCLES, STRETCH = 5, 10, 2.5
"""Delays, cycles of the highest frequency in a window, and windows in a sequence."""
LMU, LSTM = "LMU, not trained", "LSTM"
LOSSES = {25: 0.0193, 100: 0.0173, 400: 0.0701}
"""The last validation loss of each LSTM by its window, as the public code prints it."""
DRAWN = {100: 1e-2, 1_000: 1e-4, 10_000: 1e-6, 100_000: 1e-8}
"""The order of magnitude of the memory's errors in the published figure, by the window."""
AT = "error at delay "
_SOURCE = "NeurIPS 2019, figure 3"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed; the defaults are the published numbers."""

    memories: Sequence[int] = tuple(DRAWN)
    """Windows of the memory, in steps."""
    lstms: Sequence[int] = tuple(LOSSES)
    """Windows of the LSTM; the published one of 1,600 steps is left out."""
    train: int = 80
    validation: int = 20
    test: int = 100
    batch: int = 50
    epochs: int = 500


class LMUCapacity(Reproduction):
    """A signal at five delays at once, up to the length of a window.

    A memory of 100 Legendre coefficients has the read-out of its equations, and nothing is trained.
    An LSTM of 100 units learns for 500 epochs. Both are the models of the public code, and the
    highest frequency has ten cycles in each window.

    Args:
        size: in place of the published numbers.
    """

    summary: ClassVar[str] = "delays up to a window: a Legendre memory, untrained, and an LSTM"
    source: ClassVar[str] = (
        f"Voelker, Kajic and Eliasmith, Legendre Memory Units, {_SOURCE}, as its public code"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "paper": (
            "models, training and windows of the public code but for an LSTM at 1,600 steps; shows "
            "the numbers themselves; four to nine minutes of a core for each seed"
        )
    }
    hours: ClassVar[Collection[str]] = ()
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Last validation loss of the LSTM, as its code prints it",
            ["window", "mean squared error"],
            [*([f"{steps:,}", f"{loss}"] for steps, loss in LOSSES.items()), ["1,600", "0.0851"]],
        ),
        Table(
            "Test error of the memory, read off the figure",
            ["window", "mean squared error, about"],
            [[f"{steps:,}", f"{error:.0e}"] for steps, error in DRAWN.items()],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = Size() if size is None else size

    def run(self, setting: Setting) -> Findings:
        """Read signals of every window, one set a seed."""
        rows = []
        for seed in setting.seeds:
            for kind, windows in ((LMU, self.size.memories), (LSTM, self.size.lstms)):
                for window in windows:
                    rows.append(measured(kind, window, seed, self.size, setting))
                    setting.say(f"{label(kind, window)}, seed {seed}: {rows[-1].test:.3g}")
        runs = Runs(tuple(rows))
        return Findings(
            tables=(self._errors(runs), self._losses(runs)),
            comparable=(
                "the numbers: models, training and windows are those of the public code. Signals "
                "are drawn alike by another generator, anew for each seed. The LSTM's gates may "
                "differ: Keras had a piecewise linear one until version 2.3, and the version that "
                "was used is not printed. Ours is the sigmoid. The memory is computed in double "
                "precision, theirs in single."
            ),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            notes=NOTES,
            figures={"capacity": self._figure(runs)},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The printed losses by their order, and the drawn errors in decades."""
        part = runs.part(PART, "" if self.size == Size() else REDUCED)
        lines = [
            part.claim(
                label(LSTM, better),
                label(LSTM, worse),
                f"an LSTM's loss at {better:,} steps is below that at {worse:,}",
                f"{LOSSES[better]} against {LOSSES[worse]}",
                measure="validation",
                printed=LOSSES[worse] - LOSSES[better],
            )
            for better, worse in ((25, 400), (100, 400), (100, 25))
            if part.has(label(LSTM, better), label(LSTM, worse))
        ]
        for window in DRAWN:
            memory, lstm = label(LMU, window), label(LSTM, 100)
            if part.has(memory, lstm):
                claim = f"{memory}, has a smaller error than an LSTM at 100"
                pair = (memory, lstm)
                lines.append(part.paired(claim, f"drawn in {_SOURCE}", "decades", pair, decades))
        return lines

    def _errors(self, runs: Runs) -> Table:
        part, rows = runs.part(PART), []
        for kind, windows in ((LMU, self.size.memories), (LSTM, self.size.lstms)):
            for window in windows:
                values = [_mean(part.values(label(kind, window), f"{AT}{i}")) for i in range(5)]
                rows.append([label(kind, window), *(f"{value:.2g}" for value in values)])
        head = ["model", "no delay", "1/4 window", "1/2", "3/4", "the window"]
        return Table("Test error, mean squared", head, rows)

    def _losses(self, runs: Runs) -> Table:
        part, rows = runs.part(PART), []
        for window in self.size.lstms:
            losses = part.values(label(LSTM, window), "validation")
            printed = f"{LOSSES[window]}" if window in LOSSES else ""
            rows.append([f"{window:,}", printed, with_interval(losses.values(), 4)])
        head = ["window", "published", "ours [95 %]"]
        return Table("Last validation loss of the LSTM", head, rows)

    def _figure(self, runs: Runs) -> Any:
        part, figure = runs.part(PART), new_figure()
        axes, looks = figure.subplots(), styles([LMU, LSTM])
        for kind, windows in ((LMU, self.size.memories), (LSTM, self.size.lstms)):
            for window in windows:
                values = [_mean(part.values(label(kind, window), f"{AT}{i}")) for i in range(5)]
                name = kind if window == windows[0] else None
                axes.plot(_delays(window)[1:], values[1:], label=name, **looks[kind])
        axes.set(xscale="log", yscale="log", xlabel="delay (steps)", ylabel="test error, squared")
        seeds = len({run.seed for run in runs.rows})
        axes.set(title=f"five delays in a window; a line is a window: {over_seeds([seeds])}")
        axes.grid(alpha=0.3)
        axes.legend()
        return figure


NOTES = (
    "an error is the mean over test sequences and the steps from the end of the first window on; "
    "an LSTM's loss is over all steps, as Keras prints it.",
    "the memory's window is half a step shorter than the longest delay, as in the public code.",
)


def label(kind: str, window: int) -> str:
    """A row of the page.

    Example:
        >>> label("LSTM", 100)
        'LSTM at 100'
    """
    return f"{kind} at {window:,}"


def measured(kind: str, window: int, seed: int, size: Size, setting: Setting) -> Run:
    """Compute a row with a seed, or read what an earlier call left in the folder."""
    name = safe_name(label(kind, window))
    path = setting.out / RUNS / f"{name}-seed{seed}.json"
    result = stored(path, lambda: (_memory if kind == LMU else _trained)(window, seed, size))
    errors = {f"{AT}{i}": error for i, error in enumerate(result.pop("errors"))}
    return Run(
        scale=setting.scale,
        part=PART,
        row=name,
        seed=seed,
        task="capacity",
        mixer="lmu" if kind == LMU else "lstm",
        metric="mse",
        test=_mean(errors),
        measures=errors,
        versions=f"torch {torch.__version__} numpy {np.__version__}",
        **result,
    )


def _delays(window: int) -> list[int]:
    return [int(x) for x in np.linspace(0, window, OUTPUTS)]


def _signals(count: int, window: int, seed: int, first: int) -> Tensor:
    """Signals (count, time) with up to ten cycles in a window and 1 as largest value, float64."""
    places = range(first, first + count)
    values = signals(int(STRETCH * window), CYCLES / window, places, seed, rolled=True)
    return values / values.abs().amax(1, keepdim=True)


def _targets(signals: Tensor, window: int) -> Tensor:
    """The signals after each delay, 0 before: (count, time, delays)."""
    length = signals.shape[1]
    delayed = [F.pad(signals, (delay, 0))[:, :length] for delay in _delays(window)]
    return torch.stack(delayed, -1)


def _memory(window: int, seed: int, size: Size) -> dict[str, Any]:
    """Errors of the memory, a sequence at a time."""
    start = perf_counter()
    a, b = dense(*lmu_system(ORDER), 1 / (window - 0.5))
    ago = torch.linspace(0, 1, OUTPUTS, dtype=torch.float64)
    readout = torch.special.legendre_polynomial_p(2 * ago[:, None] - 1, torch.arange(ORDER))
    squares = torch.zeros(OUTPUTS, dtype=torch.float64)
    for i in range(size.test):
        signal = _signals(1, window, seed, i)
        target, m = _targets(signal, window), signal.new_zeros(1, ORDER)
        for first in range(0, signal.shape[1], 10_000):
            part = slice(first, first + 10_000)
            states, m = dense_scan(a, signal[:, part, None] * b, m, None)  # (1, time, order)
            error = (states @ readout.T - target[:, part])[:, max(0, window - first) :]
            squares += error.square().sum((0, 1))
    steps = size.test * (int(STRETCH * window) - window)
    seconds = round(perf_counter() - start, 1)
    return {"errors": (squares / steps).tolist(), "state": ORDER, "seconds": seconds}


def _trained(window: int, seed: int, size: Size) -> dict[str, Any]:
    """Errors of an LSTM after its training."""
    start, counts = perf_counter(), (size.train, size.validation, size.test)
    signals = _signals(sum(counts), window, seed, 0).float()
    pairs = signals[..., None], _targets(signals, window)  # (count, time, 1 or delays)
    (x, target), validation, test = zip(*(part.split(counts) for part in pairs), strict=True)
    torch.manual_seed(seed)
    head = read_out(UNITS, OUTPUTS)
    model = nn.Sequential(LSTMLayer(1, UNITS), head)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer, updates = torch.optim.Adam(learned, RATE, eps=EPSILON), 0
    for _ in range(size.epochs):
        for rows in torch.randperm(size.train).split(size.batch):
            optimizer.zero_grad()
            F.mse_loss(model(x[rows]), target[rows]).backward()
            optimizer.step()
            updates += 1
    with torch.no_grad():
        loss = float(F.mse_loss(model(validation[0]), validation[1]))
        errors = (model(test[0]) - test[1])[:, window:].double().square().mean((0, 1))
    return {
        "errors": errors.tolist(),
        "validation": loss,
        "lr": RATE,
        "parameters": sum(p.numel() for p in learned),
        "state": 2 * UNITS,
        "steps": updates,
        "seconds": round(perf_counter() - start, 1),
    }


def _mean(values: Mapping[Any, float]) -> float:
    return float(np.mean(list(values.values())))
