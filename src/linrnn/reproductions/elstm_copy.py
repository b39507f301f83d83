"""An eLSTM that learns to copy what left the window: traces against truncation."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.copying import Copying
from linrnn.reproductions._runs.lessons import BUDGET, Rule, errors, learning, tuned_all
from linrnn.reproductions._runs.lessons import Runs as RunsByRule

WINDOW = 4
SOLVED = 0.1
"""A pattern is copied if the loss is below this; 1 is that of guessing."""
WITHIN = 0.1
"""Losses of one gradient lie within this of one another: training is the same but for rounding."""

EXACT, TRACED, CUT = "bptt", f"chunked_rtrl, window {WINDOW}", f"tbptt, window {WINDOW}"
HELD = "bptt, recurrence held"
RULES: Mapping[str, Rule] = {
    EXACT: Rule(learner="bptt"),
    TRACED: Rule(learner="chunked_rtrl", options={"window": WINDOW}),
    CUT: Rule(learner="tbptt", options={"window": WINDOW}),
    HELD: Rule(learner="bptt", held=("in_proj.weight", "in_proj.bias", "w")),
}
_ELSTM: Mapping[str, Any] = {
    "pad": 0,
    "bits": 1,
    "mixer": "elstm",
    "options": {"d_state": 64},
    "width": 2,
    "bare": True,
    "rows": 32,
    "steps": 800,
    "rates": (0.03, 0.1, 0.3),
    "falling": True,
}
LESSONS: Sequence[Copying] = (
    Copying(name="4 bits", pattern=4, **_ELSTM),
    Copying(name="6 bits", pattern=6, **_ELSTM),
)

_IRIE = "Irie, Gopalakrishnan & Schmidhuber 2023, arXiv:2305.19044"


class ELSTMCopy(Reproduction):
    """One eLSTM copies bits whose target is in a later window than the bit itself.

    The layer has 64 channels and reads the bits as they are. Rules take one step of Adam for a
    batch, at a rate that falls to 0 along half a cosine and that is the best of three on
    validation, for each rule with the first seed.

    Args:
        lessons: in place of ours; windows of four steps must not reach from a question to its bit.
    """

    summary: ClassVar[str] = "an eLSTM that copies what left the window: traces and truncation"
    source: ClassVar[str] = f"{_IRIE}: its copy task, by RTRL and by truncated back-propagation"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "64 channels, four and six bits, windows of four steps and 800 updates of 32 "
            "sequences; shows whether a rule learns to hold what its window does not reach, not "
            "the 50 and 500 bits of a layer of 2,048 channels that are published; half an "
            "hour of processor time with five seeds"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about the rules",
            ["statement", "published", "where"],
            [
                ["traces of an eLSTM are exact, so RTRL trains as back-propagation does", "yes",
                 _IRIE],
                ["RTRL copies bits from beyond the truncation", "yes", _IRIE],
                ["RTRL is no worse than truncated back-propagation with as long a window", "yes",
                 _IRIE],
            ],
        ),
    )  # fmt: skip

    def __init__(self, lessons: Sequence[Copying] = LESSONS) -> None:
        self.lessons = lessons

    def run(self, setting: Setting) -> Findings:
        """Train the layer by every rule."""
        learned = tuned_all(((lesson, RULES) for lesson in self.lessons), setting)
        runs = Runs(tuple(learned.rows))
        losses = (_losses(name, by_rule) for name, by_rule in learned.runs.items())
        return Findings(
            tables=(*losses, *learned.tried),
            comparable=(
                "whether the statements hold, at these sizes and after these updates; patterns and "
                "layers are far smaller than the published ones."
            ),
            notes=NOTES,
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={
                "losses": learning(
                    learned.runs,
                    title="copying by an eLSTM",
                    error="loss",
                    lines={"copied": SOLVED},
                )
            },
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The claims of every pattern."""
        return [line for lesson in self.lessons for line in judged(runs.part(lesson.name))]


NOTES = (
    "a loss is the cross-entropy of a target bit over that of guessing, so guessing has 1; "
    f"a pattern counts as copied below {SOLVED:g}.",
    "the target of a bit comes as many steps after it as a pattern has bits, and a window is no "
    "longer than that, so no window holds both.",
    "a window without both can still teach the state to last, by the losses of its steps, and "
    "the read-out to use it. So truncation does not have to fail.",
    f"weights are held over a sequence, so {TRACED} has the gradient of back-propagation, and of "
    "diagonal_rtrl, which goes step by step, but for rounding: tests compare them in float64. One "
    f"training counts as another where the losses lie within {WITHIN:g}.",
    f"{HELD}: what moves the state stays as it was drawn, and with it what the output gate sees of "
    "the input; the read-out and what that gate sees of the state learn.",
    BUDGET,
)


def judged(part: Part) -> list[Judged]:
    """Claims of a pattern."""
    name = part.name

    def copies(label: str, claim: bool, where: str) -> Judged:
        words = "copies them" if claim else "does not copy them"
        return part.under(label, SOLVED, f"{name}: {label} {words}", where, claim)

    def better(rule: str, rival: str, where: str) -> Judged:
        return part.lower_loss(
            rule, rival, f"{name}: {rule} has a smaller loss than {rival}", where
        )

    same = f"{name}: {TRACED} comes to what {EXACT} comes to"
    gap = part.paired(same, _IRIE, "of the loss of guessing", (TRACED, EXACT), operator.sub)
    return [
        copies(EXACT, True, "exact"),
        copies(TRACED, True, _IRIE),
        copies(CUT, False, "ours: no gradient leaves a window"),
        better(TRACED, CUT, _IRIE),
        gap._replace(within=WITHIN, held=tuple(abs(x) <= WITHIN for x in gap.differences)),
        better(CUT, HELD, "ours: whether a truncated gradient helps at all"),
    ]


def _losses(name: str, runs: RunsByRule) -> Table:
    rows = [
        [label, errors(seeds), f"{sum(run.error < SOLVED for run in seeds)} of {len(seeds)}"]
        for label, seeds in runs.items()
    ]
    title = f"{name}: test loss (1 = guessing)"
    return Table(title, ["rule", "by seed", "copied"], rows)
