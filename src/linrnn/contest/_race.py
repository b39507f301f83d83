"""Who competed, on what they were judged, and who won."""

import csv
import io
import math
import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from linrnn.backbone import Model

Kind = Literal["bank", "linear", "mean", "trained", "plain"]
"""A plain method only competes; the others can be left in a run folder."""

Winner = Literal["bank", "linear", "mean", "trained"]

_FAR = 2.0
"""Standard errors by which a mixer is behind when it is given up."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One that competed."""

    name: str
    kind: Kind
    score: float
    """The metric on data it was not fitted to; NaN of one that was not finished."""
    standard_error: float
    seconds: float
    remark: str = ""
    """Why it was not finished, or for how long it was trained."""


class Rival(NamedTuple):
    """One that competed without a training."""

    entry: Entry
    scores: Tensor
    """A number for each example, float64; the metric is their mean."""
    model: Model | None
    """The model that stays if it wins; None where it cannot."""

    @property
    def winner(self) -> Winner:
        """The kind of the winner, if it wins."""
        kind = self.entry.kind
        return kind if kind == "linear" or kind == "mean" else "bank"


@dataclass(frozen=True, kw_only=True)
class Contest:
    """All that competed, the best first."""

    metric: str
    higher_is_better: bool
    how: str
    """On what they were judged."""
    entries: tuple[Entry, ...]
    winner: Winner

    @property
    def lost_to(self) -> Entry | None:
        """The plain method that did better than the winner by more than a standard error."""
        won = next(one for one in self.entries if one.kind == self.winner)
        rule = next((one for one in self.entries if one.kind == "plain"), None)
        if rule is None or not math.isfinite(won.score):
            return None
        ahead = rule.score - won.score if self.higher_is_better else won.score - rule.score
        return rule if ahead > won.standard_error else None

    def table(self) -> str:
        """The rows as CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("who", "kind", self.metric, "standard_error", "seconds", "remark", "won"))
        for one in self.entries:
            numbers = (f"{v:.6g}" for v in (one.score, one.standard_error, one.seconds))
            won = int(one.kind == self.winner)
            writer.writerow((one.name, one.kind, *numbers, one.remark, won))
        return text.getvalue()


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How scores of examples are compared.

    Args:
        higher_is_better: as the task has it.
        best: the score of an example that cannot be better.
        independent: as how many examples they count, of which windows that overlap are fewer.
    """

    higher_is_better: bool
    best: float
    independent: float

    def entry(self, name: str, kind: Kind, scores: Tensor, begin: float, remark: str = "") -> Entry:
        """One that competed since ``begin``, of `time.perf_counter`, by its scores, if any."""
        return Entry(
            name=name,
            kind=kind,
            score=float(scores.mean()),
            standard_error=self.error_of(scores),
            seconds=time.perf_counter() - begin,
            remark=remark,
        )

    def error_of(self, scores: Tensor) -> float:
        """The standard error of their mean."""
        n = min(self.independent, len(scores))
        return float(scores.std() / math.sqrt(n)) if n > 1 else math.nan

    def wins(self, rival: Tensor, holder: Tensor) -> bool:
        """Whether a rival is ahead by more than the standard error of the difference."""
        return self._lead(rival, holder) > 1

    def may_win(self, rival: Tensor, holder: Tensor, judged: Tensor) -> bool:
        """Whether a rival that was judged in part could still win, and is not far behind.

        Args:
            rival: its scores, whatever they are where it was not judged.
            holder: those of who is ahead.
            judged: boolean, where it was.
        """
        hoped = torch.where(judged, rival, torch.full_like(rival, self.best))
        if not self.wins(hoped, holder):
            return False
        return not bool(judged.any()) or self._lead(rival[judged], holder[judged]) > -_FAR

    def _lead(self, rival: Tensor, holder: Tensor) -> float:
        """In standard errors; 1 is no lead, whatever rounding says."""
        ahead = rival - holder if self.higher_is_better else holder - rival
        mean, error = float(ahead.mean()), self.error_of(ahead)
        if math.isnan(mean):  # the metric is undefined where only one class is judged
            return -math.inf
        if not math.isfinite(error) or error == 0:
            return math.copysign(math.inf, mean) if mean else 0.0
        return mean / error - 1e-6
