"""Runs as data: a row for each, from which claims are judged."""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from linrnn._files.storage import read_json, read_text
from linrnn.compare.tune import at_an_end, at_rate, safe_name
from linrnn.errors import DataError, MissingExtraError
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.student import interval
from linrnn.reproductions._page.verdict import (
    EDGE,
    NOT_KEPT,
    REDUCED,
    UNLEARNED,
    Judged,
    below,
    less,
    steps,
)
from linrnn.train import Config
from linrnn.train.figures import metric_scale
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_task

RUNS = "runs"
"""Folder of the trained models, in that of the report."""

_FIGURES = 8  # of a number: about what single precision has
_MACHINE = ("device", "threads", "devices", "checkpoint_minutes")
_UNITS = {"accuracy": "points"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: what was trained or measured, with what, and what it came to."""

    scale: str
    part: str
    """Name of the folder of its task on the page."""
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
    """Revision of the package, of the page that it was first on."""
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
class Runs:
    """Runs of a page."""

    rows: tuple[Run, ...]

    @classmethod
    def below(
        cls,
        out: Path,
        scale: str,
        measures: Mapping[Path, Mapping[str, float]] | None = None,
    ) -> "Runs":
        """Those in the folder of a page, those of tuning among them; one that failed has no score.

        Args:
            out: folder of the page.
            scale: of the page.
            measures: what else was measured, by the folder of a run.
        """
        rows, chances = [], dict[str, float]()
        for folder in sorted(path.parent for path in out.glob(f"{RUNS}/**/config.json")):
            extra = (measures or {}).get(folder, {})
            rows.append(replace(_of_folder(folder, out, chances), scale=scale, measures=extra))
        return cls(tuple(rows))

    @classmethod
    def read(cls, path: Path, scale: str | None = None) -> "Runs":
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

    def appended(self, new: "Runs") -> "Runs":
        """These and others, of which a run that is here already takes the place."""
        rows = {run.key: run for run in (*self.rows, *new.rows)}
        return Runs(tuple(rows[key] for key in sorted(rows)))

    def part(self, name: str, scale: str = REDUCED) -> "Part":
        """Those of one task, as they are compared.

        Args:
            name: of the task on the page.
            scale: beside the published one, in words; empty where it is that.
        """
        rows = tuple(run for run in self.rows if run.part == slug(name))
        return Part(name=name, rows=rows, scale=scale)


def _of_folder(folder: Path, out: Path, chances: dict[str, float]) -> Run:
    config, result = RunFolder(folder).load_config(), RunFolder(folder).read_result()
    part, _, name = folder.relative_to(out / RUNS).as_posix().rpartition("/")
    row = name.removesuffix(f"-seed{config.seed}")
    if part not in chances:
        chances[part] = _chance(config)
    run = Run(
        scale="",
        part=part,
        row=row.removesuffix(safe_name(at_rate("", config.optim.lr))),
        seed=config.seed,
        lr=config.optim.lr,
        task=config.task,
        mixer=config.mixer,
        options=json.dumps(_not_default(config), sort_keys=True),
        metric=build_task(config).metric,
        chance=chances[part],
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


@dataclass(frozen=True, kw_only=True)
class Part:
    """Runs of one task, row by row at the learning rate that validation chose."""

    name: str
    rows: tuple[Run, ...]
    scale: str

    @property
    def metric(self) -> str:
        """Name of the score."""
        return self.rows[0].metric if self.rows else ""

    @property
    def steps(self) -> int:
        """Updates of a run."""
        return max((run.steps for run in self.rows), default=0)

    @cached_property
    def _chosen(self) -> dict[str, tuple[list[Run], bool]]:
        """The runs of each row at its rate, and whether that is an end of those tried."""
        chosen = {}
        for row in dict.fromkeys(run.row for run in self.rows):
            runs = [run for run in self.rows if run.row == row]
            first = min(run.seed for run in runs)
            tried = {run.lr: run.validation for run in runs if run.seed == first}
            best = max if self.metric == "accuracy" else min
            known = {lr: v for lr, v in tried.items() if not math.isnan(v)}
            lr = best(known, key=lambda lr: known[lr]) if known else runs[0].lr
            at_rate = [run for run in runs if run.lr == lr or len(tried) == 1]
            chosen[row] = (at_rate, at_an_end(lr, tried))
        return chosen

    def runs(self, label: str) -> list[Run]:
        """Runs of a row at its rate."""
        return self._chosen.get(safe_name(label), ([], False))[0]

    def has(self, *labels: str) -> bool:
        """Whether all of these rows have runs."""
        return all(map(self.runs, labels))

    def values(self, label: str, measure: str = "test") -> dict[int, float]:
        """A number of each seed of a row: a field of `Run`, or one of its other measures."""
        numbers = {
            run.seed: run.measures.get(measure, getattr(run, measure, math.nan))
            for run in self.runs(label)
        }
        return {seed: number for seed, number in numbers.items() if not math.isnan(number)}

    def claim(
        self,
        better: str,
        worse: str,
        text: str,
        published: str,
        *,
        measure: str = "test",
        printed: float = math.nan,
    ) -> Judged:
        """The claim that a row is better than another, by the seeds that both have.

        Args:
            better, worse: the rows.
            text: the claim in words.
            published: the numbers or words it rests on.
            measure: by which they are compared.
            printed: the published difference, in the unit that is shown.
        """
        factor = metric_scale(self.metric)[0]
        sign = factor if self.metric == "accuracy" else -factor
        first, second = (
            {seed: sign * value for seed, value in self.values(label, measure).items()}
            for label in (better, worse)
        )
        judged = less(text, published, second, first)
        why = "" if first and second else NOT_KEPT
        return judged._replace(
            unit=_UNITS.get(self.metric, self.metric),
            printed=printed,
            scale=self.scale,
            why_not=why or self.why_not(better, worse, measure=measure),
        )

    def why_not(self, *labels: str, measure: str = "test") -> str:
        """Why a comparison of rows decides nothing, or nothing."""
        if any(self._chosen[safe_name(label)][1] for label in labels if self.runs(label)):
            return EDGE
        if not any(self._learned(label, measure) for label in labels):
            return UNLEARNED
        return ""

    def _learned(self, label: str, measure: str) -> bool:
        """Whether the mean of a row is better than chance by its interval."""
        chance = self.rows[0].chance
        if math.isnan(chance):
            return True
        sign = 1 if self.metric == "accuracy" else -1
        gains = [sign * (value - chance) for value in self.values(label, measure).values()]
        mean, low, _ = interval(gains)
        return mean > 0 and (len(set(gains)) < 2 or low > 0)

    def order(self, printed: Mapping[str, Quoted]) -> list[Judged]:
        """The claims of a printed column, whose largest number is the best if it is an accuracy."""
        compared = {label: printed[label] for label in printed if self.has(label)}
        return [
            self.claim(
                better,
                worse,
                f"{self.name}: {better} is better than {worse}",
                f"{compared[better].text} against {compared[worse].text}",
                printed=abs(compared[better].value - compared[worse].value),
            )
            for better, worse in steps(compared, self.metric == "accuracy")
        ]

    def under(self, label: str, goal: float, text: str, published: str, claim: bool) -> Judged:
        """The claim that the loss of a row comes below a goal, or does not, in decades.

        The loss is that of the test, or where that was not kept the best one on validation.
        """
        sign = 1 if claim else -1
        decades = {}
        for run in self.runs(label):
            loss = run.validation if math.isnan(run.test_loss) else run.test_loss
            decades[run.seed] = sign * math.log10(goal / loss)
        held = tuple(below(0.0, margin) for margin in decades.values())
        why = "" if decades else NOT_KEPT
        if claim and sum(decades.values()) < 0:  # more updates may bring it there
            why = UNLEARNED
        unit = "decades from the goal"
        return Judged(
            text, published, held, differences=tuple(decades.values()), unit=unit, why_not=why,
            scale=self.scale,
        )  # fmt: skip


def slug(name: str) -> str:
    """A column's name in the name of a file.

    Example:
        >>> slug("sCIFAR, rows")
        'scifar-rows'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def reduction(shares: Mapping[str, tuple[float, float]]) -> str:
    """A scale in words, from what is ours and what is published.

    Example:
        >>> reduction({"updates": (800, 80_000), "length": (100, 2_000), "width": (64, 64)})
        'at 1/100 of the published updates and 1/20 of the length'
    """
    smaller = [
        f"{f'{ours / published:.2g}' if published < 5 * ours else f'1/{published / ours:.0f}'} "
        f"of the @{what}"
        for what, (ours, published) in shares.items()
        if 0 < ours < published
    ]
    text = " and ".join(filter(None, (", ".join(smaller[:-1]), *smaller[-1:])))
    return f"at {text.replace('@', 'published ', 1).replace('@', '')}" if smaller else ""
