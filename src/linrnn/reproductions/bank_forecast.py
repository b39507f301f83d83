"""ETT forecast in closed form by a ridge on modes of the LRU that are not trained."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from linrnn.compare.run_table import Run
from linrnn.compare.standard_error import standard_error
from linrnn.compare.tune import safe_name
from linrnn.errors import LinrnnError
from linrnn.estimators import RecurrentForecaster
from linrnn.estimators.backtest import Backtest
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs, slug
from linrnn.reproductions._page.verdict import Judged, margin
from linrnn.reproductions._runs.lag_ridge import Means, lag_ridge
from linrnn.tasks.ett import ETT, ETTOptions
from linrnn.train.figures import Point, draw_lines, legend_below, new_figure, over_seeds
from linrnn.train.styles import styles

HORIZONS = (96, 192, 336, 720)
LAGS = 336


class Reading(NamedTuple):
    """How a series is read."""

    season: int
    """Steps of a day."""
    every: int
    """Each so-manieth window of training and validation is used; all of testing."""

    @property
    def scale(self) -> str:
        """Beside what the published numbers were trained on, in words."""
        windows = "every window" if self.every == 1 else f"one of {self.every} windows"
        return (
            f"on the published series, split and horizons, with {windows} of training, and seeds "
            "that differ in the modes alone"
        )


SETS: Mapping[str, Reading] = {"ETTh1": Reading(24, 1), "ETTm1": Reading(96, 4)}
# MSE and MAE at the four horizons
_PRINTED: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]] = {
    "ETTh1": {
        "DLinear": ((0.375, 0.405, 0.439, 0.472), (0.399, 0.416, 0.443, 0.490)),
        "PatchTST/42": ((0.375, 0.414, 0.431, 0.449), (0.399, 0.421, 0.436, 0.466)),
        "PatchTST/64": ((0.370, 0.413, 0.422, 0.447), (0.400, 0.429, 0.440, 0.468)),
    },
    "ETTm1": {
        "DLinear": ((0.299, 0.335, 0.369, 0.425), (0.343, 0.365, 0.386, 0.421)),
        "PatchTST/42": ((0.290, 0.332, 0.366, 0.420), (0.342, 0.369, 0.392, 0.424)),
        "PatchTST/64": ((0.293, 0.333, 0.369, 0.416), (0.346, 0.370, 0.392, 0.420)),
    },
}
BANK, CHOSEN = "bank, one ridge for all channels", "bank, channels as validation says"
RIDGE, NAIVE, LAST = f"ridge on {LAGS} lags", "seasonal naive", "last value"
OURS = (BANK, CHOSEN, RIDGE, NAIVE, LAST)

ErrorsByHorizon = dict[tuple[str, int], list[Means]]
"""By model and horizon: one for each seed, or a single one where nothing is random."""


def read_ett(name: str) -> tuple[Tensor, tuple[int, int, int]]:
    """The seven columns of a set, with mean 0 and variance 1 in training, and where parts end."""
    series, history = ETT(ETTOptions(set=name, columns="all")).normalised()  # type: ignore[arg-type]
    return series.double(), history.ends


class BankForecast(Reproduction):
    """`RecurrentForecaster` on ETTh1 and ETTm1, beside linear and naive forecasts of the same run.

    The season is given; the modes are drawn anew with each seed. The read-out is fitted to the 12
    months for training, its penalty chosen on the 4 for validation, and every window of the 4 for
    testing is forecast, each horizon by a separate fit.

    Args:
        sets: which series, and how they are read.
        horizons: steps ahead.
        read: the series of a name, normalised, and where its parts end.
        options: of the forecaster.
    """

    summary: ClassVar[str] = "ETT in closed form: a ridge on LRU modes, DLinear and PatchTST beside"
    source: ClassVar[str] = (
        "Zeng et al. 2023, arXiv:2205.13504, and Nie et al. 2023, arXiv:2211.14730: the tables of "
        "multivariate long-term forecasts"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "ETTh1 and ETTm1 at the published horizons, on the latter every fourth window of "
            "training and validation; shows whether linear memories suffice on these two series, "
            "and nothing about other data; about 10 minutes of processor time with five seeds"
        )
    }
    published: ClassVar[tuple[Table, ...]] = tuple(
        Table(
            f"{name}: test {metric}, as printed",
            ["model", *(f"{h} steps" for h in HORIZONS)],
            [[model, *(f"{x:.3f}" for x in row[i])] for model, row in rows.items()],
        )
        for name, rows in _PRINTED.items()
        for i, metric in enumerate(("MSE", "MAE"))
    )

    def __init__(
        self,
        sets: Mapping[str, Reading] = SETS,
        horizons: Sequence[int] = HORIZONS,
        read: Callable[[str], tuple[Tensor, tuple[int, int, int]]] = read_ett,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.sets, self.horizons, self.read = sets, horizons, read
        self.options = options or {}

    def run(self, setting: Setting) -> Findings:
        """Fit every horizon with every seed."""
        results: dict[str, ErrorsByHorizon] = {}
        seasons, missing = [], []
        for name, part in self.sets.items():
            try:
                series, ends = self.read(name)
            except LinrnnError as error:
                missing.append(f"{name}: not run: {error}")
                continue
            results[name] = self._errors(name, series, ends, setting)
            seasons.append(self._season(name, part, series[: ends[1]], setting))
        tables = [self._table(name, errors, i) for name, errors in results.items() for i in (0, 1)]
        runs = Runs(tuple(run for name in results for run in _runs(name, results[name], setting)))
        head = ["set", "season given", "found in the data"]
        return Findings(
            tables=(*tables, Table("Seasons, in steps", head, seasons)),
            runs=runs,
            comparable=(
                "the numbers: series, split, normalisation, horizons and metrics are the published "
                "ones. Ours reads all that came before a window, theirs 336 steps (DLinear, "
                "PatchTST/42) or 512 (PatchTST/64)."
            ),
            notes=(*NOTES, *missing),
            complete=not missing,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={"errors": _drawn(results, self.horizons)} if results else {},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether the MSE of the forecaster is below others', horizon by horizon."""
        return [
            line
            for name, reading in self.sets.items()
            for line in judged(runs.part(name, reading.scale), self.horizons)
        ]

    def _errors(
        self, name: str, series: Tensor, ends: tuple[int, int, int], setting: Setting
    ) -> ErrorsByHorizon:
        part = self.sets[name]
        results: ErrorsByHorizon = {}
        for horizon in self.horizons:
            for seed in setting.seeds:
                errors = self._bank(series, ends, horizon, part, seed)
                for model, means in errors.items():
                    results.setdefault((model, horizon), []).append(means)
                summary = ", ".join(f"{m} {e.mse:.4f}" for m, e in errors.items())
                setting.say(f"{name}, {horizon} steps, seed {seed}: {summary}")
            for model in (NAIVE, LAST):  # the same with every seed
                del results[model, horizon][1:]
            results[RIDGE, horizon] = [
                lag_ridge(series, ends, horizon, lags=LAGS, every=part.every)
            ]
        return results

    def _bank(
        self, series: Tensor, ends: tuple[int, int, int], horizon: int, part: Reading, seed: int
    ) -> dict[str, Means]:
        """Errors of the forecaster as fitted, of its shared read-out, and of naive forecasts."""
        forecaster = RecurrentForecaster(
            horizon,
            part.season,
            validation=ends[1] - ends[0],
            every=part.every,
            refit=False,
            random_state=seed,
            **self.options,
        ).fit(series[: ends[1]].numpy())
        later = series[ends[1] : ends[2]]
        scores = forecaster.backtest(later.numpy())
        scale = torch.from_numpy(forecaster.scale_)
        follower = forecaster._follower
        shared = replace(follower.choice, own={}, together={})
        alone = Backtest(replace(follower, choice=shared), later / scale, horizon).run()
        return {
            BANK: Means(*alone.sums["forecast"].errors(scale)),
            CHOSEN: Means(*scores["forecast"]),
            NAIVE: Means(*scores[NAIVE]),
            LAST: Means(*scores[LAST]),
        }

    def _season(self, name: str, part: Reading, series: Tensor, setting: Setting) -> list[str]:
        """Let the forecaster find the season with the first seed; return it as a row."""
        horizon = min(self.horizons)
        forecaster = RecurrentForecaster(
            horizon, every=part.every, random_state=setting.seeds[0], **self.options
        ).fit(series.numpy())
        words = ", ".join(f"{season:g}" for season in forecaster.season_) or "none"
        setting.say(f"{name}: season found: {words}")
        return [name, str(part.season), words]

    def _table(self, name: str, errors: ErrorsByHorizon, metric: int) -> Table:
        rows = [
            [model, *(_cell(errors[model, h], metric) for h in self.horizons)] for model in OURS
        ]
        title = f"{name}: test {('MSE', 'MAE')[metric]}, mean ± s.e. over seeds"
        return Table(title, ["model", *(f"{h} steps" for h in self.horizons)], rows)


