"""The loss of eviction policies against the whole cache, with room for a part of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from linrnn import SequenceModel
from linrnn.compare import Row
from linrnn.reproductions import segment_recall
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Part, Runs, seed_by_seed
from linrnn.reproductions._page.verdict import Judged, less, margin
from linrnn.reproductions._runs.language import (
    CUT,
    CUT_NOTE,
    curves,
    mean_of,
    small,
    whole,
    with_model,
)
from linrnn.reproductions._runs.trained import problems, train
from linrnn.reproductions._runs.tuned import one_rate
from linrnn.tasks import Task
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config
from linrnn.train.figures import legend_below, log_axis, new_figure, over_seeds
from linrnn.train.model import build_model, load_model
from linrnn.train.positions import measure_positions
from linrnn.train.styles import styles

WINDOW, PARTS = 256, (32, 16, 8, 4, 2)
"""Characters of a window, trained on and read; and which part of it a cache has entries for."""
QUARTER = 4
POLICIES = ("window", "sinks", "h2o", "tova")
WHOLE = "the whole cache"
MARGIN = 0.01
"""A loss is near that of the whole cache where it is larger by no more of it."""
LEAST = 8  # part of the steps of recall that still has room for all pairs
ROWS = 64  # windows that are read at once
N_PAIRS = 4  # twice the entries that "sinks" keeps
TEXT, RECALL = "tiny Shakespeare", f"mqar, {N_PAIRS} pairs"

ValuesByPolicy = Mapping[tuple[str, int], Mapping[Path, float]]
"""By policy and part, what was measured of the run in each folder; `WHOLE` has the part 1, in which
every policy is the same."""


class CacheEviction(Reproduction):
    """Attention trained with its whole cache, and read with one that gives entries up.

    Nothing is trained for a policy: the same weights read the same test windows, each from an empty
    cache, step after step, with room for a part of the window. A small language model on characters
    stands for the large ones of the papers. Four pairs, queried in any of the eight
    segments after them, as in `segment-recall`, show whether the cache keeps what is needed later.

    Args:
        text, recall: configurations of the runs in place of ours.
        parts: in place of `PARTS`.
    """

    summary: ClassVar[str] = "what policies of eviction lose of attention's cache, by its size"
    source: ClassVar[str] = (
        "Oren et al. 2024, arXiv:2401.06104; Zhang et al. 2023, arXiv:2306.14048; Xiao et al. "
        "2023, arXiv:2309.17453: large language models, on long texts"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "two layers of 64 channels on tiny Shakespeare, one of 32 on recall; shows what "
            "policies lose of what so small a model has of its cache; three minutes of processor "
            "time a seed"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements; none at these sizes",
            ["policy", "published", "where"],
            [
                [
                    "tova",
                    "better than the other policies; nearly on par with the whole cache, in some "
                    "cases with an eighth of it",
                    "arXiv:2401.06104, abstract",
                ],
                [
                    "h2o",
                    "a small part of the tokens has most of the attention; with a fifth of the "
                    "cache as good as with all",
                    "arXiv:2306.14048",
                ],
                [
                    "sinks",
                    "a window alone fails on texts longer than the cache; with the first tokens "
                    "kept it largely recovers",
                    "arXiv:2309.17453, abstract",
                ],
            ],
        ),
    )

    def __init__(
        self,
        text: Config | None = None,
        recall: Config | None = None,
        parts: Sequence[int] = PARTS,
    ) -> None:
        self.text = text_config() if text is None else text
        self.recall = recall_config() if recall is None else recall
        self.parts = parts

    def run(self, setting: Setting) -> Findings:
        """Train both models with every seed, and read with every policy and size."""
        outcomes = [
            train(name, {name: config}, setting)
            for name, config in ((TEXT, self.text), (RECALL, self.recall))
        ]
        few = [part for part in self.parts if part <= LEAST]
        losses, right = (
            read_with_all(outcome.rows, parts, measure, setting.say)
            for outcome, parts, measure in zip(
                outcomes, (self.parts, few), (loss, far_recall), strict=True
            )
        )
        runs = Runs.of_page(setting.out, setting.scale, measures=_measures(losses, right))
        return Findings(
            runs=runs,
            tables=(
                _table(
                    "Test loss (nats per character) by the room of the cache, mean ± s.e.",
                    losses,
                    1.0,
                    ".3f",
                ),
                _table(
                    "The same above that of the whole cache, seed by seed (thousandths)",
                    above(losses),
                    1e3,
                    ".1f",
                ),
                _table(
                    f"Pairs recalled {_DISTANCE} segments later (%), mean ± s.e.",
                    right,
                    100.0,
                    ".1f",
                ),
                *(table(outcome, {}) for outcome in outcomes),
            ),
            comparable=(
                "policies with one another and with the whole cache, on models a hundred thousand "
                "times smaller than those of the sources."
            ),
            complete=not any(outcome.problem for outcome in outcomes),
            notes=(*NOTES, one_rate(outcomes), *problems(*outcomes)),
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={
                **({"policies": figure(losses, right)} if losses and right else {}),
                **curves(outcomes),
            },
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The papers' claims at a quarter of the cache, seed by seed."""
        return judged(runs.part(TEXT))


