"""Stacks of LRUs that learn to copy online: traces, truncation and back-propagation by depth."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs, decades, seed_by_seed
from linrnn.reproductions._page.verdict import Judged, margin
from linrnn.reproductions._runs.copying import Copying
from linrnn.reproductions._runs.language import mean_of
from linrnn.reproductions._runs.lessons import (
    BUDGET,
    Rule,
    Run,
    errors,
    learning,
    near,
    together,
    tuned_all,
)
from linrnn.reproductions._runs.lessons import Runs as RunsByRule
from linrnn.reproductions._runs.one_pass import CUT, EXACT, ONLINE, RULES
from linrnn.reproductions._runs.one_pass import NOTES as OF_ONE_PASS

Ring = tuple[float, float]
Where = tuple[Ring, int]
"""A ring and a depth."""

WINDOW = 12
CHUNKED = f"chunked_rtrl, window {WINDOW}"
IN_CHUNKS: Mapping[str, Rule] = {CHUNKED: Rule(learner="chunked_rtrl", options={"window": WINDOW})}
RINGS: Sequence[Ring] = ((0.0, 0.99), (0.9, 0.99))
DEPTHS = (1, 2, 3, 4)
LESSON = Copying(
    name="copying",
    pattern=16,
    pad=4,
    bits=4,
    mixer="lru",
    options={"d_state": 32},
    width=32,
    rows=32,
    steps=500,
    rates=(3e-3, 1e-2, 3e-2),
    falling=True,
)

_ZUCCHET = "Zucchet et al. 2023, arXiv:2305.15947"

_UNIT = "of the loss of guessing"

RunsByStack = Mapping[Where, RunsByRule]


class OnlineCopy(Reproduction):
    """Copying with padding by one to four LRUs in two rings, trained by the rules themselves.

    Sixteen steps of four bits, four blank ones, and the bits once more; a block is that of the LRU
    paper. Rules take one step of Adam for a batch, at a rate that falls to 0 along half a cosine
    and that is the best of three on validation, for each rule, ring and depth with the first seed.

    Args:
        lesson: the task, the model and the training in place of ours; its ring and depth are set.
        rings: r_min and r_max, in place of ours, the denser ones later.
        depths: in place of ours, growing.
        chunked: where a rule of chunks is trained as well; None: nowhere.
    """

    summary: ClassVar[str] = "copying by stacks of LRUs that learn online, by depth and ring"
    source: ClassVar[str] = f"{_ZUCCHET}: copying with padding, and its study of depth and r_min"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "one to four layers of width 32, patterns of 16 steps and 500 updates of 32 sequences; "
            "shows what each rule comes to within that, not what it would come to in the 25 "
            "epochs of 20,000 sequences that are published; about an hour of processor time with "
            "five seeds"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about the rules; drawn in figures, not printed in numbers",
            ["statement", "published", "where"],
            [
                ["traces, with errors that go down at once, come near back-propagation", "yes",
                 _ZUCCHET],
                ["they are far better than the same without traces", "yes", _ZUCCHET],
                ["what they lack grows with the depth", "yes", _ZUCCHET],
                ["a ring close to the circle helps them", "yes", _ZUCCHET],
            ],
        ),
    )  # fmt: skip

    def __init__(
        self,
        lesson: Copying = LESSON,
        rings: Sequence[Ring] = RINGS,
        depths: Sequence[int] = DEPTHS,
        chunked: Where | None = (RINGS[0], DEPTHS[-1]),
    ) -> None:
        self.lesson, self.rings, self.depths, self.chunked = lesson, rings, depths, chunked

    def run(self, setting: Setting) -> Findings:
        """Train every stack by every rule."""
        lessons = {where: self._lesson(*where) for where in product(self.rings, self.depths)}
        learned = tuned_all(
            (
                (lesson, {**RULES, **(IN_CHUNKS if where == self.chunked else {})})
                for where, lesson in lessons.items()
            ),
            setting,
        )
        named, runs = learned.runs, Runs(tuple(learned.rows))
        runs_by_stack = {where: named[lesson.name] for where, lesson in lessons.items()}
        return Findings(
            tables=(
                *(_losses(runs_by_stack), _gaps(runs_by_stack), _by_seed(named)),
                together(learned.tried),
            ),
            comparable=(
                "whether the statements hold, at these sizes and after these updates; patterns, "
                "models and training are smaller than the published ones."
            ),
            notes=NOTES,
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={
                "losses": learning(
                    named, title="copying with padding", error="loss", columns=len(self.depths)
                )
            },
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The claims of every stack, and of stacks beside one another."""
        stacks = product(self.rings, self.depths)
        return judged({where: runs.part(_words(where)) for where in stacks})

    def _lesson(self, ring: Ring, depth: int) -> Copying:
        options = {**self.lesson.options, "r_min": ring[0], "r_max": ring[1]}
        return replace(self.lesson, name=_words((ring, depth)), options=options, depth=depth)


