"""The contract of a reproduction: a published result, our own, and a comparison of the two."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import HOURS, MINUTES, Judged


class Table(NamedTuple):
    """A titled table of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """The lines of a Markdown table under its title.

        Example:
            >>> Table("A", ["x", "y"], [["1", "2"]]).markdown()[2:]
            ['| x | y |', '| :--- | ---: |', '| 1 | 2 |']
        """
        rule = [":---", *["---:"] * (len(self.head) - 1)]
        rows = [f"| {' | '.join(cells)} |" for cells in (self.head, rule, *self.rows)]
        return [f"### {self.title}", "", *rows]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a reproduction is run."""

    scale: str
    """One of the keys of `Reproduction.scales`."""
    seeds: tuple[int, ...]
    """Each trained model is trained once with each."""
    out: Path
    """Folder for whatever is written."""
    say: Callable[[str], Any] = field(default_factory=lambda: lambda line: None)
    """Told about progress."""
    jobs: int = 1
    """How many models are trained at once."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Results of a reproduction: tables, verdicts, notes, figures and files."""

    tables: tuple[Table, ...]
    """Ours."""
    comparable: str
    """In what respect the published numbers and ours compare, and what was changed."""
    verdicts: tuple[Judged, ...] = ()
    """Claims seed by seed; they end the page."""
    runs: Runs | None = None
    """Runs of the page; None: those of the folders below it."""
    notes: tuple[str, ...] = ()
    """Conditions and caveats for reading the tables."""
    complete: bool = True
    """Whether everything could be run; a run that fails on its way is a result."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Matplotlib figures by the name of their file, without an ending."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Other files of the page by name, such as sound; small ones."""


class Reproduction(ABC):
    """A published result with the command that computes ours beside it.

    A subclass is final, lives in its own file in ``linrnn/reproductions`` and is named by it.
    """

    summary: ClassVar[str]
    """One line for a list of reproductions."""

    source: ClassVar[str]
    """Authors, year, arXiv id, and the table, figure or statement."""

    scales: ClassVar[Mapping[str, str]]
    """Sizes it can be run at, the default first: what each shows, what it cannot, its time."""

    published: ClassVar[tuple[Table, ...]]
    """The published numbers."""

    hours: ClassVar[Collection[str]] = ("paper",)
    """Scales at which a single run takes an hour or more; at the others it takes minutes."""

    @classmethod
    def seeds_needed(cls, scale: str) -> int:
        """Seeds without which nothing is decided at a scale, and the default of the command."""
        return HOURS if scale in cls.hours else MINUTES

    @abstractmethod
    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Claims of a page, from its runs alone: those of `run`, or those of a file.

        Args:
            runs: of one scale.
            scale: one of the keys of ``scales``.
        """

    @abstractmethod
    def run(self, setting: Setting) -> Findings:
        """Compute ours."""
