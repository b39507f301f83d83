"""Runs as data: a row for each model that was trained, from its folder."""

import csv
import hashlib
import io
import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from linrnn._files.storage import read_json, read_text
from linrnn.backbone.pattern import labels
from linrnn.compare.tune import at_rate, safe_name
from linrnn.errors import DataError, MissingExtraError
from linrnn.train import Config
from linrnn.train.checkpoint import write_atomically
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_task

_FIGURES = 8  # of a number: about what single precision has
_MACHINE = ("device", "threads", "devices", "checkpoint_minutes")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: what was trained or measured, with what, and what it came to."""

    scale: str
    part: str
    """Folder that it lies in, below that of all; on a page, the name of its task."""
    row: str
    """Name of the row in that of its folder, without its learning rate."""
    seed: int
    lr: float = math.nan
    task: str = ""
    mixer: str = ""
    options: str = ""
    """Settings that are not the defaults, as JSON; empty where they were not kept."""
    parameters: int = 0
    state: int = 0
    """Floats of recurrent state that a sequence needs; 0 where it was not kept."""
    steps: int = 0
    metric: str = ""
    chance: float = math.nan
    """The metric of an answer that has learned nothing."""
    validation: float = math.nan
    test: float = math.nan
    test_loss: float = math.nan
    measures: Mapping[str, float] = field(default_factory=dict)
    """Other numbers that were measured of it, by name."""
    seconds: float = math.nan
    revision: str = ""
    """Revision of the package, where it is a source checkout."""
    versions: str = ""
    config: str = ""
    """Hash of all of its settings but the seed; empty where they were not kept."""

    def __post_init__(self) -> None:
        # numbers have the figures of the table at once, so that claims are the same from both
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Mapping):
                value = {name: _rounded(number) for name, number in value.items()}
            object.__setattr__(self, f.name, _rounded(value))

    @property
    def key(self) -> tuple[str, str, str, float, int]:
        """The same for a run and for another try of it."""
        lr = -1.0 if math.isnan(self.lr) else self.lr
        return self.scale, self.part, self.row, lr, self.seed

    def cells(self) -> list[str]:
        """A row of the table."""
        return [_cell(getattr(self, f.name)) for f in fields(self)]


HEAD = [f.name for f in fields(Run)]
_Runs = TypeVar("_Runs", bound="RunTable")


def _rounded(value: Any) -> Any:
    number = isinstance(value, float) and math.isfinite(value)
    return float(f"{value:.{_FIGURES}g}") if number else value


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ";".join(f"{name}={_cell(number)}" for name, number in value.items())
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{_FIGURES}g}"
    return str(value) if value or value == 0 else ""


def _read(row: Mapping[str, str]) -> Run:
    values: dict[str, Any] = {}
    for f in fields(Run):
        text = row[f.name]
        if f.name == "measures":
            parts = (part.partition("=") for part in text.split(";") if part)
            values[f.name] = {name: float(number) for name, _, number in parts}
        elif f.type is float:
            values[f.name] = float(text) if text else math.nan
        else:
            values[f.name] = int(text or 0) if f.type is int else text
    return Run(**values)


@dataclass(frozen=True)
class RunTable:
    """A table of runs, in memory and as CSV."""

    rows: tuple[Run, ...]

    @classmethod
    def below(
        cls: type[_Runs],
        root: Path,
        scale: str = "",
        measures: Mapping[Path, Mapping[str, float]] | None = None,
        chance: float | None = None,
        task: str | None = None,
    ) -> _Runs:
        """Those in the folders below one, those of tuning among them; one that failed has no score.

        Args:
            root: below which the run folders lie. Folders between are parts.
            scale: of all of them.
            measures: what else was measured, by the folder of a run.
            chance: of the task of all runs; None: of the task of each, for which some read data.
            task: of the runs of a comparison, which lie directly below; others may lie beside them.
                None is those of any task, in folders between too.
        """
        rows, chances = [], dict[str, float]()
        pattern = "**/config.json" if task is None else "*-seed*/config.json"
        for folder in sorted(path.parent for path in root.glob(pattern)):
            config = RunFolder(folder).load_config()
            if task not in (None, config.task):
                continue
            extra = (measures or {}).get(folder, {})
            key = repr((config.task, config.task_options))
            if key not in chances:
                chances[key] = _chance(config) if chance is None else chance
            run = _of_folder(folder, root, config)
            rows.append(replace(run, scale=scale, measures=extra, chance=chances[key]))
        return cls(tuple(rows))

    @classmethod
    def read(cls: type[_Runs], path: Path, scale: str | None = None) -> _Runs:
        """Those of a file, of one scale or of all."""
        text = read_text(path, inside=path.parent)
        rows = map(_read, csv.DictReader(io.StringIO(text)))
        return cls(tuple(run for run in rows if scale in (None, run.scale)))

    def csv(self) -> bytes:
        """The table."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([HEAD, *(run.cells() for run in self.rows)])
        return text.getvalue().encode()

    def appended(self: _Runs, new: "RunTable") -> _Runs:
        """These and others, of which a run that is here already takes the place."""
        rows = {run.key: run for run in (*self.rows, *new.rows)}
        return type(self)(tuple(rows[key] for key in sorted(rows)))

    def made_by(self: _Runs, revision: str) -> _Runs:
        """The same, with the revision of the package that made them."""
        return type(self)(tuple(replace(run, revision=revision) for run in self.rows))


