"""Learning rules beside back-propagation: lags beyond a chunk, noise, and stacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import mean
from typing import Any, ClassVar

from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs, decades
from linrnn.reproductions._page.verdict import Judged, margin
from linrnn.reproductions._runs import rule_gradients as gradients
from linrnn.reproductions._runs.delays import Delay, solved_readout
from linrnn.reproductions._runs.lessons import BUDGET, Rule, errors, learning, tuned_all
from linrnn.reproductions._runs.lessons import Runs as RunsByRule
from linrnn.reproductions._runs.rule_gradients import Angles, Noise
from linrnn.train.figures import legend_below, new_figure, over_seeds
from linrnn.train.styles import styles

NOISE, ANGLES = "noise", "angles"
"""Parts of the page, beside the delays."""
_PLACES = {"last": -2, "first": 0, "all": -1}  # in the cosines of a stack
CHUNK, SHORT_CHUNK = 10, 2
SOLVED = 0.1
"""A delay is solved if the error is below this; 1 is that of answering 0."""
BIASED = 3.0
"""Standard errors of a mean that it may miss the true gradient by."""
SAME = 0.999
"""Cosine of two gradients that are the same but for rounding."""

_LRU: Mapping[str, Any] = {
    "mixer": "lru",
    "options": {"d_state": 32, "r_min": 0.5, "r_max": 0.9},
    "length": 50,
    "steps": 250,
    "rates": (0.01, 0.03, 0.1),
}
SHORT = Delay(name="lag 5", lag=5, **_LRU)
LONG = Delay(name="lag 20", lag=20, **_LRU)
DENSE = Delay(
    name="dense, lag 4",
    lag=4,
    length=12,
    mixer="tanh_rnn",
    width=16,
    steps=150,
    rates=(0.001, 0.003, 0.01, 0.03),
)
TRUNCATED, CHUNKED = f"tbptt, window {CHUNK}", f"chunked_rtrl, window {CHUNK}"
HELD = "bptt, recurrence held"
RULES: Mapping[str, Rule] = {
    "bptt": Rule(learner="bptt"),
    CHUNKED: Rule(learner="chunked_rtrl", options={"window": CHUNK}),
    TRUNCATED: Rule(learner="tbptt", options={"window": CHUNK}),
    HELD: Rule(learner="bptt", held=("nu_log", "theta_log", "gamma_log", "B")),
}
CUT = f"tbptt, window {SHORT_CHUNK}"
DENSE_RULES: Mapping[str, Rule] = {
    "bptt": Rule(learner="bptt"),
    "uoro": Rule(learner="uoro"),
    CUT: Rule(learner="tbptt", options={"window": SHORT_CHUNK}),
}
ONLINE, STEPWISE = "diagonal_rtrl", "tbptt, window 1"
LAYERED: Mapping[str, Rule] = {
    ONLINE: Rule(learner="diagonal_rtrl"),
    STEPWISE: Rule(learner="tbptt", options={"window": 1}),
}
PENALTIES = (0.0, 1e-6, 1e-3)

_ZUCCHET = "Zucchet et al. 2023, arXiv:2305.15947"
_ALGEBRA = "follows from the rule: Williams & Zipser 1989; Irie et al. 2023, arXiv:2305.19044"
_UORO = "Tallec & Ollivier 2018, arXiv:1702.05043"

Stacks = Mapping[tuple[tuple[float, float], int], Sequence[Angles]]
"""By ring and depth, one for each seed."""
Noises = Mapping[int, Sequence[Noise]]
"""By size, one for each seed."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything is computed."""

    delays: Sequence[Delay] = (SHORT, LONG, DENSE)
    depths: Sequence[int] = (1, 2, 3, 4)
    rings: Sequence[tuple[float, float]] = ((0.0, 0.99), (0.9, 0.99))
    looks: Sequence[int] = (0, 25, 50, 100, 150, 200)
    """Steps of training at which the deepest stacks are looked at; others at the ends alone."""
    cells: Sequence[int] = (3, 10, 30, 100)
    rows: int = 32
    draws: int = 24


