"""Run folders of `PanelForecaster`: fitted to a long table in a file, judged, put to use.

The folder holds ``panel.safetensors``, the forecaster; ``panel.json``, what it was fitted to and
what came out; and ``contest.csv``.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linrnn import __version__
from linrnn._files.reading import reading
from linrnn._files.storage import read_json, write_atomically
from linrnn.errors import ArgumentError, DataError, RunFolderError, show
from linrnn.estimators._panel.files import Roles, Table, is_long, read_table, roles_of
from linrnn.estimators._panel.judged import PLAIN, Judged, judge
from linrnn.tasks import open_frame
from linrnn.train.folder import check_free, claim, next_free

if TYPE_CHECKING:
    from linrnn.estimators.panel import PanelForecaster
    from linrnn.tasks import Frame
    from linrnn.train import TrainedModel

_FORMAT = 1
_RECORD = "panel.json"
_WEIGHTS = "panel.safetensors"
_FIX = "Restore it from a copy."


@dataclass(frozen=True, kw_only=True)
class PanelOptions:
    """File, columns and options of a run.

    Args:
        data: a .csv or .parquet with a row for each time of each series.
        id, time, value: names of its columns; none: unique_id, ds and y.
        known, past, static: columns of inputs known ahead, of others, and of what stays the same.
        horizon, season, totals, freq, missing: as of `PanelForecaster`.
    """

    data: Path
    id: tuple[str, ...] = ()
    time: str = ""
    value: str = ""
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    horizon: int | None = None
    season: int | None = None
    totals: bool = False
    freq: str | None = None
    missing: str = "error"


@dataclass(frozen=True, kw_only=True)
class PanelResult:
    """Scores and sizes of a run."""

    task: str
    mixer: str
    metric: str
    test_metric: float
    """MASE of the last steps of each series, forecast from what came before; the mean over
    series. NaN where none is long enough."""
    standard_error: float
    held: float
    """Share of these steps that bands of 80 per cent held."""
    n_series: int
    n_judged: int
    horizon: int
    season: int
    seconds: float
    folder: Path


class Fitted(NamedTuple):
    """A run that was written, and what was judged in it."""

    result: PanelResult
    judged: Judged | None
    seconds: float
    """Time that judging took."""
    unread: tuple[str, ...]
    """Columns that nobody named."""


def fit(options: PanelOptions, out: Path | None = None) -> Fitted:
    """Fit to a file, judge the ends of the series, and write a run folder.

    Args:
        options: of the run.
        out: the folder, which must be new or empty; None takes the next free one.

    Raises:
        DataError, UnknownNameError: the file cannot be used, or has no such column.
        ArgumentError, ArgumentTypeError: as `PanelForecaster.fit`.
        RunFolderError: the folder cannot be used.
    """
    if out is not None:
        check_free(out)
    frame = open_frame(options.data)
    roles = _roles(options, frame)
    table = read_table(frame, roles)
    begin = time.perf_counter()
    forecaster = _forecaster(options, roles).fit(table.rows, table.static)
    seconds, begin = time.perf_counter() - begin, time.perf_counter()
    judged = judge(forecaster, table.rows, table.static, forecaster.horizon_)
    judging = time.perf_counter() - begin
    folder = next_free("forecast-panel") if out is None else claim(out)
    result = _result(forecaster, judged, seconds, folder)
    forecaster.save(folder / _WEIGHTS)
    write_record(folder, options, roles, result)
    return Fitted(result, judged, judging, table.unread)


def is_panel(run: Path | str) -> bool:
    """Whether a folder is one of these runs."""
    return os.path.lexists(Path(run) / _RECORD)


def load(run: Path | str, *, weights: str | None = None) -> "TrainedModel | PanelForecaster":
    """Open a run folder: a model as `linrnn.train.load` has it, or a forecaster of many series.

    Args:
        run: the run folder.
        weights: of a trained model, ``"int8"`` or ``"int4"``, see `linrnn.train.load`.

    Returns:
        `TrainedModel`; `PanelForecaster` where the run was of a long table.

    Raises:
        ArgumentError: ``weights`` of a forecaster of many series, or of a frozen bank.
        LinrnnError: as `linrnn.train.load`.

    Example:
        >>> import linrnn
        >>> linrnn.load("runs/forecast-panel-1").predict()  # doctest: +SKIP
    """
    from linrnn.train import load as load_model

    if not isinstance(run, (str, os.PathLike)) or not is_panel(run):
        return load_model(run, weights=weights)
    if weights is not None:
        raise ArgumentError(
            f"load: weights must be None for a forecaster of many series, got {show(weights)}."
        )
    return _forecaster_of(run)


def file_of(run: Path | str) -> Path:
    """The file that a run was fitted to.

    Raises:
        RunFolderError: no such run.
        DataError: the file is no longer there.
    """
    file = _read_options(run)[0].data
    if not os.path.lexists(file):
        raise DataError(
            f"{run}: the file of the fit must be at {file}, got no such file. Name it where it is "
            f"now, or another one: linrnn eval {run} --data FILE"
        )
    return file


def evaluate(run: Path | str, data: Path | str | None = None) -> tuple[PanelResult, Judged | None]:
    """Judge a run again: fit to all but the ends of the series in a file, and forecast them.

    Args:
        run: the run folder.
        data: a table with the columns of the fit. None: the file of the fit, which must still be
            where it was.

    Raises:
        RunFolderError: no such run.
        DataError, UnknownNameError: the file is missing, cannot be used, or has no such column.
    """
    _, roles = _read_options(run)
    table = read_table(open_frame(file_of(run) if data is None else Path(data)), roles)
    begin = time.perf_counter()
    forecaster = _forecaster_of(run)
    judged = judge(forecaster, table.rows, table.static, forecaster.horizon_)
    return _result(forecaster, judged, time.perf_counter() - begin, Path(run)), judged


class Answer(NamedTuple):
    """Forecasts of the series in a file, and what of the run and the file is not in them."""

    table: Any
    """As of `PanelForecaster.predict_interval`."""
    absent: tuple[Any, ...]
    """Ids of series that were fitted and have no row in the file."""
    steps: int
    """Steps ahead."""
    horizon: int
    """Those of the run; fewer are forecast where the inputs known ahead end earlier."""


def predict(run: Path | str, file: Path | str, *, coverage: float = 0.8) -> Any:
    """Forecasts of the series in a file, from their last values.

    Shares of methods stay as they were fitted. Rows after the last value of a series are the inputs
    that are known ahead. A file without values has these alone: then forecasts follow on what was
    fitted.

    Args:
        run: the run folder.
        file: a table as of the fit, of all series or some; each has a value, or none has.
        coverage: of the bands.

    Returns:
        A DataFrame as of `PanelForecaster.predict_interval`.

    Raises:
        DataError, UnknownNameError: the file cannot be used, or has no such column.
        ArgumentError: a series that was not fitted, or too few rows of what is known ahead.
    """
    return answer_of(run, file, coverage=coverage).table


def answer_of(run: Path | str, file: Path | str, *, coverage: float = 0.8) -> Answer:
    """The same, with what is not in it."""
    _, roles = _read_options(run)
    forecaster = _forecaster_of(run)
    fitted = forecaster.scores_.index
    table: Table = read_table(open_frame(Path(file)), roles, value=False)
    if len(table.rows):
        forecaster = forecaster.follow(table.rows)
    elif not roles.known:
        raise DataError(
            f"{file}: a series must have a value in column {roles.value}, got none in the file."
        )
    steps = _steps_ahead(forecaster, table, roles)
    later = table.later if roles.known else None
    absent = fitted[~fitted.isin(forecaster.scores_.index)]
    return Answer(
        forecaster.predict_interval(steps, coverage, X=later),
        tuple(absent.tolist()),
        steps,
        forecaster.horizon_,
    )


def _steps_ahead(forecaster: Any, table: Table, roles: Roles) -> int:
    """As far as the rows of what is known ahead reach, and no further than the horizon."""
    horizon: int = forecaster.horizon_
    if not roles.known or not len(table.later):
        return horizon
    rows = table.later.groupby(list(roles.id)).size()
    return int(min(horizon, rows.min()))


def _forecaster_of(run: Path | str) -> "PanelForecaster":
    from linrnn.estimators.panel import PanelForecaster

    return PanelForecaster.load(Path(run) / _WEIGHTS)


def write_record(folder: Path, options: PanelOptions, roles: Roles, result: PanelResult) -> None:
    """Write what a run is of and what came out."""
    values = asdict(options) | roles._asdict() | {"data": str(options.data.absolute())}
    came = {k: v for k, v in asdict(result).items() if k != "folder"}
    record = {"format": _FORMAT, "linrnn": __version__, "options": values, "result": came}
    text = json.dumps(_finite(record), indent=2) + "\n"
    write_atomically(folder / _RECORD, text.encode(), inside=folder)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _read_options(run: Path | str) -> tuple[PanelOptions, Roles]:
    path = Path(run) / _RECORD
    with reading(path, RunFolderError, "be complete JSON", _FIX):
        record = read_json(path, inside=Path(run))
    with reading(path, RunFolderError, "be as it was written", _FIX):
        if record["format"] != _FORMAT:
            raise ValueError(f"a format that is not {_FORMAT}")
        values = dict(record["options"])
        for name in ("id", "known", "past", "static"):
            values[name] = tuple(values[name])
        options = PanelOptions(**values | {"data": Path(values["data"])})
        roles = Roles(*(values[name] for name in Roles._fields))
    return options, roles


def _roles(options: PanelOptions, frame: "Frame") -> Roles:
    o = options
    return roles_of(frame, o.id, o.time, o.value, o.known, o.past, o.static)


def _forecaster(options: PanelOptions, roles: Roles) -> "PanelForecaster":
    from linrnn.estimators.panel import PanelForecaster

    return PanelForecaster(
        options.horizon,
        options.season,
        id=roles.id if len(roles.id) > 1 else roles.id[0],
        time=roles.time,
        value=roles.value,
        known=roles.known,
        totals=options.totals,
        freq=options.freq,
        missing=options.missing,
    )


def _result(forecaster: Any, judged: Judged | None, seconds: float, folder: Path) -> PanelResult:
    score, error = (np.nan, np.nan) if judged is None else judged.score("")
    return PanelResult(
        task="forecast",
        mixer="panel",
        metric="MASE",
        test_metric=score,
        standard_error=error,
        held=float("nan") if judged is None else judged.held,
        n_series=forecaster.n_series_,
        n_judged=0 if judged is None else len(judged.mase[""]),
        horizon=forecaster.horizon_,
        season=forecaster.season_,
        seconds=seconds,
        folder=folder,
    )


__all__ = [
    "PLAIN",
    "Answer",
    "Fitted",
    "PanelOptions",
    "PanelResult",
    "answer_of",
    "evaluate",
    "file_of",
    "fit",
    "is_long",
    "is_panel",
    "load",
    "predict",
]
