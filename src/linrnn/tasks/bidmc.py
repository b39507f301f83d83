"""BIDMC: heart rate, breaths or oxygen in the blood, from two signals at a bed."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import check_in
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.labelled import Known
from linrnn.tasks._kinds.pooled import PooledSeries, Shape

_S4 = "public code of Gu, Goel and Re 2022, arXiv:2111.00396, as arXiv:2209.12951 quotes it"
_UNICORNN = "Rusch and Mishra 2021, arXiv:2103.05487"
_LEM = "Rusch et al. 2022, arXiv:2110.04744"
_ERRORS = (
    ("S4", "HR", 0.332, _S4),
    ("S4", "RR", 0.247, _S4),
    ("S4", "SpO2", 0.090, _S4),
    ("UnICORNN", "HR", 1.31, _UNICORNN),
    ("UnICORNN", "RR", 1.00, _UNICORNN),
    ("LEM", "HR", 0.854, _LEM),
)

Target = Literal["HR", "RR", "SpO2"]


@dataclass(frozen=True, kw_only=True)
class BIDMCOptions:
    """Options of the task `bidmc`."""

    data: str = ""
    """Folder of the two .ts files. Default: the folder BIDMC32HR and so on of `LINRNN_DATA`."""
    target: Target = "HR"
    """The rate of the heart (HR) or of breaths (RR) a minute, or the oxygen in percent (SpO2)."""
    split_seed: int = 0
    """Seed of the split."""
    check_counts: bool = True
    """Whether there must be the published numbers of sequences, steps and channels."""


class BIDMC(PooledSeries):
    """Predict a vital sign from 32 seconds of a light sensor at the finger and an ECG, at 125 Hz.

    7,949 sequences have 4,000 steps of 2 signals. The files BIDMC32HR_TRAIN.ts and _TEST.ts (or RR,
    SpO2) are pooled, and what occurs twice is taken once. A seed splits them into 70 % for
    training, 15 % for validation and 15 % for testing, so sequences of one patient are in all of
    them, as in the published numbers.

    Signals and targets are brought to mean 0 and variance 1 over the training part. The metric is
    the mean squared error in the units of the target; papers print its root. Chance is that of the
    training mean in the test part; before the data is read it is a placeholder.

    Args:
        options: `BIDMCOptions`.
        known: what a run folder keeps of the data.

    Raises:
        UnknownNameError: no such target.
        ArgumentError: a negative split_seed.

    Reference:
        Pimentel et al. 2017; Tan et al. 2020, arXiv:2006.10996, an archive of regression.
    """

    Options: ClassVar[type] = BIDMCOptions
    summary: ClassVar[str] = "heart rate and other vital signs from 4,000 steps, files of your own"
    metric: ClassVar[str] = "mse"
    higher_is_better: ClassVar[bool] = False
    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    loss_name: ClassVar[str] = "mean squared error"
    regression: ClassVar[bool] = True
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(
            model=f"{model}, {target}, root mean squared error {error}",
            value=round(error**2, 4),
            source=source,
        )
        for model, target, error, source in _ERRORS
    )

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        options = BIDMCOptions() if options is None else options
        check_in("BIDMC", "target", options.target, get_args(Target))
        super().__init__(options, known)
        self.chance = 1.0
        if known is not None or not options.check_counts:
            self.chance = self.known.chance * self.known.asked[1] ** 2

    @property
    def name(self) -> str:
        """The name of the files."""
        return f"BIDMC32{self.options.target}"

    @property
    def shape(self) -> Shape:
        """Sequences, steps and channels."""
        return Shape(7_949, 4_000, 2, 0)
