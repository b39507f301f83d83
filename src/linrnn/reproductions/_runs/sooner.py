"""Rows at their best learning rates, and who of two solves a task in fewer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from linrnn.compare import Row
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Setting, Table
from linrnn.reproductions._page.runs import SOLVED_AT, Part
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import arrivals, solved_at, when
from linrnn.reproductions._runs.language import curves
from linrnn.reproductions._runs.trained import n_steps, problems, seconds
from linrnn.reproductions._runs.tuned import Tuned, budget, tuned
from linrnn.train import Config
from linrnn.train.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A task, what counts as solved, and the rows with their rates."""

    name: str
    """Printed, and that of its folder."""
    rows: Mapping[str, Config]
    """Each at any rate."""
    rates: Sequence[float]
    goal: float
    """Validation loss below which the task is solved."""
    baseline: float
    """Loss of an answer that remembers nothing."""
    does: str = "solves it"
    """In words, what a row does that comes below the goal."""
    does_not: str = "does not solve it"

    def run(self, setting: Setting) -> "Result":
        """Train every row at each rate with the first seed, and the best with all."""
        candidates = {label: with_rates(c, self.rates) for label, c in self.rows.items()}
        return Result(contest=self, tuned=tuned(self.name, candidates, setting))

    def solves(self, part: Part, label: str, published: str, claim: bool = True) -> Judged:
        """The claim that a row solves the task, or does not, within its steps."""
        words = self.does if claim else self.does_not
        return part.under(label, self.goal, f"{self.name}: {label} {words}", published, claim)

    def sooner(self, part: Part, label: str, rival: str, published: str) -> Judged:
        """The claim that a row solves the task in fewer steps than another, if that does at all."""
        claim = f"{self.name}: {label} {self.does} in fewer steps than {rival}"
        return part.sooner(label, rival, claim, published)

    def better(self, part: Part, label: str, rival: str, published: str) -> Judged:
        """The claim that a row has the smaller test loss."""
        claim = f"{self.name}: {label} has a smaller loss than {rival}"
        return part.lower_loss(label, rival, claim, published)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Results of a contest."""

    contest: Contest
    tuned: Tuned

    @property
    def rows(self) -> dict[str, Row]:
        """By label."""
        return {row.label: row for row in self.tuned.outcome.rows}

    def arrived(self, label: str) -> dict[int, float]:
        """The step after which each seed of a row had solved the task; inf: it did not."""
        return arrivals(self.rows[label], self.contest.goal)

    def losses(self, label: str) -> dict[int, float]:
        """Test loss of the runs that finished, by the place of their seed."""
        results = [RunFolder(folder).read_result() for folder in self.rows[label].folders]
        return {seed: result.test_loss for seed, result in enumerate(results) if result is not None}

    def measures(self) -> dict[Path, dict[str, float]]:
        """Step at which each run that finished had solved the task, by its folder."""
        folders = (folder for row in self.tuned.first_and_all() for folder in row.folders)
        return {
            folder: {SOLVED_AT: solved_at(folder, self.contest.goal)}
            for folder in folders
            if RunFolder(folder).result.is_file()
        }

    def table(self) -> Table:
        """A line for each row: when each seed was there, what it came to, and its cost."""
        head = [
            "row",
            f"{self.contest.does} at step, by seed",
            "test loss / baseline, by seed",
        ]
        head += ["learning rate", "parameters", "steps", "s of training, a run"]
        title = f"{self.contest.name}: who {self.contest.does}"
        return Table(title, head, list(map(self._cells, self.rows)))

    def _cells(self, label: str) -> list[str]:
        row = self.rows[label]
        steps = when(row, self.arrived(label))
        losses = [loss / self.contest.baseline for loss in self.losses(label).values()]
        shown = ", ".join(f"{loss:.3g}" for loss in losses) or "failed"
        took = f"{seconds(row) / max(1, len(losses)):.0f}"
        rate = f"{self.tuned.outcome.rates[label]:g}"
        return [label, steps, shown, rate, f"{row.n_parameters:,}", f"{n_steps(row):,}", took]

    def notes(self) -> list[str]:
        """Explain what solved means, how rates were chosen, and why runs failed."""
        return [
            f"{self.contest.name}: a row {self.contest.does} where the validation loss is below "
            f"{self.contest.goal:.3g} after an epoch; remembering nothing gives "
            f"{self.contest.baseline:.3g}.",
            budget(self.contest.rates),
            *problems(self.tuned.outcome),
        ]

    def figures(self) -> dict[str, object]:
        """Learning curves."""
        return curves([self.tuned.outcome])