NOTES = (
    "a loss is the cross-entropy of a bit over that of guessing, so 1 is that of guessing, of the "
    "steps that are asked about; curves are on validation, tables of the test.",
    *OF_ONE_PASS,
    f"{CHUNKED} learns through time inside of windows at every layer, and has traces across "
    "them; it is trained at one ring and depth, since it has no such short cut.",
    "what the online rule lacks is its loss less that of back-propagation, with the same seed. "
    "Near: that is less than half of what the rule without traces lacks.",
    BUDGET,
)


def judged(parts: Mapping[Where, Part]) -> list[Judged]:
    """Every claim; what the online rule lacks is its loss less that of back-propagation."""
    rings = list(dict.fromkeys(ring for ring, _ in parts))
    depths = list(dict.fromkeys(depth for _, depth in parts))
    lines = []
    for where, part in parts.items():
        stack = _words(where)
        less = f"{stack}: {ONLINE} has a smaller loss than {CUT}"
        close = f"{stack}: {ONLINE} is near {EXACT}"
        lines.append(part.lower_loss(ONLINE, CUT, less, _ZUCCHET))
        lines.append(part.paired(close, _ZUCCHET, _UNIT, (ONLINE, EXACT, CUT), near))
        if part.has(CHUNKED):
            claim = f"{stack}: {CHUNKED} has a smaller loss than {ONLINE}"
            published = "ours: it learns through time in all layers"
            lines.append(part.lower_loss(CHUNKED, ONLINE, claim, published))
    for ring in rings:
        lines += _deeper(ring, [parts[ring, depth] for depth in depths], depths)
    for depth in depths:
        lines += _denser(depth, [parts[ring, depth] for ring in rings])
    return lines


def _deeper(ring: Ring, parts: Sequence[Part], depths: Sequence[int]) -> list[Judged]:
    lacks = list(map(_lacking, parts))
    where = f"ring {_ring(ring)}: what {ONLINE} lacks"
    first, last = depths[0], depths[-1]
    ends = f"{where} is more with {last} layers than with {first}"
    each = f"{where} grows with each layer"
    growth = seed_by_seed(lambda *values: min(b - a for a, b in pairwise(values)), *lacks)
    more = seed_by_seed(operator.sub, lacks[-1], lacks[0])
    return [
        margin(ends, _ZUCCHET, more, unit=_UNIT),
        margin(each, _ZUCCHET, growth, unit=_UNIT),
    ]


def _denser(depth: int, parts: Sequence[Part]) -> list[Judged]:
    wide_ring, dense_ring = parts[0], parts[-1]
    where = f"{_layers(depth)}, denser ring: {ONLINE}"
    losses = seed_by_seed(decades, *(part.values(ONLINE) for part in (dense_ring, wide_ring)))
    lacks = seed_by_seed(operator.sub, _lacking(wide_ring), _lacking(dense_ring))
    smaller, nearer = f"{where} has a smaller loss", f"{where} lacks less of {EXACT}"
    return [
        margin(smaller, _ZUCCHET, losses, unit="decades of the loss"),
        margin(nearer, _ZUCCHET, lacks, unit=_UNIT),
    ]


def _lacking(part: Part) -> dict[int, float]:
    return seed_by_seed(operator.sub, part.values(ONLINE), part.values(EXACT))


def _values(runs: Sequence[Run]) -> list[float]:
    return [run.error for run in runs]


def _lacks(runs: RunsByRule) -> list[float]:
    """Loss of the online rule less that of back-propagation, seed by seed."""
    pairs = zip(_values(runs[ONLINE]), _values(runs[EXACT]), strict=True)
    return [online - exact for online, exact in pairs]


def _losses(runs_by_stack: RunsByStack) -> Table:
    labels = list(dict.fromkeys(label for runs in runs_by_stack.values() for label in runs))
    rows = [
        [_words(where), *(_mean(_values(runs[x])) if x in runs else "" for x in labels)]
        for where, runs in runs_by_stack.items()
    ]
    return Table("Test loss (1 = guessing): mean ± s.e.", ["stack", *labels], rows)


def _gaps(runs_by_stack: RunsByStack) -> Table:
    rows = []
    for where, runs in runs_by_stack.items():
        lacks = _lacks(runs)
        rows.append([_words(where), _mean(lacks), ", ".join(f"{gap:.3g}" for gap in lacks)])
    title = f"What {ONLINE} lacks: its loss less that of {EXACT}"
    return Table(title, ["stack", "mean ± s.e.", "by seed"], rows)


def _by_seed(named: Mapping[str, RunsByRule]) -> Table:
    rows = [
        [name, label, errors(runs)]
        for name, by_rule in named.items()
        for label, runs in by_rule.items()
    ]
    return Table("Test loss by seed", ["stack", "rule", "by seed"], rows)


def _mean(values: Sequence[float]) -> str:
    mean = mean_of(values)
    error_text = "" if mean.error != mean.error else f" ± {mean.error:.2g}"
    return f"{mean.value:.3g}{error_text}"


def _words(where: Where) -> str:
    return f"{_layers(where[1])}, ring {_ring(where[0])}"


def _layers(depth: int) -> str:
    return f"{depth} layer{'s' * (depth > 1)}"


def _ring(ring: Ring) -> str:
    return f"[{ring[0]:g}, {ring[1]:g}]"
