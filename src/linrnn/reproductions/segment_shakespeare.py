"""Layers of segments as language models of one size on tiny Shakespeare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from linrnn.compare import Row
from linrnn.compare.match import match_parameters
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Part, Runs
from linrnn.reproductions._page.verdict import NOT_KEPT, Judged, groups
from linrnn.reproductions._runs.language import (
    CUT,
    CUT_NOTE,
    BothWays,
    curves,
    kept_state,
    loss_from,
    lower_nats,
    mean_of,
    measured_both_ways,
    read_both_ways,
    small,
    whole,
    with_model,
)
from linrnn.reproductions._runs.trained import problems
from linrnn.reproductions._runs.tuned import budget, tuned
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config
from linrnn.train.figures import legend_below, log_axis, new_figure, over_seeds
from linrnn.train.styles import styles

WINDOW, SEGMENT = 256, 32
"""Characters of a training window, and of a segment."""
FAR = 128
"""Characters at the beginning of a window that the far past is told apart by."""
D_MODEL, N_LAYERS, BATCH, SIZE = 64, 2, 4, 131_000
"""Width where it is not matched, and parameters of every model."""
RATES = (1.5e-3, 5e-3, 1.5e-2, 4.5e-2)
"""Learning rates: each is tried with one seed, the best on validation is taken."""
STREAMS = 8  # the test text is read in: few, so that hardly any window begins without a past
PAR = 0.01
"""Two losses are on par where they differ by no more of the larger."""
NAME = "tiny Shakespeare"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row: a layer with its options, and what is around it."""

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    conv_width: int = 0


def _of_segments(**options: Any) -> dict[str, Any]:
    return {"n_heads": 2, "segment": SEGMENT, **options}


XL, COMPRESSIVE, RECURRENT = "transformer_xl", "compressive_transformer", "block_recurrent"
RMT, INFINI, WINDOWED = "rmt", "infini_transformer", "attention, window"
MODELS: Mapping[str, Model] = {
    WINDOWED: Model(mixer="attention", options={"n_heads": 2, "window": SEGMENT}),
    XL: Model(mixer=XL, options=_of_segments()),
    COMPRESSIVE: Model(mixer=COMPRESSIVE, options=_of_segments(ratio=4)),
    RECURRENT: Model(mixer=RECURRENT, options=_of_segments(n_states=16)),
    RMT: Model(mixer=RMT, options=_of_segments(n_memory=8, d_inner=64)),
    INFINI: Model(mixer=INFINI, options=_of_segments()),
    "mingru": Model(mixer="mingru", options={"expansion": 2.0}, conv_width=4),
    "gla": Model(mixer="gla", options={"n_heads": 2}),
}
"""Layers of segments of one length, and three layers without segments."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim that one model has a smaller loss than another, or one on par with it."""

    one: str
    other: str
    said: str
    where: str
    on_par: bool = False

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.one} is {'on par with' if self.on_par else 'better than'} {self.other}"


CLAIMS = (
    Claim(
        one=XL,
        other=WINDOWED,
        said="1.06 against 1.11 bits, enwik8, of a 12-layer transformer that sees one segment",
        where="arXiv:1901.02860, table 2",
    ),
    Claim(
        one=COMPRESSIVE,
        other=XL,
        said="0.97 against 0.99 bits, enwik8; 17.1 against 18.3, WikiText-103",
        where="arXiv:1911.05507, and arXiv:1901.02860",
    ),
    Claim(
        one=RECURRENT,
        other=XL,
        said="better by a wide margin than one of long range, on books, papers and code",
        where="arXiv:2203.07852, abstract",
    ),
    Claim(
        one=RMT,
        other=XL,
        said="on par for smaller sizes of memory",
        where="arXiv:2207.06881, abstract",
        on_par=True,
    ),
    Claim(
        one=INFINI,
        other=XL,
        said="better on long books and papers, with a smaller memory",
        where="arXiv:2404.07143",
    ),
)
"""Comparisons of these layers in the papers."""

