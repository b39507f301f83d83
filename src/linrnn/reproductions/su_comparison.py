"""Gated attention unit, softmax attention, RWKV, LRU and SLRU as language models of one size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from linrnn.compare.match import count_parameters, match_parameters
from linrnn.compare.tune import with_rates
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import table
from linrnn.reproductions._page.runs import Part, Runs, reduction
from linrnn.reproductions._page.verdict import Judged, groups, in_words
from linrnn.reproductions._runs.language import (
    TEXT_NOTE,
    Mean,
    curves,
    longer_windows,
    losses_by_row,
    lower_nats,
    small,
    test_nats,
    with_model,
)
from linrnn.reproductions._runs.trained import Outcome, problems
from linrnn.reproductions._runs.tuned import Tuned, budget, tuned
from linrnn.train import Config
from linrnn.train.figures import metric_against_length, over_seeds

ORDER = ("GAU", "SA", "RWKV", "LRU", "SLRU")
LENGTHS = (128, 512)
RATES = (0.002, 0.006, 0.02, 0.06)
"""Learning rates that are tried."""

PARAMETERS = 100e6
"""Size of a published model, about."""
D_MODEL, N_LAYERS, EPOCHS, BATCH_TOKENS = 96, 3, 2, 4096


class SuComparison(Reproduction):
    """Whether the complex LRU beats a real one, and whether longer windows help a recurrence.

    The mixer of a Transformer is replaced, and nothing else; widths are chosen so that all models
    have the parameters of the one with softmax attention, within 3 %. A gated attention unit is
    mixer and MLP in one, so that model has twice the layers and no MLP. RWKV is its mixer alone:
    no channel mixing, no token shift. Each model has the best of some learning rates at each
    length.

    Args:
        lengths: training windows in place of 128 and 512.
        base: a function from a length to the shared configuration, in place of ours.
        rates: to try in place of `RATES`.
    """

    summary: ClassVar[str] = "GAU, attention, RWKV, LRU and SLRU as language models of one size"
    source: ClassVar[str] = "Su 2023, blog post on the LRU paper (9554), language models"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "some 0.4 million parameters on a megabyte of Shakespeare, where the source has about "
            "100 million; shows an order and the sign of what longer windows bring, at this size "
            "alone; half an hour of processor time a seed, and two hours for tuning"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Training loss, from curves; no numbers are printed",
            ["claim", "published"],
            [
                ["order at length 128, best first", " > ".join(ORDER)],
                ["order at length 512, best first", " > ".join(ORDER)],
                ["from 128 to 512", "attention improves, the recurrences get worse"],
            ],
        ),
    )

    def __init__(
        self,
        lengths: Sequence[int] = LENGTHS,
        base: Any = None,
        rates: Sequence[float] = RATES,
    ) -> None:
        self.lengths, self.base, self.rates = lengths, base or base_config, rates

    def run(self, setting: Setting) -> Findings:
        """Tune every model at every length, then train it with every seed."""
        searches = [self._tuned(length, setting) for length in self.lengths]
        outcomes = [search.outcome for search in searches]
        runs = Runs.of_page(setting.out, setting.scale)
        by_seed = {n: losses_by_row(runs.part(_part(n)), ORDER) for n in self.lengths}
        losses = {n: _losses(o) for n, o in zip(self.lengths, outcomes, strict=True)}
        return Findings(
            tables=(_verdict(losses, by_seed), _table(losses), *_tables(searches)),
            comparable=(
                "the order of the models and the sign of the change with the length, and only as "
                "far as every seed says so. The losses of the source are of training, ours of the "
                "test; the models are some 250 times smaller than published, the text is small, "
                "and the optimiser, norms and initialisation are not those of the source (Tiger, "
                "DeepNorm)."
            ),
            notes=(
                TEXT_NOTE,
                "a model is tested on windows of the length it was trained on; all lengths have "
                "the same tokens in a batch and the same number of updates.",
                budget(self.rates),
                *problems(*outcomes),
            ),
            complete=not any(outcome.problem for outcome in outcomes),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures=_figure(losses, len(setting.seeds)) | curves(outcomes),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The published order at each length, and what longer windows change."""
        ours = max((run.parameters for run in runs.rows), default=0)
        words = reduction({"parameters": (ours, PARAMETERS)})
        parts = {length: runs.part(_part(length), words) for length in self.lengths}
        orders = [judged for part in parts.values() for judged in _in_order(part)]
        return [*orders, *_changes(parts)]

    def _tuned(self, length: int, setting: Setting) -> Tuned:
        candidates = {
            label: with_rates(config, self.rates)
            for label, config in rows(self.base(length)).items()
        }
        return tuned(_part(length), candidates, setting)


def _part(length: int) -> str:
    return f"length {length}"