_DISTANCE = max(segment_recall.DISTANCES)
_SCALE = "with models a hundred thousand times smaller than the published ones"
NOTES = (
    CUT_NOTE,
    f"a cache of 1/{QUARTER} has room for {WINDOW // QUARTER} of {WINDOW} characters, the current "
    "one among them. Each window is read from an empty cache, so with room for all every policy is "
    "the whole cache. What is kept is turned by the place it was read at.",
    "sinks keeps the first four; h2o the newer half of its room and what had most attention in "
    "all; tova gives up what the current step looks at least. tova chooses for all heads together, "
    "h2o for each.",
    f"near the whole cache: a loss larger by no more than {100 * MARGIN:g} % of it. It says little "
    "of a policy where a window of that size is near too: then the model hardly looks further.",
    f"recall: {N_PAIRS} pairs fill the first {segment_recall.SEGMENT} of "
    f"{segment_recall.config().task_options.length} steps, blanks and questions come after; a "
    "cache has room for the same parts of these steps, the smallest for all pairs and the current "
    f"step. Guessing among the values of a sequence has {100 / N_PAIRS:g} %. Nothing tells a "
    "policy what will be asked; sinks keeps two of the pairs for the place they stand at.",
)


def text_config() -> Config:
    """The language model, with its whole cache."""
    base = small(WINDOW, 8 * WINDOW, 2, 64, 2)
    base = replace(base, task_options=LMOptions(length=WINDOW, **CUT))
    base = replace(base, optim=replace(base.optim, lr=5e-3))
    return with_model(base, "attention", mixer_options={"n_heads": 4}, conv_width=4)


def recall_config() -> Config:
    """The model that recalls pairs, with its whole cache."""
    base = segment_recall.config()
    options = replace(base.task_options, n_pairs=N_PAIRS, vocabulary=20)
    base = replace(base, task_options=options, optim=replace(base.optim, lr=5e-3))
    return with_model(base, "attention", mixer_options={"n_heads": 2})