REMEMBER = {
    COMPRESSIVE: ("compressed rows extend the range", "arXiv:1911.05507"),
    RECURRENT: ("states carry what left the window", "arXiv:2203.07852"),
    RMT: ("memory carries over several segments", "arXiv:2207.06881"),
    INFINI: ("a memory of all segments before", "arXiv:2404.07143"),
}
"""Layers that can read characters before `FAR`, by construction, and the published words."""


class SegmentShakespeare(Reproduction):
    """Small language models on characters, which carry their state from window to window.

    Windows of 256 characters hold eight segments. Rows of a batch go on where they ended in the
    batch before, with the state and without its gradient, as their papers train these layers; all
    eight models do, at widths that give them the same number of parameters. Each has the best of
    four learning rates on validation. Every trained model is tested with the state kept and with it
    cleared at every window: the second half of a window tells what a model has of its state
    beyond what the window itself shows. Rows are shared between processes.

    Args:
        base: configuration of all runs in place of ours, at its own size.
        labels: of `MODELS`, in place of all.
        rates: learning rates, in place of `RATES`.
    """

    summary: ClassVar[str] = "layers of segments as language models on tiny Shakespeare"
    source: ClassVar[str] = (
        "what the papers of these layers say of them beside one another (arXiv ids in the table), "
        "all at larger sizes, on larger texts"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "two layers, 131,000 parameters, one pass of 980 batches of 4 windows; shows the order "
            "after short training on a megabyte of characters, of which little depends on more "
            "than a hundred before; 64 runs with five seeds, of about a minute each"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements; none at these sizes",
            ["claim", "published", "where"],
            [
                *([claim.text, claim.said, claim.where] for claim in CLAIMS),
                *([f"{label} has a long memory", *said] for label, said in REMEMBER.items()),
            ],
        ),
    )

    def __init__(
        self,
        base: Config | None = None,
        labels: Sequence[str] = tuple(MODELS),
        rates: Sequence[float] = RATES,
    ) -> None:
        self.base, self.labels, self.rates = base, labels, rates

    def run(self, setting: Setting) -> Findings:
        """Tune every model, train it with every seed, and test it both ways."""
        candidates = {
            label: with_rates(sized(self.base, label), self.rates) for label in self.labels
        }
        search = tuned(NAME, candidates, setting)
        rows = search.outcome.rows
        read = read_both_ways(rows, STREAMS)
        measures = measured_both_ways(rows, read, FAR)
        runs = Runs.of_page(setting.out, setting.scale, measures=measures)
        return Findings(
            tables=(losses(rows, read), table(search.outcome, {}), search.tried),
            comparable=(
                "the order after this training, and what the far past is worth to each; models, "
                "text and training are a thousand times smaller than those of the sources."
            ),
            complete=not search.outcome.problem,
            notes=(*NOTES, *_order(read), *problems(search.outcome)),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={"gain": figure(read), **curves([search.outcome])} if read else {},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Comparisons of the papers with the state kept, and what is beyond the window worth."""
        part, back = runs.part(NAME), f"what is {FAR} or more characters back helps"
        compared = [compare(part, c) for c in CLAIMS if {c.one, c.other} <= {*self.labels}]
        remembered = [
            kept_state(part, label, FAR, f"{label}: {back}", said)
            for label, (said, _) in REMEMBER.items()
            if label in self.labels
        ]
        return [*compared, *remembered]


NOTES = (
    CUT_NOTE,
    f"the test text is read in {STREAMS} streams in the first table, so its numbers differ from "
    "the test metric of the runs below, which use the batch of training.",
    f"a window of attention and a segment have {SEGMENT} characters. With two layers nothing from "
    f"more than {3 * SEGMENT - 1} characters back comes through windows or through "
    "Transformer-XL's memory of one segment, so in the second half of a window their two losses "
    "are one and the same.",
    f"on par: within {100 * PAR:g} %.",
    budget(RATES),
)


def config() -> Config:
    """Return the configuration that all models share."""
    base = small(WINDOW, BATCH * WINDOW, 1, D_MODEL, N_LAYERS)
    options = LMOptions(length=WINDOW, **CUT)
    return replace(base, task_options=options, train=replace(base.train, carry_state=True))


def sized(base: Config | None, label: str) -> Config:
    """The configuration of a model, at the width that gives it `SIZE` parameters.

    Args:
        base: what all share, at a width that is kept; None takes `config`.
        label: of `MODELS`.
    """
    model = MODELS[label]
    sized_config = with_model(
        base or config(),
        model.mixer,
        mixer_options=dict(model.options),
        conv_width=model.conv_width,
    )
    return match_parameters(sized_config, SIZE) if base is None else sized_config


def losses(rows: Sequence[Row], read: BothWays) -> Table:
    """Each model with the state kept and cleared, and what is beyond the window worth to it."""
    cells = []
    for row in rows:
        sizes = [f"{row.n_state:,}", f"{row.n_parameters:,}"]
        if (row.label, True) not in read:
            cells.append([row.label, "failed", *[""] * 5])
            continue
        both = [
            mean_of([whole(curve) for curve in read[row.label, carry].values()]).text
            for carry in (True, False)
        ]
        far = mean_of([1e3 * gain for gain in far_gains(read, row.label).values()])
        error_text = "" if len(read[row.label, True]) < 2 else f" ± {far.error:.2f}"
        cells.append([row.label, *both, f"{round(far.value, 2) + 0.0:.2f}{error_text}", *sizes])
    head = ["model", "state kept in the test", "cleared at every window"]
    gain = f"gain of keeping it from character {FAR} of a window on, in thousandths"
    title = "Test loss (nats per character), mean ± s.e."
    return Table(title, [*head, gain, "floats of state", "parameters"], cells)


def far_gains(read: BothWays, label: str) -> dict[int, float]:
    """By how much a kept state lowers the loss in the second half of a window, by seed."""
    carried, cleared = read[label, True], read[label, False]
    return {seed: whole(cleared[seed], FAR) - whole(carried[seed], FAR) for seed in carried}


def compare(part: Part, claim: Claim) -> Judged:
    """A claim of the papers, by the loss with the state kept."""
    labels, measure = (claim.one, claim.other), loss_from(1, True)
    if not claim.on_par:
        return lower_nats(part, *labels, claim.text, claim.said, measure=measure)
    judged = part.paired(
        claim.text, claim.said, "% of the larger loss", labels,
        lambda loss, rival: 100 * (rival - loss) / max(loss, rival), measure=measure,
    )  # fmt: skip
    within = 100 * PAR
    return judged._replace(
        within=within,
        held=tuple(abs(difference) <= within for difference in judged.differences),
        why_not=part.why_not(*labels) if judged.differences else NOT_KEPT,
    )


def _order(read: BothWays) -> list[str]:
    ours = {
        label: {seed: whole(curve) for seed, curve in seeds.items()}
        for (label, carry), seeds in read.items()
        if carry
    }
    return [f"smallest loss first: {groups(ours, False)}."] if len(ours) > 1 else []


SMALLEST_GAIN = 1e-4
"""Nats below which a gain is not drawn."""


def figure(read: BothWays) -> Any:
    """By how much a kept state lowers the loss, against the position in the window."""
    canvas = new_figure(7.2, 4.8)
    axes = canvas.subplots()
    labels = [label for label, carried in read if carried]
    looks = styles(labels)
    for label in labels:
        carried, cleared = read[label, True], read[label, False]
        places, gains = [], []
        for at, first in enumerate(next(iter(carried.values()))):
            gain = mean_of(
                [cleared[seed][at].loss - carried[seed][at].loss for seed in carried]
            ).value
            places.append((first.first * first.last) ** 0.5)
            gains.append(gain if gain >= SMALLEST_GAIN else float("nan"))
        axes.plot(places, gains, label=label, **looks[label])
    axes.set_yscale("log")
    ticks = [2**n for n in range(WINDOW.bit_length())]
    log_axis(axes, ticks, [f"{tick}" for tick in ticks])
    axes.set(
        xlabel=f"position in the window (characters); gains below {SMALLEST_GAIN:g} are left out"
    )
    axes.set(ylabel="gain of a kept state (nats per character)")
    axes.set(title=over_seeds(len(read[label, True]) for label in labels))
    axes.grid(alpha=0.3)
    legend_below(canvas, axes)
    return canvas
