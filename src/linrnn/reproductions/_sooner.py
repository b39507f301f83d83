"""Rows at their best learning rates, and who of two solves a task in fewer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from linrnn.compare import Row
from linrnn.compare._tune import with_rates
from linrnn.reproductions._base import Setting, Table
from linrnn.reproductions._cells import earlier, solved_at
from linrnn.reproductions._language import curves
from linrnn.reproductions._trained import n_steps, problems, seconds
from linrnn.reproductions._tuned import Tuned, budget, tuned
from linrnn.reproductions._verdict import Judged
from linrnn.train import Config
from linrnn.train._folder import RunFolder


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

    def run(self, setting: Setting) -> "Result":
        """Train every row at each rate with the first seed, and the best with all."""
        candidates = {label: with_rates(c, self.rates) for label, c in self.rows.items()}
        return Result(contest=self, tuned=tuned(self.name, candidates, setting))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a contest."""

    contest: Contest
    tuned: Tuned

    @property
    def rows(self) -> dict[str, Row]:
        """By label."""
        return {row.label: row for row in self.tuned.outcome.rows}

    def arrived(self, label: str) -> list[int | None]:
        """The step after which each seed of a row had solved the task; None: it did not."""
        return [solved_at(folder, self.contest.goal) for folder in self.rows[label].folders]

    def losses(self, label: str) -> dict[int, float]:
        """Test loss of the runs that finished, by the place of their seed."""
        done = [RunFolder(folder).read_result() for folder in self.rows[label].folders]
        return {seed: result.test_loss for seed, result in enumerate(done) if result is not None}

    def solves(self, label: str, published: str, claim: bool = True) -> Judged:
        """That a row solves the task, or does not, within its steps."""
        words = "solves it" if claim else "does not solve it"
        held = tuple((at is not None) == claim for at in self.arrived(label))
        return self._judged(f"{label} {words}", published, held)

    def sooner(self, one: str, other: str, published: str) -> Judged:
        """That a row solves the task in fewer steps than another, if that does at all."""
        held = earlier(self.arrived(one), self.arrived(other))
        return self._judged(f"{one} solves it in fewer steps than {other}", published, held)

    def better(self, one: str, other: str, published: str) -> Judged:
        """That a row has the smaller test loss."""
        ours, theirs = self.losses(one), self.losses(other)
        held = tuple(ours[seed] < theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))
        return self._judged(f"{one} has a smaller loss than {other}", published, held)

    def _judged(self, claim: str, published: str, held: tuple[bool, ...]) -> Judged:
        return Judged(f"{self.contest.name}: {claim}", published, held)

    def table(self) -> Table:
        """A line for each row: when each seed was there, what it came to, and its cost."""
        head = ["row", "solved at step, by seed", "test loss, of the baseline's, by seed"]
        head += ["learning rate", "parameters", "steps", "s of training, a run"]
        return Table(f"{self.contest.name}: who solves it", head, list(map(self._cells, self.rows)))

    def _cells(self, label: str) -> list[str]:
        row = self.rows[label]
        steps = ", ".join("never" if at is None else f"{at:,}" for at in self.arrived(label))
        losses = [loss / self.contest.baseline for loss in self.losses(label).values()]
        shown = ", ".join(f"{loss:.3g}" for loss in losses) or "failed"
        took = f"{seconds(row) / max(1, len(losses)):.0f}"
        rate = f"{self.tuned.outcome.rates[label]:g}"
        return [label, steps, shown, rate, f"{row.n_parameters:,}", f"{n_steps(row):,}", took]

    def notes(self) -> list[str]:
        """What is meant by solved, how rates were chosen, and why runs failed."""
        return [
            f"{self.contest.name}: solved where the validation loss is below "
            f"{self.contest.goal:.3g} after an epoch; remembering nothing gives "
            f"{self.contest.baseline:.3g}.",
            budget(self.contest.rates),
            *problems(self.tuned.outcome),
        ]

    def figures(self) -> dict[str, object]:
        """Learning curves."""
        return curves([self.tuned.outcome])