def _of_folder(folder: Path, root: Path, config: Config) -> Run:
    result = RunFolder(folder).read_result()
    part, _, name = folder.relative_to(root).as_posix().rpartition("/")
    row = name.removesuffix(f"-seed{config.seed}")
    run = Run(
        scale="",
        part=part,
        row=row.removesuffix(safe_name(at_rate("", config.optim.lr))),
        seed=config.seed,
        lr=config.optim.lr,
        task=config.task,
        mixer="-".join(labels(config.mixer)),
        options=json.dumps(_not_default(config), sort_keys=True),
        metric=build_task(config).metric,
        config=config_hash(config),
    )
    if result is None:
        return run
    environment = RunFolder(folder).environment
    versions = read_json(environment, inside=folder)["versions"] if environment.is_file() else {}
    return replace(
        run,
        parameters=result.n_parameters,
        state=result.n_state,
        steps=result.steps,
        validation=float(result.validation_metric),
        test=float(result.test_metric),
        test_loss=float(result.test_loss),
        seconds=round(result.seconds, 1),
        versions=" ".join(f"{name} {v}" for name, v in versions.items()),
    )


def _chance(config: Config) -> float:
    try:
        task = build_task(config)
        if not hasattr(task, "chance"):
            task.datasets()
        return float(task.chance)
    except (AttributeError, DataError, MissingExtraError):
        return math.nan


def _settings(config: Config) -> dict[str, Any]:
    values = asdict(config)
    for name in _MACHINE:
        values["train"].pop(name, None)
    del values["seed"]
    return values


def config_hash(config: Config) -> str:
    """Hash of every setting of a run but its seed and the machine."""
    text = json.dumps(_settings(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _not_default(config: Config) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    defaults = {f.name: f.default for f in fields(Config)}
    for section, values in _settings(config).items():
        part = getattr(config, section)
        if is_dataclass(part):
            plain = {f.name: f.default for f in fields(part)}
            values = {name: v for name, v in values.items() if plain[name] != v and v != []}
            values.pop("data", None)  # a place of this machine
            listed |= {f"{section}.{name}": v for name, v in values.items()}
        elif isinstance(part, Mapping):
            listed |= {f"{section}.{name}": v for name, v in values.items()}
        elif values != defaults[section]:
            listed[section] = values
    return listed


def write_runs(out: Path, task: str, *, chance: float | None = None) -> None:
    """Write ``runs.csv``, a row for every run of a comparison; see `RunTable.below`."""
    table = RunTable.below(out, chance=chance, task=task).made_by(revision())
    write_atomically(out / "runs.csv", table.csv())


def revision() -> str:
    """Return the revision of a source checkout, if this is one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout.strip() if process.returncode == 0 else ""
