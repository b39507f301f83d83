"""Hold the contest, and leave the winner in a run folder."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from linrnn.contest import _sequences, _windows
from linrnn.contest._linear import linear, why_not
from linrnn.contest._race import Contest, Entry, Rival, Scale
from linrnn.errors import ArgumentError, check_in
from linrnn.frozen import BankModel, MeanModel, SeriesModel
from linrnn.tasks import ForecastTask, Splits, Task
from linrnn.train import Config, Reporter, Result, Silent
from linrnn.train import run as train_run
from linrnn.train.closed import Solved, write_contest, write_run
from linrnn.train.data import size_of
from linrnn.train.folder import check_free
from linrnn.train.model import build_task

Alone = Literal["bank", "linear"]
"""A competitor without a training that is fitted alone."""
Only = Literal["bank", "linear", "trained"]
"""The one competitor that is asked, without a contest."""

_STEPS = 300
"""Steps of a training, at least."""
_PASS = 6
"""Batches of small data in an epoch, about."""
_LEAST_ROWS = 8


class Held(NamedTuple):
    """A contest, and the best that was solved for, where there is one."""

    contest: Contest
    solved: Solved | None


def run(
    config: Config,
    *,
    only: Only | None = None,
    out: Path | str | None = None,
    fit_budget: bool = True,
    reporter: Reporter | None = None,
    say: Callable[[Contest], Any] = lambda contest: None,
) -> Result:
    """Let a frozen bank and a mixer compete, and leave the better one in a run folder.

    The bank is solved for at once. What it says of each sequence without it, or of the validation
    part of a series, is compared with a mixer that is trained for some steps on the same. The mixer
    wins where it is better by more than a standard error of the difference, and is trained as
    `linrnn.train.run` does it then. It is given up as soon as it cannot win.

    Sequences that all have the same number of steps, at most 4,096 numbers and none missing are
    also given to a linear model of these numbers: a logistic regression for classes. It takes the
    place of the bank where it is better by more than a standard error of the difference.

    Of a short series the mean of the bank and of a ridge on windows, each of values and of their
    square roots, takes the place of the bank, unless a back-test on both parts shows that it is
    worse by more than a standard error of the difference.

    Args:
        config: of the mixer.
        only: "bank", "linear" or "trained" where there is to be no contest.
        out: the run folder, which must be new or empty; None takes the next free
            ``runs/<task>-<mixer>-<n>``.
        fit_budget: whether the mixer is trained for as long as `fitted_budget` says.
        reporter: told what happens.
        say: told who competed, before the winner is written.

    Returns:
        As `linrnn.train.run`; ``mixer`` is "linear" where that won, and "bank" where the bank did,
        alone or in a mean. The folder has the contest as ``contest.csv``.

    Raises:
        ArgumentError: ``only`` names what cannot answer this task.
        LinrnnError: as `linrnn.train.run`.

    Example:
        >>> from linrnn import contest, recipes
        >>> result = contest.run(recipes.untuned("table"))        # doctest: +SKIP
    """
    if only is not None:
        check_in("contest.run", "only", only, ("bank", "linear", "trained"))
    out = None if out is None else Path(out)
    if out is not None:
        check_free(out)
    reporter = reporter or Silent()
    task = build_task(config)
    splits = task.datasets()
    if fit_budget:
        config = fitted_budget(config, size_of(splits.train, "training data"))
    if only == "trained":
        return train_run(config, out=out, reporter=reporter)
    outcome = hold(config, task, splits, alone=only, reporter=reporter)
    say(outcome.contest)
    table = outcome.contest.table()
    if outcome.contest.winner != "trained":
        assert outcome.solved is not None
        return write_run(config, task, outcome.solved, contest=table, out=out, reporter=reporter)
    result = train_run(config, out=out, reporter=reporter)
    write_contest(result.folder, table)
    return result


def fitted_budget(config: Config, n_train: int) -> Config:
    """The configuration with batches and epochs that give small data enough steps.

    Args:
        config: whose batch size and epochs are changed: batches are made smaller, down to 8 rows,
            until an epoch has about six, and epochs more until there are 300 steps.
        n_train: training examples.

    Example:
        >>> from linrnn import recipes
        >>> train = fitted_budget(recipes.untuned("table"), 45).train
        >>> train.batch_size, train.epochs
        (8, 50)
    """
    train = config.train
    rows = max(_LEAST_ROWS, 1 << max(0, n_train // _PASS).bit_length() - 1)
    rows = min(rows, train.batch_size)
    epochs = max(train.epochs, math.ceil(_STEPS / math.ceil(n_train / rows)))
    return replace(config, train=replace(train, batch_size=rows, epochs=epochs))


def hold(
    config: Config,
    task: Task,
    splits: Splits,
    *,
    alone: Alone | None = None,
    reporter: Reporter | None = None,
) -> Held:
    """Let all compete; nothing is written.

    Args:
        config: of the mixer.
        task, splits: of the configuration, with its data.
        alone: the one that is fitted, without a contest.
        reporter: told what is not tried.

    Raises:
        ArgumentError: ``alone`` names what cannot answer this task.
    """
    reporter = reporter or Silent()
    if why := _not_for_banks(task, splits, alone is not None):
        if alone is not None:
            raise ArgumentError(f"contest.run: only must be 'trained' here, got {alone!r}: {why}.")
        reporter.noticed(f"no contest with a frozen bank: {why}")
        return Held(_uncontested(config, task, ()), None)
    parts = _series_parts(task, splits) if isinstance(task, ForecastTask) else _parts(task, splits)
    if alone == "linear" and (why := parts.not_linear()):
        raise ArgumentError(
            f"contest.run: only must be 'bank' or 'trained' here, got 'linear': {why}."
        )
    rules, rival = ([], None) if alone == "bank" else parts.plain()
    if alone == "linear":
        assert rival is not None
        return _alone(task, parts, rival)
    begin = time.perf_counter()
    try:
        banked = parts.bank(config.seed)
    except (ValueError, TypeError) as error:
        if alone == "bank":
            raise
        reporter.noticed(f"the frozen bank cannot compete: {error}")
        return Held(_uncontested(config, task, rules), None)
    scores = banked.scores.double()
    bank = parts.scale.entry("a frozen bank of modes", "bank", scores, begin, parts.how)
    ahead, rivals = Rival(bank, scores, banked.model), [bank]
    if alone == "bank":
        return _alone(task, parts, ahead)
    if rival is not None and rival.model is not None and parts.scale.wins(rival.scores, scores):
        ahead = rival
    if (mean := _mean(parts, banked)) is not None:
        rivals.append(mean.entry)
        ahead = mean
    # what is trained must beat the better of both, on the windows that judge it
    holder = min((ahead, Rival(bank, scores, banked.model)), key=lambda one: _rank(task, one.entry))
    entry, won = parts.race(config, holder.scores)
    rivals.append(entry)
    contest = Contest(
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        how=parts.how,
        entries=_sorted(task, [*rivals, *rules]),
        winner="trained" if won else ahead.winner,
    )
    assert ahead.model is not None
    return Held(contest, Solved(ahead.model, ahead.entry.score, ahead.entry.seconds))


def _mean(parts: "_Parts", banked: "_Banked") -> Rival | None:
    begin = time.perf_counter()
    fitted = banked.mean()
    if fitted is None:
        return None
    model, scores = fitted[0], fitted[1].double()
    entry = parts.scale.entry("the mean of bank and ridges", "mean", scores, begin)
    return Rival(entry, scores, model)


def _alone(task: Task, parts: "_Parts", rival: Rival) -> Held:
    """The one competitor and its model, without a contest."""
    contest = Contest(
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        how=parts.how,
        entries=(rival.entry,),
        winner=rival.winner,
    )
    assert rival.model is not None
    return Held(contest, Solved(rival.model, rival.entry.score, rival.entry.seconds))


class _Banked(NamedTuple):
    """A bank, its scores, and a mean that it takes part in, where there is one."""

    model: BankModel | SeriesModel
    scores: Tensor
    mean: Callable[[], tuple[MeanModel, Tensor] | None]


class _Parts(NamedTuple):
    """Parts that differ between sequences and forecasts."""

    how: str
    scale: Scale
    plain: Callable[[], tuple[list[Entry], Rival | None]]
    """Entries of the methods without a training, and the one of them that may win."""
    bank: Callable[[int], _Banked]
    race: Callable[[Config, Tensor], tuple[Entry, bool]]
    not_linear: Callable[[], str]
    """Why a linear model cannot be left in a run folder; empty where it can."""


def _parts(task: Task, splits: Splits) -> _Parts:
    pool = _sequences.Pool.of(task, splits.train, splits.validation)
    best = 1.0 if pool.classes else 0.0
    scale = Scale(higher_is_better=task.higher_is_better, best=best, independent=len(pool.target))
    return _Parts(
        "each sequence in turn, with the others as training data",
        scale,
        lambda: _plain_sequences(pool, scale),
        lambda seed: _Banked(*_sequences.fit_bank(pool, seed), lambda: None),
        lambda config, scores: _sequences.race(config, pool, scores, scale),
        lambda: why_not(pool),
    )


def _plain_sequences(pool: _sequences.Pool, scale: Scale) -> tuple[list[Entry], Rival]:
    near, rival = _sequences.nearest(pool, scale), linear(pool, scale)
    return [near, rival.entry], rival


def _series_parts(task: ForecastTask, splits: Splits) -> _Parts:
    series = _windows.Series(task, splits)
    scale = Scale(higher_is_better=False, best=0.0, independent=series.independent)

    def bank(seed: int) -> _Banked:
        tested, model, scores = _windows.fit_bank(series, seed)
        return _Banked(model, scores, lambda: _windows.fit_mean(series, tested))

    return _Parts(
        "windows of the validation part",
        scale,
        lambda: (list(_windows.plain_entries(series, scale)), None),
        bank,
        lambda config, scores: _windows.race(config, series, scores, scale),
        lambda: "it is for sequences with one answer, and this is a series",
    )


def _not_for_banks(task: Task, splits: Splits, alone: bool) -> str:
    """Why a bank does not compete; empty where it does."""
    if isinstance(task, ForecastTask):
        return ""
    if task.encoder != "linear" or task.documents != 1 or task.pools[0] == "none":
        return "it reads numbers, and gives one answer to a sequence"
    if task.kind != "classification" and task.d_output != 1:
        return "it gives one number to a sequence"
    n = size_of(splits.train, "training data") + size_of(splits.validation, "validation data")
    numbers = n * task.sequence_length * task.d_input
    if numbers > _sequences.MOST_NUMBERS and not alone:
        return (
            f"the data have {numbers:,} numbers, more than the {_sequences.MOST_NUMBERS:,} that "
            "it reads in a minute; --only bank tries it anyway"
        )
    return ""


def _uncontested(config: Config, task: Task, rules: Iterable[Entry]) -> Contest:
    trained = Entry(
        name=config.mixer,
        kind="trained",
        score=math.nan,
        standard_error=math.nan,
        seconds=0.0,
        remark="alone",
    )
    return Contest(
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        how="",
        entries=_sorted(task, [trained, *rules]),
        winner="trained",
    )


def _sorted(task: Task, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The best first; at the end what has no score."""
    return tuple(sorted(entries, key=lambda one: _rank(task, one)))


def _rank(task: Task, entry: Entry) -> float:
    """Smaller is better."""
    if not math.isfinite(entry.score):
        return math.inf
    return -entry.score if task.higher_is_better else entry.score