NOTES = (
    "the published numbers were checked against tables of later papers that quote them, not "
    "against the papers themselves; PatchTST was printed with 42 and with 64 patches.",
    "whatever their code does with the last, incomplete batch of test windows, ours leaves none "
    "out: 2880 less the horizon and plus one on ETTh1, four times 2880 on ETTm1.",
    "how small these benchmarks are: ETTh1 and ETTm1 are one transformer, read by the hour and by "
    "the quarter of an hour; the test part is the same four months of 2017 to 2018, seven columns, "
    "and neighbouring windows overlap nearly all of the way: four months hold four windows of 720 "
    "hours that do not. A few thousandths between two models say nothing about other data, nor, "
    "since the test part is what everybody compares on, much about these. The standard errors are "
    "over draws of the modes alone, not over data.",
    "the last value is repeated by 'last value', the last day by 'seasonal naive'. The ridge on "
    "lags is fitted as the bank's is: last value taken out, one for all channels, penalty by "
    "validation.",
    "the number and memories of the modes, and what a channel must gain to leave the common "
    "read-out, are the first that were tried, and were kept.",
    "no number of ours includes the validation months in the fit; a forecaster does that by "
    "default, before it forecasts what nobody knows.",
)


def _cell(seeds: Sequence[Means], metric: int) -> str:
    values = [means[metric] for means in seeds]
    text = f"{statistics.mean(values):.3f}"
    if len(values) < 2:
        return text
    return f"{text} ± {standard_error(values):.4f}"


