"""A fast-slow oscillator predicted one step ahead, by a LEM, an LSTM and a GRU of one size."""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn import RNN
from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.mixers.lem import LEM
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import RUNS, Runs, decades
from linrnn.reproductions._page.student import with_interval
from linrnn.reproductions._page.verdict import REDUCED, Judged, margin
from linrnn.reproductions._runs.legendre import stored
from linrnn.train.figures import new_figure, over_seeds
from linrnn.train.styles import dense_styles

PART = "prediction"
LEM_ROW, LSTM_ROW, GRU_ROW = "LEM, 16 units", "LSTM, 16 units", "GRU, 19 units"
RATES: Mapping[str, tuple[float, ...]] = {
    LEM_ROW: (0.00904,),  # the default of the public code
    LSTM_ROW: (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    GRU_ROW: (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
}
"""Learning rates by row; of several, the first seed's error on validation chooses one."""
PRINTED = 0.0023765850346535444
"""The test error that the public code's log ends with."""
LOG = {
    1: 0.26889,
    50: 0.02260,
    100: 0.01123,
    150: 0.00717,
    200: 0.00566,
    250: 0.00430,
    300: 0.00343,
}
"""Errors on validation in the same log, by epoch."""
WITHIN = 0.2
"""Decades between two errors that are called equal: a factor of 1.6."""
WHOLE = "error on all test sequences"
_TIME, _CURRENT, _A, _B, _EPSILON = 400.0, 0.5, 0.7, 0.8, 1 / 50


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed; the defaults are the published numbers."""

    length: int = 1_000
    train: int = 128
    validation: int = 128
    test: int = 1_024
    batch: int = 32
    epochs: int = 400


class FitzHughNagumo(Reproduction):
    """The fast variable of the FitzHugh-Nagumo equations, predicted one step ahead.

    ``dv/dt = v - v^3 / 3 - w + 0.5`` and ``dw/dt = (v + 0.7 - 0.8 w) / 50`` start at a random v and
    ``w = 0``. Models read v alone, at 1,000 times up to 400. Data, model and training are those of
    the public code of LEM; LSTM and GRU have as many parameters.

    Args:
        size: in place of the published numbers.
    """

    summary: ClassVar[str] = "a fast-slow oscillator predicted by LEM, LSTM and GRU of one size"
    source: ClassVar[str] = (
        "Rusch, Mishra, Erichson and Mahoney, Long Expressive Memory, ICLR 2022, "
        "arXiv:2110.04744, FitzHugh-Nagumo, as its public code and the log of its run"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "paper": (
            "data, model, initial weights and training of LEM's public code; shows the number "
            "itself, and the order beside an LSTM and a GRU whose rates we choose; half an hour of "
            "a core with five seeds"
        )
    }
    hours: ClassVar[Collection[str]] = ()
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "LEM of 16 units, from the log of the public code",
            ["", "root mean squared error"],
            [
                *([f"validation, epoch {epoch}", f"{error:.5f}"] for epoch, error in LOG.items()),
                ["test, best epoch on validation", f"{PRINTED:.5f}"],
            ],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = Size() if size is None else size

    def run(self, setting: Setting) -> Findings:
        """Train every row with every seed, at the rate that suits its first seed best."""
        rows, curves = [], dict[str, list[list[float]]]()
        for label, rates in RATES.items():
            first, *others = setting.seeds
            tried = {rate: trained(label, rate, first, self.size, setting) for rate in rates}
            best = min(tried, key=lambda rate: tried[rate][0].validation)
            results = [tried[best]]
            results += [trained(label, best, seed, self.size, setting) for seed in others]
            rows += [run for rate, (run, _) in tried.items() if rate != best]
            rows += [run for run, _ in results]
            curves[label] = [curve for _, curve in results]
        runs = Runs(tuple(rows))
        return Findings(
            tables=(_errors(runs), _by_seed(runs), _rates(runs)),
            comparable=(
                "LEM's number: data, model, initial weights, optimiser, rate and choice of weights "
                "are those of the public code, and the data have its seed. LSTM and GRU have "
                "rates of ours, the best of six; theirs are not in the code."
            ),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            notes=NOTES,
            figures={"validation": _curves(curves)},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """LEM's error is the printed one, and below those of the gated networks."""
        settings = "" if self.size == Size() else REDUCED
        part, lines = runs.part(PART, settings), []
        if part.has(LEM_ROW):
            apart = {seed: decades(v, PRINTED) for seed, v in part.values(LEM_ROW).items()}
            judged = margin(
                "LEM's test error is that of its public code",
                f"{PRINTED:.4f} in the log of one run",
                apart,
                unit="decades below",
                scale=settings,
            )
            signs = tuple(abs(x) <= WITHIN for x in apart.values())
            lines.append(judged._replace(held=signs, within=WITHIN, printed=0.0))
        part = runs.part(PART, settings or "with rates of ours for the LSTM and the GRU")
        for rival in (LSTM_ROW, GRU_ROW):
            if part.has(LEM_ROW, rival):
                claim = f"LEM has a smaller error than {rival.replace(',', ' of')}"
                pair = (LEM_ROW, rival)
                lines.append(part.paired(claim, "the abstract", "decades", pair, decades))
        return lines


NOTES = (
    "the log is of the best run, as the public code says; seeds of ours are not chosen.",
    "the public code prints the error of the last 128 of 1,024 test sequences; that is `test` "
    "here. The error on all of them stands beside it.",
    "the data are solved by SciPy's default, `RK45` with a relative tolerance of 0.001: the public "
    "code's choice. Its dense output, not the exact solution, is what models predict.",
    "repeating the newest value has an error of 0.079.",
)


def _errors(runs: Runs) -> Table:
    part, rows = runs.part(PART), []
    for label in RATES:
        printed = f"{PRINTED:.4f}" if label == LEM_ROW else ""
        ours, whole = (
            with_interval(part.values(label, measure).values(), 4) for measure in ("test", WHOLE)
        )
        run = part.runs(label)[0]
        rows.append([label, printed, ours, whole, f"{run.parameters:,}", f"{run.lr:g}"])
    head = ["model", "published", "ours [95 %]", "all test sequences", "parameters", "rate"]
    seeds = over_seeds([len({run.seed for run in runs.rows})])
    return Table(f"Root mean squared error on the test, {seeds}", head, rows)


def _by_seed(runs: Runs) -> Table:
    part = runs.part(PART)
    rows = [[x, ", ".join(f"{v:.4f}" for v in part.values(x).values())] for x in RATES]
    return Table("By seed", ["model", "root mean squared error"], rows)


def _rates(runs: Runs) -> Table:
    first = min(run.seed for run in runs.rows)
    rows = [
        [label, *(f"{run.lr:g}: {run.validation:.4f}" for run in _tried(runs, label, first))]
        for label in RATES
        if len(RATES[label]) > 1
    ]
    width = max(map(len, rows)) - 1
    return Table("Error on validation by learning rate, first seed", ["model", *[""] * width], rows)


def _tried(runs: Runs, label: str, seed: int) -> list[Run]:
    tried = [run for run in runs.rows if run.row == safe_name(label) and run.seed == seed]
    return sorted(tried, key=lambda run: run.lr)


def _curves(errors: Mapping[str, list[list[float]]]) -> Any:
    """Errors on validation by epoch, means over seeds, and points of the public log."""
    figure, looks = new_figure(), dense_styles(["LEM", "LSTM", "GRU"])
    axes = figure.subplots()
    for label, curves in errors.items():
        means = np.mean(curves, 0)
        axes.plot(range(1, len(means) + 1), means, label=label, **looks[label.split(",")[0]])
    axes.plot(list(LOG), list(LOG.values()), "k.", label="LEM, public log")
    axes.set(xlabel="epoch", ylabel="error on validation", yscale="log")
    axes.set(title=f"FitzHugh-Nagumo as published: {over_seeds({len(c) for c in errors.values()})}")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


class Predictor(nn.Module):
    """A recurrent layer that reads one channel, and a linear map to one number.

    Args:
        label: a key of `RATES`.
    """

    def __init__(self, label: str) -> None:
        super().__init__()
        kind, units = label.split(",")[0].lower(), int(label.split()[1])
        self.layer: nn.Module
        self.head: nn.Module
        if kind == "lem":
            layer = LEM(1, d_state=units)  # with a linear read-out, as the public code's model
            nn.init.kaiming_normal_(layer.get_parameter("out_proj.weight"))
            self.layer, self.head = layer, nn.Identity()
        else:
            self.layer = RNN(kind, 1, units, batch_first=True)
            self.head = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Answers (batch, time, 1) to values of the same shape."""
        answers: Tensor = self.head(self.layer(x)[0])
        return answers


@cache
def data(size: Size) -> tuple[tuple[Tensor, Tensor], ...]:
    """Values and the next ones of training, validation and test, (sequences, time, 1) each.

    Starts come from one seed of NumPy's generator of 2019, as in the public code.
    """
    from scipy.integrate import solve_ivp

    counts = [size.train, size.validation, size.test]
    random = np.random.RandomState(1234)
    times = np.linspace(0, _TIME, size.length + 1)
    solved = np.empty((sum(counts), size.length + 1))
    for i in range(len(solved)):
        start = [2 * random.rand() - 1, 0.0]
        solved[i] = solve_ivp(_slope, (0, _TIME), start, t_eval=times).y[0]
    values = torch.from_numpy(solved).float()[..., None]  # (sequences, time, 1)
    pairs = values[:, :-1], values[:, 1:]
    train, validation, test = zip(*(part.split(counts) for part in pairs), strict=True)
    return train, validation, test


def _slope(t: float, state: np.ndarray) -> list[float]:
    v, w = state
    return [v - v**3 / 3 - w + _CURRENT, _EPSILON * (v + _A - _B * w)]


def trained(
    label: str, rate: float, seed: int, size: Size, setting: Setting
) -> tuple[Run, list[float]]:
    """Train a row with a seed, or read what an earlier call left in the folder.

    Returns:
        The run, and the error on validation after each epoch.
    """
    name = safe_name(label)
    path = setting.out / RUNS / f"{name}-{rate:g}-seed{seed}.json"
    result = stored(path, lambda: _train(label, rate, seed, size))
    curve: list[float] = result.pop("curve")
    whole = result.pop("whole")
    setting.say(f"{label}, rate {rate:g}, seed {seed}: {result['test']:.5f}")
    run = Run(
        scale=setting.scale,
        part=PART,
        row=name,
        seed=seed,
        lr=rate,
        task="fitzhugh_nagumo",
        mixer=label.split(",")[0].lower(),
        steps=size.epochs * -(-size.train // size.batch),
        metric="rmse",
        measures={WHOLE: whole},
        versions=f"torch {torch.__version__} numpy {np.__version__}",
        **result,
    )
    return run, curve


def _train(label: str, rate: float, seed: int, size: Size) -> dict[str, Any]:
    """Adam on batches in a new order each epoch; the weights best on validation answer the test."""
    start = perf_counter()
    (x, target), validation, test = data(size)
    torch.manual_seed(seed)
    model = Predictor(label)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    best, weights, curve = float("inf"), model.state_dict(), []
    for _ in range(size.epochs):
        for rows in torch.randperm(size.train).split(size.batch):
            optimizer.zero_grad()
            F.mse_loss(model(x[rows]), target[rows]).backward()
            optimizer.step()
        curve.append(sqrt(_squares(model, *validation).mean()))
        if curve[-1] < best:
            best, weights = curve[-1], copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    squares = _squares(model, *test)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "validation": best,
        "test": sqrt(squares[-128:].mean()),
        "whole": sqrt(squares.mean()),
        "curve": curve,
        "seconds": round(perf_counter() - start, 1),
    }


@torch.no_grad()
def _squares(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Mean squared errors by sequence, float64."""
    parts = zip(x.split(128), target.split(128), strict=True)
    errors = [(model(value) - answer).double().square().mean((1, 2)) for value, answer in parts]
    return torch.cat(errors)
