"""Long sequences of the UEA archive, EigenWorms among them, pooled and split anew."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import check_in
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.labelled import Known
from linrnn.tasks._kinds.pooled import PooledSeries, Shape

_LEM = "Rusch et al. 2022, arXiv:2110.04744, its best run on another split"
_UNICORNN = "Rusch and Mishra 2021, arXiv:2103.05487, on another split"
_LINOSS = "Rusch and Rus 2025, arXiv:2410.03943, mean of five splits"
_SHAPES = {
    "EigenWorms": Shape(259, 17_984, 6, 5),
    "SelfRegulationSCP1": Shape(561, 896, 6, 2),
    "SelfRegulationSCP2": Shape(380, 1_152, 7, 2),
    "EthanolConcentration": Shape(524, 1_751, 3, 4),
    "Heartbeat": Shape(409, 405, 61, 2),
    "MotorImagery": Shape(378, 3_000, 64, 2),
}
_ACCURACIES = {
    "NRDE": (83.9, 80.9, 53.7, 25.3, 72.9, 47.0),
    "NCDE": (75.0, 79.8, 53.0, 29.9, 73.9, 49.5),
    "Log-NCDE": (85.6, 83.1, 53.7, 34.4, 75.2, 53.7),
    "LRU": (87.8, 82.6, 51.2, 21.5, 78.4, 48.4),
    "S5": (81.1, 89.9, 50.5, 24.1, 77.7, 47.7),
    "S6": (85.0, 82.8, 49.9, 26.4, 76.5, 51.3),
    "Mamba": (70.9, 80.7, 48.2, 27.9, 76.2, 47.7),
    "LinOSS-IM": (95.0, 87.8, 58.2, 29.9, 75.8, 60.0),
}

Set = Literal[
    "EigenWorms",
    "SelfRegulationSCP1",
    "SelfRegulationSCP2",
    "EthanolConcentration",
    "Heartbeat",
    "MotorImagery",
]


@dataclass(frozen=True, kw_only=True)
class UEAOptions:
    """Options of the task `uea`."""

    data: str = ""
    """Folder of the two .ts files. Default: the folder of the set's name in `LINRNN_DATA`."""
    set: Set = "EigenWorms"
    """Which set of the archive."""
    split_seed: int = 2345
    """Seed of the split; papers take 2345, 3456, 4567, 5678 and 6789."""
    check_counts: bool = True
    """Whether there must be the published numbers of sequences, steps, channels and classes."""


class UEA(PooledSeries):
    """Classify long sequences of the UEA archive; by default worms by how they move.

    EigenWorms has 259 sequences of 17,984 steps with 6 numbers each, of 5 kinds of worms. The files
    NAME_TRAIN.ts and NAME_TEST.ts are pooled, and what occurs twice is taken once. A seed splits
    them into 70 % for training, 15 % for validation and 15 % for testing; it is NumPy's stream, so
    the splits are not those of the papers. Channels are brought to mean 0 and variance 1 over the
    training part. Chance is one in as many as there are classes, until the data says how often the
    most frequent one of training is in the test part.

    Args:
        options: `UEAOptions`.
        known: what a run folder keeps of the data.

    Raises:
        UnknownNameError: no such set.
        ArgumentError: a negative split_seed.
    """

    Options: ClassVar[type] = UEAOptions
    summary: ClassVar[str] = "EigenWorms and other long sets of the UEA archive, files of your own"
    published: ClassVar[tuple[Published, ...]] = (
        *(
            Published(model=f"{model}, {name}", value=round(percent / 100, 4), source=_LINOSS)
            for model, row in _ACCURACIES.items()
            for name, percent in zip(_SHAPES, row, strict=True)
        ),
        Published(model="UnICORNN, EigenWorms", value=0.949, source=_UNICORNN),
        Published(model="LEM, EigenWorms", value=0.9744, source=_LEM),
    )

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        options = UEAOptions() if options is None else options
        check_in("UEA", "set", options.set, get_args(Set))
        super().__init__(options, known)
        read = known is not None or not options.check_counts
        self.chance = self.known.chance if read else 1 / self.d_output

    @property
    def name(self) -> str:
        """The name of the set."""
        return str(self.options.set)

    @property
    def shape(self) -> Shape:
        """Sequences, steps, channels and classes of the set."""
        return _SHAPES[self.options.set]