def read_with_all(
    rows: Sequence[Row],
    parts: Sequence[int],
    measure: Callable[[SequenceModel, Task], float],
    say: Callable[[str], Any] = lambda line: None,
) -> ValuesByPolicy:
    """Measure every trained model with its whole cache, and with every policy and part of it.

    Args:
        rows: those of the one model; runs that failed are left out.
        parts: a part of 4 has room for a quarter of a sequence.
        measure: from a model and its task to a number.
        say: told after each run.
    """
    measured: dict[tuple[str, int], dict[Path, float]] = {}
    for row in rows:
        for folder in row.folders:
            if not (folder / "result.json").is_file():
                continue
            model, task, config = load_model(folder)
            measured.setdefault((WHOLE, 1), {})[folder] = measure(model, task)
            for policy in POLICIES:
                for part in parts:
                    limited = evicting(model, task, config, policy, task.sequence_length // part)
                    measured.setdefault((policy, part), {})[folder] = measure(limited, task)
            say(f"{row.label}: read seed {config.seed} with every policy")
    return measured


def _measures(*results: ValuesByPolicy) -> dict[Path, dict[str, float]]:
    """The same by folder, under the names of measures."""
    measures: dict[Path, dict[str, float]] = {}
    for values in results:
        for at, by_folder in values.items():
            for folder, value in by_folder.items():
                measures.setdefault(folder, {})[measure_name(*at)] = value
    return measures


def measure_name(policy: str, part: int) -> str:
    """The name of what was measured with a policy and so small a cache."""
    return f"{policy}, {_fraction(part)}"


def evicting(
    model: SequenceModel, task: Task, config: Config, policy: str, room: int
) -> SequenceModel:
    """Return the model with a cache of ``room`` steps, the current one included."""
    options = {**config.mixer_options, "window": room, "evict": policy}
    limited = build_model(replace(config, mixer_options=options), task)
    limited.load_state_dict(model.state_dict())
    return limited.eval()


def loss(model: SequenceModel, task: Task) -> float:
    """Nats per character of the test text, each window from an empty cache."""
    return whole(measure_positions(model, task, ROWS))


def far_recall(model: SequenceModel, task: Task) -> float:
    """The part of the farthest questions that is right."""
    return segment_recall.by_segment(model, task)[_DISTANCE]


def above(losses: ValuesByPolicy) -> ValuesByPolicy:
    """The increase of the loss over that with the whole cache, run by run."""
    return {
        at: {run: value - losses[WHOLE, 1][run] for run, value in by_run.items()}
        for at, by_run in losses.items()
        if at[0] != WHOLE
    }


def _table(title: str, results: ValuesByPolicy, scale: float, form: str) -> Table:
    parts = list(dict.fromkeys(part for policy, part in results if policy != WHOLE))
    parts += [1] if (WHOLE, 1) in results else []
    rows = []
    for policy in dict.fromkeys(policy for policy, _ in results):
        cells = [_cell(results.get((policy, part), {}), scale, form) for part in parts]
        rows.append([policy, *cells])
    return Table(title, ["policy", *(_fraction(part) for part in parts)], rows)


def _cell(by_run: Mapping[Path, float], scale: float, form: str) -> str:
    if not by_run:
        return ""
    mean = mean_of([scale * value for value in by_run.values()])
    return f"{mean.value:{form}}" + (f" ± {mean.error:{form}}" if len(by_run) > 1 else "")


def _fraction(part: int) -> str:
    return f"1/{part}" if part > 1 else "all"


def judged(part: Part) -> list[Judged]:
    """Judge the papers' claims at a quarter of the cache, seed by seed.

    Args:
        part: runs on the text.
    """

    def losses(policy: str, fraction: int = QUARTER) -> dict[int, float]:
        return part.values(TEXT, measure_name(policy, fraction))

    def room(full: float, limited: float) -> float:
        return 100 * (MARGIN - (limited - full) / full)

    verdicts = []
    for policy, published in (
        ("tova", "nearly on par, in some cases with an eighth"),
        ("h2o", "as good with a fifth"),
    ):
        margins = seed_by_seed(room, losses(WHOLE, 1), losses(policy))
        claim = f"{policy} at a quarter is near {WHOLE}"
        unit = f"% of the loss under the bound of {100 * MARGIN:g} %"
        verdicts.append(margin(claim, published, margins, unit=unit, scale=_SCALE))
    for better, worse, published in (
        ("tova", "window", "better than the other policies"),
        ("tova", "sinks", "better than the other policies"),
        ("tova", "h2o", "better than the other policies"),
        ("h2o", "window", "as good with a fifth as with all, the most recent alone not"),
        ("sinks", "window", "a window fails, with sinks it largely recovers"),
    ):
        claim = f"{better} at a quarter is better than {worse}"
        line = less(claim, published, losses(better), losses(worse))
        verdicts.append(line._replace(unit="nats per character", scale=_SCALE))
    return verdicts


def figure(losses: ValuesByPolicy, right: ValuesByPolicy) -> Any:
    """Draw the loss on the text and the share recalled against the size of the cache."""
    canvas = new_figure(9.0, 4.0)
    left, right_axes = canvas.subplots(1, 2)
    looks = styles(list(POLICIES))
    for axes, results, scale in ((left, above(losses), 1.0), (right_axes, right, 100.0)):
        parts = sorted({part for policy, part in results if policy != WHOLE}, reverse=True)
        for policy in POLICIES:
            means = [mean_of([scale * v for v in results[policy, p].values()]) for p in parts]
            bars = [0.0 if len(results[policy, parts[0]]) < 2 else mean.error for mean in means]
            places, values = [1 / part for part in parts], [mean.value for mean in means]
            axes.errorbar(places, values, yerr=bars, label=policy, capsize=3, **looks[policy])
        log_axis(axes, [1 / p for p in parts], [_fraction(p) for p in parts])
        axes.set_xlabel("cache size (share of the sequence)")
        axes.grid(alpha=0.3)
    left.set(ylabel=f"loss above {WHOLE}'s (nats per character)", title=TEXT)
    line: dict[str, Any] = {"color": "0.35", "linewidth": 1}
    left.axhline(0.0, linestyle="--", label=WHOLE, **line)
    full = 100 * mean_of([*right[WHOLE, 1].values()]).value
    right_axes.axhline(full, linestyle="--", label=WHOLE, **line)
    right_axes.axhline(100 / N_PAIRS, linestyle=":", label="guessing", **line)
    right_axes.set(ylabel="accuracy (%)", title=f"recall, {_DISTANCE} segments later")
    words = over_seeds(len(seeds) for seeds in losses.values())
    canvas.suptitle(f"{words}, with standard errors")
    legend_below(canvas, left, right_axes)
    return canvas