def _runs(name: str, errors: ErrorsByHorizon, setting: Setting) -> Iterator[Run]:
    """A row for each fit; one alone where nothing is random."""
    for (model, horizon), fits in errors.items():
        for seed, means in zip(setting.seeds, fits, strict=False):
            yield Run(
                scale=setting.scale, part=slug(name), row=safe_name(_label(model, horizon)),
                seed=seed, metric="mse", test=means.mse, measures={"mae": means.mae},
            )  # fmt: skip


def _label(model: str, horizon: int) -> str:
    return f"{model}, {horizon} steps"


def judged(part: Part, horizons: Sequence[int]) -> list[Judged]:
    """Whether the MSE of the forecaster is below others', horizon by horizon, in % of theirs.

    Nobody published that, so the claims are ours.

    Args:
        part: runs on one set.
        horizons: steps ahead.
    """
    printed = {
        f"{model} as printed": dict(zip(HORIZONS, mse, strict=True))
        for model, (mse, _) in _PRINTED.get(part.name, {}).items()
    }
    verdicts = []
    for horizon in horizons:
        ours = part.values(_label(CHOSEN, horizon))
        computed = {m: [*part.values(_label(m, horizon)).values()] for m in (NAIVE, RIDGE)}
        rivals = {model: values[0] for model, values in computed.items() if values}
        rivals |= {model: mse[horizon] for model, mse in printed.items() if horizon in mse}
        for rival, mse in rivals.items() if ours else ():
            gains = {seed: 100 * (1 - value / mse) for seed, value in ours.items()}
            claim = f"{part.name}, {horizon} steps: {CHOSEN} below {rival}"
            unit = "% of the other's MSE"
            against = f"ours, against {mse:.3f}"
            verdicts.append(margin(claim, against, gains, unit=unit, scale=part.scale))
    return verdicts


def _drawn(results: Mapping[str, ErrorsByHorizon], horizons: Sequence[int]) -> Any:
    figure = new_figure(4.6 * len(results), 4.6)
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, (name, by_model) in zip(panels, results.items(), strict=True):
        series = {m: [_point(h, by_model[m, h]) for h in horizons] for m in (BANK, CHOSEN, RIDGE)}
        for model, (mse, _) in _PRINTED.get(name, {}).items():
            numbers = zip(HORIZONS, mse, strict=True)
            series[f"{model}, printed"] = [(h, x, math.nan) for h, x in numbers]
        draw_lines(axes, series, 1.0, styles(list(series)))
        axes.set(title=name, xlabel="steps ahead")
        axes.set_xticks(horizons)
    panels[0].set_ylabel("test MSE")
    seeds = [len(by_model[BANK, h]) for by_model in results.values() for h in horizons]
    errors = ", with standard errors" if max(seeds) > 1 else ""
    figure.suptitle(f"bank: {over_seeds(seeds)}{errors}; others: one number each", fontsize=10)
    legend_below(figure, *panels)
    return figure


def _point(horizon: int, seeds: Sequence[Means]) -> Point:
    values = [means.mse for means in seeds]
    return horizon, statistics.mean(values), standard_error(values)