class LearningRules(Reproduction):
    """Rules without a past, rules that truncate it and back-propagation, on delays of signs.

    A single LRU learns a lag shorter and one longer than the chunk it reads at once, with the
    gradient of each rule and one step of Adam a batch; the learning rate of each is the best of
    a few on validation with one seed. Dense tanh cells do so with `uoro`, whose single estimates
    are also set beside the true gradient by the size of the layer. In stacks of LRUs, which
    back-propagation trains, the angle between gradients is measured layer by layer.

    Args:
        size: of everything, in place of ours.
    """

    summary: ClassVar[str] = "learning rules beside back-propagation: lags, noise and depth"
    source: ClassVar[str] = (
        f"{_ZUCCHET}; {_UORO}; Irie, Gopalakrishnan & Schmidhuber 2023, arXiv:2305.19044: "
        "statements about the rules"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "one LRU of 32 modes, 16 dense cells, and stacks of one to four layers of width 16, on "
            "signs delayed by 4 to 20 steps; shows which rule can learn a lag, how noisy and how "
            "far off its gradient is at this size, not what a rule comes to on real data; "
            "six minutes of processor time with five seeds"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about the rules; no numbers are printed for our tasks",
            ["statement", "published", "where"],
            [
                ["traces make a chunk's gradient that of the whole", "yes", _ALGEBRA],
                ["lags beyond a truncation are learned with traces alone", "yes", _ALGEBRA],
                ["an estimate of rank one is unbiased, and noisy", "yes", _UORO],
                ["online gradients of stacks are near the true ones", "yes", _ZUCCHET],
                ["they are further off the deeper a stack", "yes", _ZUCCHET],
            ],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = Size() if size is None else size

    def run(self, setting: Setting) -> Findings:
        """Train single layers, count estimates, and follow the angles of stacks."""
        lessons = (
            (delay, DENSE_RULES if delay.mixer == "tanh_rnn" else RULES)
            for delay in self.size.delays
        )
        learned = tuned_all(lessons, setting)
        noises = self._noises(setting)
        stacks = self._stacks(setting)
        runs = Runs(
            (*learned.rows, *_rows_of_noise(noises, setting), *_rows_of_stacks(stacks, setting))
        )
        ends = (self.size.looks[0], self.size.looks[-1])
        return Findings(
            tables=(
                *(_errors(name, by_rule) for name, by_rule in learned.runs.items()),
                self._readouts(setting),
                _noise_table(noises),
                *(_angle_table(stacks, step) for step in ends),
                *learned.tried,
            ),
            comparable=(
                "whether the statements hold, at these sizes; tasks and models are smaller than "
                "the published ones, which were trained by the rules themselves in deep stacks."
            ),
            notes=NOTES,
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={
                "errors": learning(learned.runs, title="delays", lines={"solved": SOLVED}),
                "alignment": _by_layer(stacks, self.size, len(setting.seeds)),
            },
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The claims of lags, of noise and of stacks."""
        size = self.size
        parts = [runs.part(delay.name) for delay in size.delays]
        ends = (size.looks[0], size.looks[-1])
        return [
            *(line for part in parts for line in judged_lags(part)),
            *judged_noise(runs.part(NOISE), size.cells),
            *(
                line
                for step in ends
                for line in judged_stacks(runs.part(ANGLES), size.rings, size.depths, step)
            ),
        ]

    def _noises(self, setting: Setting) -> Noises:
        size, noises = self.size, {}
        for n in size.cells:
            noises[n] = [
                gradients.noise(n, seed, rows=size.rows, draws=size.draws) for seed in setting.seeds
            ]
            setting.say(f"uoro, {n} cells: {mean(run_noise.spread for run_noise in noises[n]):.3g}")
        return noises

    def _stacks(self, setting: Setting) -> Stacks:
        looks, stacks = self.size.looks, {}
        for ring in self.size.rings:
            for depth in self.size.depths:
                steps = looks if depth == max(self.size.depths) else (looks[0], looks[-1])
                stacks[ring, depth] = [
                    gradients.angles(depth, ring, LAYERED, steps, seed) for seed in setting.seeds
                ]
                setting.say(f"{_layers(depth)} in the ring {_ring(ring)}: angles")
        return stacks

    def _readouts(self, setting: Setting) -> Table:
        delays = [delay for delay in self.size.delays if delay.mixer == "lru"]
        rows = [
            [
                f"{delay.name}, penalty {penalty:g}",
                ", ".join(f"{solved_readout(delay, s, penalty):.3g}" for s in setting.seeds),
            ]
            for delay in delays
            for penalty in PENALTIES
        ]
        title = "The layer as it is drawn, its read-out solved for: error"
        return Table(title, ["delay", "by seed"], rows)


NOTES = (
    f"an error is a mean square, 1 that of answering 0, and a delay is solved below {SOLVED:g}. "
    "Inputs are independent signs; a batch has 16 sequences; every rule takes one step of Adam a "
    "batch, so that rules differ by their gradients alone. What passes the input on to the layer "
    "is held at one for all.",
    BUDGET,
    "recurrence held: eigenvalues, normalisation and the map in stay as drawn, and the read-out "
    "learns by the same steps. The table of read-outs that are solved for, for ever long "
    "sequences, says what such a layer could hold at all; 32 modes are a basis of 64 functions of "
    "time, far from orthogonal.",
    "unbiased: along the true gradient the mean of all estimates is as long as that, within "
    f"{BIASED:g} of its standard errors. One estimate is that of one sequence and one copy; the "
    "copies that an error of a tenth takes are the square of ten times the deviation.",
    "angles: cosines between the gradients of a mixer's parameters, or of all parameters, with "
    "those of back-propagation, which also trains the stacks, at a rate not tuned. They are "
    f"of {gradients.COMPARED} sequences of {gradients.LENGTH} steps with a lag of {gradients.LAG}.",
)


def _rows_of_noise(noises: Noises, setting: Setting) -> Iterator[Run]:
    for cells, by_seed in noises.items():
        for seed, noise in zip(setting.seeds, by_seed, strict=True):
            yield Run(
                scale=setting.scale, part=NOISE, row=_cells(cells), seed=seed,
                measures=noise._asdict(),
            )  # fmt: skip


def _rows_of_stacks(stacks: Stacks, setting: Setting) -> Iterator[Run]:
    for (ring, depth), by_seed in stacks.items():
        for seed, angles in zip(setting.seeds, by_seed, strict=True):
            measures = {
                _angle(label, step, which): cosines[i]
                for (label, step), cosines in angles.items()
                for which, i in _PLACES.items()
            }
            yield Run(
                scale=setting.scale, part=ANGLES, row=_stack(ring, depth), seed=seed,
                measures=measures,
            )  # fmt: skip


def _cells(cells: int) -> str:
    return safe_name(f"{cells} cells")


def _stack(ring: tuple[float, float], depth: int) -> str:
    return safe_name(f"{_layers(depth)}, ring {_ring(ring)}")


def _angle(label: str, step: int, which: str) -> str:
    """Name of a measure: the cosine of a rule's gradient and the true one."""
    return f"{label} {which} after {step}"


def judged_lags(part: Part) -> list[Judged]:
    """Claims of a delay."""
    name = part.name

    def better(rule: str, rival: str, where: str) -> Judged:
        words = f"{name}: {rule} has a smaller error than {rival}"
        return part.lower_loss(rule, rival, words, where)

    def solves(label: str, claim: bool, where: str) -> Judged:
        words = "solves it" if claim else "does not solve it"
        return part.under(label, SOLVED, f"{name}: {label} {words}", where, claim)

    if name == DENSE.name:
        return [
            better("uoro", CUT, _UORO),
            better("bptt", "uoro", f"noise: {_UORO}"),
            solves(CUT, False, "the lag is beyond the window"),
        ]
    beyond = name == LONG.name
    claims = [solves("bptt", True, "exact"), solves(CHUNKED, True, _ALGEBRA)]
    claims += [solves(TRUNCATED, not beyond, _ALGEBRA)]
    if beyond:
        claims += [solves(HELD, False, "ours"), better(CHUNKED, TRUNCATED, _ALGEBRA)]
        claims += [better(TRUNCATED, HELD, "ours: whether a truncated gradient helps at all")]
    return claims


def judged_noise(part: Part, sizes: Sequence[int]) -> list[Judged]:
    """Claims of `uoro`'s estimates."""
    labels = list(map(_cells, sizes))

    def claim(words: str, unit: str, effect: Callable[..., float], measure: str) -> Judged:
        words = f"uoro: {words}"
        return part.paired(words, _UORO, unit, labels, effect, measure=measure)

    errors, decades_of = "standard errors from the bound", "decades of the deviation"
    return [
        claim(
            "unbiased at every size", errors, lambda *misses: BIASED - max(map(abs, misses)), "miss"
        ),
        claim(
            "noise grows from each size to the next",
            decades_of,
            lambda *spreads: min(decades(a, b) for a, b in pairwise(spreads)),
            "spread",
        ),
        claim(
            f"more noise with {sizes[-1]} cells than with {sizes[0]}",
            decades_of,
            lambda *spreads: decades(spreads[0], spreads[-1]),
            "spread",
        ),
    ]


def judged_stacks(
    part: Part, rings: Sequence[tuple[float, float]], depths: Sequence[int], step: int
) -> list[Judged]:
    """Claims of gradients in stacks after some steps of training, by cosines."""
    when = "at first" if step == 0 else f"after {step} steps"
    verdicts = []
    for ring in rings:
        where = f"ring {_ring(ring)}, {when}"
        labels = [_stack(ring, depth) for depth in depths]
        last, first = (_angle(ONLINE, step, which) for which in ("last", "first"))
        exact = part.paired(
            f"{where}: the last layer's gradient is exact", _ZUCCHET, "of the cosine", labels,
            lambda *cosines: min(cosines) - SAME, measure=last,
        )  # fmt: skip
        further = part.paired(
            f"{where}: the first layer's is further off with each layer", _ZUCCHET,
            "of the cosine", labels,
            lambda *cosines: min(a - b for a, b in pairwise(cosines)), measure=first,
        )  # fmt: skip
        words = f"{where}: nearer than {STEPWISE}, first layer and whole"
        nearer = margin(words, _ZUCCHET, _lead(part, labels, step), unit="of the cosine")
        verdicts += [exact, further, nearer]
    return verdicts


def _lead(part: Part, labels: Sequence[str], step: int) -> dict[int, float]:
    """The least by which traces lead, of all stacks, in the first layer and in all, by seed."""
    leads: dict[int, float] = {}
    for label, which in product(labels, ("first", "all")):
        online, stepwise = (
            part.values(label, _angle(rule, step, which)) for rule in (ONLINE, STEPWISE)
        )
        for seed, cosine in online.items():
            gap = cosine - stepwise[seed]
            leads[seed] = min(gap, leads.get(seed, gap))
    return leads


def _errors(name: str, runs: RunsByRule) -> Table:
    rows = [
        [label, errors(seeds), f"{sum(run.error < SOLVED for run in seeds)} of {len(seeds)}"]
        for label, seeds in runs.items()
    ]
    return Table(f"{name}: error of the test", ["rule", "by seed", "solved"], rows)


def _noise_table(noises: Noises) -> Table:
    rows = []
    for size, seeds in noises.items():
        spreads = [noise.spread for noise in seeds]
        copies = mean(spreads) ** 2 * 100
        misses = ", ".join(f"{noise.miss:.2f}" for noise in seeds)
        shown = ", ".join(f"{spread:.3g}" for spread in spreads)
        errors = ", ".join(f"{noise.error:.2g}" for noise in seeds)
        rows.append([f"{size} cells", shown, f"{copies:,.0f}", misses, errors])
    head = ["dense tanh cells", "standard deviation of one estimate, by seed",
            "copies for an error of a tenth", "miss of the mean along it, in standard errors",
            "such an error, of the gradient's norm"]  # fmt: skip
    return Table("uoro beside the true gradient, relative to its norm", head, rows)


def _angle_table(stacks: Stacks, step: int) -> Table:
    rows = []
    for (ring, depth), seeds in stacks.items():
        cells = [
            f"{mean(angles[label, step][i] for angles in seeds):.3f}"
            for i in (-2, 0, -1)
            for label in LAYERED
        ]
        rows.append([f"{_layers(depth)}, ring {_ring(ring)}", *cells])
    head = [f"{part}, {label}" for part in ("last", "first", "all") for label in LAYERED]
    when = "at first" if step == 0 else f"after {step} steps of back-propagation"
    title = f"Cosine with the true gradient, {when}: mean over seeds, last and first mixer, all"
    return Table(title, ["stack", *head], rows)


def _layers(depth: int) -> str:
    return f"{depth} layer{'s' * (depth > 1)}"


def _ring(ring: tuple[float, float]) -> str:
    return f"[{ring[0]:g}, {ring[1]:g}]"


def _by_layer(stacks: Stacks, size: Size, seeds: int) -> Any:
    depth = max(size.depths)
    figure = new_figure(8.6, 3.1 * len(size.rings) + 0.4)
    panels = figure.subplots(len(size.rings), len(LAYERED), sharex=True, sharey=True, squeeze=False)
    names = [f"layer {i + 1}" for i in range(depth)]
    looks = styles(names)
    for row, ring in zip(panels, size.rings, strict=True):
        for axes, label in zip(row, LAYERED, strict=True):
            for i, name in enumerate(names):
                values = [
                    mean(angles[label, step][i] for angles in stacks[ring, depth])
                    for step in size.looks
                ]
                axes.plot(list(size.looks), values, label=name, **looks[name])
            axes.set(title=f"{label}, ring {_ring(ring)}")
            axes.grid(alpha=0.3)
        row[0].set(ylabel="cosine")
    for axes in panels[-1]:
        axes.set(xlabel="steps of back-propagation")
    figure.suptitle(f"cosine of approximate and true gradients of mixers, {over_seeds([seeds])}")
    legend_below(figure, *panels.flat)
    return figure
