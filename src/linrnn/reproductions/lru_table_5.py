"""Stability and normalisation on rings of initial eigenvalues."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.lru_columns import NOTES, SOURCE, Size, published, small
from linrnn.reproductions._runs.trained import Column, in_order, orders, train, with_mixer
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.train import Config

CPU = Size(
    task_options=SCIFAROptions(rows=True, train_images=9_000),
    d_model=64,
    d_state=64,
    n_layers=4,
    epochs=10,
    lr=4e-3,
)
"""Scaled-down size of colour sCIFAR at the scale "cpu"."""

Rings = Sequence[tuple[float, float]]

R_MIN, R_MAX = (0.0, 0.5, 0.9), (0.9, 0.99, 0.999)
FULL: Rings = tuple((low, high) for high, low in product(R_MAX, R_MIN))
CORNERS: Rings = ((0.0, 0.9), (0.9, 0.9), (0.0, 0.999), (0.9, 0.999))
"""Rings of the scales "paper" and "cpu"."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "no stability": {"parametrisation": "exponential", "gamma": False},
    "stable": {"parametrisation": "linear_phase", "gamma": False},
    "stable + γ": {"parametrisation": "linear_phase"},
}
"""Options of `linrnn.mixers.LRU`."""

_GAP = 1e-6  # our ring must have a width; the paper's may be a circle

# rows of r_max, of (mean, standard error) for each r_min
_PRINTED = {
    "no stability": (
        ((87.6, 0.4), (87.8, 0.1), (87.9, 0.2)),
        ((83.8, 0.9), (85.8, 1.2), (81.9, 3.8)),
        ((83.9, 0.2), (84.8, 0.4), (84.8, 0.8)),
    ),
    "stable": (
        ((86.2, 0.2), (86.6, 0.3), (87.3, 0.1)),
        ((87.8, 0.2), (87.7, 0.1), (88.1, 0.0)),
        ((87.4, 0.2), (87.4, 0.1), (87.5, 0.4)),
    ),
    "stable + γ": (
        ((86.4, 0.1), (86.5, 0.1), (88.3, 0.1)),
        ((88.1, 0.1), (88.4, 0.1), (89.0, 0.2)),
        ((88.1, 0.1), (88.6, 0.0), (89.0, 0.1)),
    ),
}


def label(variant: str, ring: tuple[float, float]) -> str:
    """Return the label of a row: a variant on a ring.

    Example:
        >>> label("stable", (0.0, 0.9))
        'stable, ring [0, 0.9]'
    """
    return f"{variant}, ring [{ring[0]:g}, {ring[1]:g}]"


PRINTED = {
    label(variant, (low, high)): Quoted(*_PRINTED[variant][i][k])
    for variant in VARIANTS
    for i, high in enumerate(R_MAX)
    for k, low in enumerate(R_MIN)
}
"""Accuracy on sCIFAR in per cent and its standard error, by row."""


class LRUTable5(Reproduction):
    """The effect of a stable parametrisation and a normalised input, ring by ring.

    Without stability, training can carry an eigenvalue that starts near the unit circle out of it;
    without gamma, the state of slow modes is large at the start.

    Args:
        column: size to run in place of that of the scale.
        rings: initial r_min and r_max to run in place of those of the scale.
    """

    summary: ClassVar[str] = "the LRU on rings of eigenvalues, with and without stability and gamma"
    source: ClassVar[str] = f"{SOURCE}, Table 5"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "the four corners of the grid, narrow models, a part of colour CIFAR-10 read by rows; "
            "shows that every variant trains and how they order at 32 steps, where memory is not "
            "needed for long; not the accuracies, nor what outer rings do at length 1,024; 16 "
            "minutes of processor time a seed"
        ),
        "paper": (
            "the whole grid with the hyperparameters of Table 9; shows the numbers themselves. "
            "Needs a GPU: at the LRU's steps a second on an A100 (the paper's Table 4), one seed "
            "takes 85 hours"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = tuple(
        Table(
            f"sCIFAR, {variant}: test accuracy (%) ± standard error",
            ["", *(f"r_min {low:g}" for low in R_MIN)],
            [
                [f"r_max {high:g}", *(PRINTED[label(variant, (low, high))].text for low in R_MIN)]
                for high in R_MAX
            ],
        )
        for variant in VARIANTS
    )

    def __init__(self, column: Column | None = None, rings: Rings | None = None) -> None:
        self.column, self.rings = column, rings

    def run(self, setting: Setting) -> Findings:
        """Train three variants on every ring."""
        full_size = setting.scale == "paper"
        column = self._column(setting.scale)
        rings = self.rings or (FULL if full_size else CORNERS)
        outcome = train(column, _rows(column.config, rings), setting)
        page = findings([outcome], {column.name: PRINTED}, notes=(*NOTES, *_CHOICES))
        return replace(page, verdicts=orders(self, setting))

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The printed order of all variants on all rings."""
        column = self._column(scale)
        return in_order(runs, column, {column.name: PRINTED})

    def _column(self, scale: str) -> Column:
        return self.column or (published("scifar") if scale == "paper" else small("scifar", CPU))


def _rows(base: Config, rings: Rings) -> dict[str, Config]:
    configs = {}
    for variant, (low, high) in product(VARIANTS, rings):
        ring = {"r_min": min(low, high - _GAP), "r_max": high}
        options = {**VARIANTS[variant], **ring}
        configs[label(variant, (low, high))] = with_mixer(base, "lru", options)
    return configs


_CHOICES = (
    "the published table was made at the learning rate 0.004. Stable: exp(-exp(nu_log) + i theta); "
    "no stability: exp(-nu + i theta); all three learn the phase itself.",
    f"where r_min equals r_max, our r_min is {_GAP:g} smaller.",
    "a run whose numbers overflow counts as failed and is not in the mean.",
)
