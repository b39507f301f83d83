"""Which recurrences can choose what to remember."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from linrnn import recipes
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.selective_copying import NOTES, SOURCE, at_scale, column
from linrnn.reproductions._runs.trained import Column, in_order, orders, train, with_mixer
from linrnn.train import Config

_QUOTED_FROM = "Gu and Dao 2023, arXiv:2312.00752"

PRINTED = {
    "S4, no gate": Quoted(18.3),
    "H3": Quoted(57.0),
    "Mamba": Quoted(99.8),
    "minGRU": Quoted(99.5, 0.2),
    "minLSTM": Quoted(96.0, 2.8),
}
"""Accuracy in per cent, and its standard deviation where one is printed, of the rows we have."""

AT_CPU = ("S4, no gate", "LRU", "minGRU")
"""Rows of the scale "cpu": two of fixed decays, and one whose decays follow the input."""

_QUOTED_ROWS = {
    "S4 in a Mamba block": Quoted(56.4),
    "Hyena in an H3 block": Quoted(30.1),
    "Hyena in a Mamba block": Quoted(28.4),
    "S6, no gate": Quoted(97.0),
    "S6 in an H3 block": Quoted(99.7),
}


class MinRNNTable2(Reproduction):
    """Selective copying by recurrences with fixed decays and with decays that follow the input.

    S4D, the LRU and H3 forget at a fixed pace; H3 multiplies by its input before and after.
    In Mamba, minGRU and minLSTM what is read decides what is kept.

    Args:
        column: the task to run in place of that of the scale.
        rows: configurations to run, by label, in place of those of the scale.
    """

    summary: ClassVar[str] = "selective copying by mixer: S4D, LRU, H3, Mamba, minGRU, minLSTM"
    source: ClassVar[str] = (
        f"{SOURCE}, Table 2, the rows of other models quoted from {_QUOTED_FROM}"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "three of the mixers, shorter sequences, fewer of them and an expansion of 2; shows "
            "which solve the task and which do not, not the accuracies at length 4,096"
        ),
        "paper": ("length 4,096, 400,000 batches of 64; shows the numbers themselves, needs a GPU"),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Accuracy on selective copying (%), ± standard deviation where printed",
            ["model", "accuracy"],
            [[label, number.text] for label, number in {**PRINTED, **_QUOTED_ROWS}.items()],
        ),
    )

    def __init__(
        self, column: Column | None = None, rows: Mapping[str, Config] | None = None
    ) -> None:
        self.column, self.rows = column, rows

    def run(self, setting: Setting) -> Findings:
        """Train every mixer."""
        chosen = self.column or column(setting.scale)
        outcome = train(chosen, self.rows or models(setting.scale), setting)
        page = findings([outcome], {chosen.name: PRINTED}, notes=(*NOTES, *_MODELS))
        return replace(page, verdicts=orders(self, setting))

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The printed order of the mixers."""
        chosen = self.column or column(scale)
        return in_order(runs, chosen, {chosen.name: PRINTED})


def models(scale: str) -> dict[str, Config]:
    """The configuration of every row at a scale."""
    mamba = recipes.load("selective_copy_mamba", "paper").config
    mingru = recipes.load("selective_copy", "paper").config
    glu: Any = replace(mamba.model, block="glu")
    configs = {
        "S4, no gate": with_mixer(mamba, "s4d", {"project": True}),
        "LRU": replace(with_mixer(mamba, "lru", {"d_state": 256}), model=glu),
        "H3": with_mixer(mamba, "h3"),
        "Mamba": mamba,
        "minGRU": mingru,
        "minLSTM": replace(mingru, mixer="minlstm"),
    }
    if scale == "paper":
        return configs
    return {label: at_scale(configs[label], scale) for label in AT_CPU}


_MODELS = (
    "layers as published: 2 of width 64 for Mamba's paper, from which the first rows are quoted, 3 "
    "for minGRU and minLSTM; parameters are not matched, as they were not in the papers.",
    "S4D with a linear layer after it replaces S4. The LRU, in the block of the LRU paper with "
    "256 modes, is not in the published table.",
)