def base_config(length: int) -> Config:
    """Return the configuration that all models share."""
    return small(length, BATCH_TOKENS, EPOCHS, D_MODEL, N_LAYERS)


def rows(base: Config) -> dict[str, Config]:
    """The five models, with the parameters of the one with softmax attention."""
    attention = with_model(base, "attention", mixer_options={"n_heads": 4})
    gau = with_model(
        base,
        "gau",
        block="bare",
        n_layers=2 * base.model.n_layers,
        mixer_options={"init": "published"},
    )
    rivals = {
        "GAU": gau,
        "RWKV": with_model(base, "rwkv4", mixer_options={"token_shift": False}),
        "LRU": with_model(base, "lru"),
        "SLRU": with_model(base, "slru"),
    }
    target = count_parameters(attention)
    matched = {name: match_parameters(config, target) for name, config in rivals.items()}
    return {name: attention if name == "SA" else matched[name] for name in ORDER}


def _tables(searches: Sequence[Tuned]) -> list[Table]:
    """Return two tables for each length: its runs, and the rates tried."""
    return [
        page_table
        for search in searches
        for page_table in (table(search.outcome, {}), search.tried)
    ]


def _losses(outcome: Outcome) -> dict[str, Mean]:
    return {row.label: loss for row in outcome.rows if (loss := test_nats(row)) is not None}


BySeed = Mapping[str, Mapping[int, float]]
"""Losses of each model."""


def _in_order(part: Part) -> list[Judged]:
    return [
        lower_nats(part, better, worse, f"{part.name}: {better} is better than {worse}", "order")
        for better, worse in in_words(ORDER)
    ]


def _changes(parts: Mapping[int, Part]) -> list[Judged]:
    """Claims of the longest windows beside the shortest.

    Args:
        parts: by length.
    """
    first, last = min(parts), max(parts)
    ends, verdicts = (parts[first], parts[last]), []
    for name in ORDER:
        word = "better" if name in GAINS else "worse"
        claim = f"{name} is {word} at length {last} than at {first}"
        verdicts.append(longer_windows(name, ends, claim, word, gains=name in GAINS))
    return verdicts


GAINS = ("GAU", "SA")
"""Said to gain from longer windows; the others are said to lose."""


def _verdict(losses: Mapping[int, Mapping[str, Mean]], by_seed: Mapping[int, BySeed]) -> Table:
    """Published order and ours, length by length, and what the longest window changes."""
    cells = [
        [
            f"order at length {length}, best first",
            " > ".join(ORDER),
            groups(by_seed[length], False) or "not run",
        ]
        for length in losses
    ]
    first, last = min(losses), max(losses)
    ends = {n: {str(at): by_seed[at].get(n, {}) for at in (first, last)} for n in ORDER}
    ways = {n: groups(losses_of_ends, False) for n, losses_of_ends in ends.items()}
    directions = {"better": f"{last} > {first}", "worse": f"{first} > {last}"}
    named = {word: [n for n in ORDER if ways[n] == way] for word, way in directions.items()}
    named["open"] = [n for n in ORDER if n not in named["better"] + named["worse"]]
    summary = "; ".join(f"{word}: {', '.join(names) or 'none'}" for word, names in named.items())
    claim = "better: GAU, SA; worse: RWKV, LRU, SLRU"
    return Table(
        "Claims; > and better or worse of ours: with every seed",
        ["claim", "published", "ours"],
        [*cells, [f"from {first} to {last}", claim, summary]],
    )


def _change(losses: Mapping[int, Mapping[str, Mean]], name: str) -> float:
    """Return the change in loss from the shortest window to the longest, NaN if one is missing."""
    first, last = losses[min(losses)].get(name), losses[max(losses)].get(name)
    return last.value - first.value if first and last else math.nan


def _signed(change: float) -> str:
    return "" if math.isnan(change) else f"{round(change, 3) + 0.0:+.3f}"  # no -0.000


def _table(losses: Mapping[int, Mapping[str, Mean]]) -> Table:
    cells = []
    for name in ORDER:
        means = [losses[length].get(name) for length in losses]
        cells.append(
            [name, *(m.text if m else "not run" for m in means), _signed(_change(losses, name))]
        )
    head = ["model", *(f"length {length}" for length in losses), "change"]
    return Table("Test loss (nats per character), mean ± s.e.", head, cells)


def _figure(losses: Mapping[int, Mapping[str, Mean]], seeds: int) -> dict[str, Any]:
    series = {
        name: [(n, means[name].value, means[name].error) for n, means in losses.items()
               if name in means]
        for name in ORDER
    }  # fmt: skip
    lines = {name: points for name, points in series.items() if points}
    if not lines:
        return {}
    title = f"Tested at the length of training: {over_seeds([seeds])}"
    figure = metric_against_length(lines, metric="loss (nats per character)", title=title)
    return {"lengths": figure}
