"""S4 and S4D on Long Range Arena as in their public code, one row a task, two recipes a row."""

from dataclasses import dataclass
from typing import Any

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import IMDB, NOT_RUN
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

SOURCES = {
    "s4d": "public code of Gu et al. 2022, arXiv:2206.11893, its LRA experiments with S4D-LegS",
    "s4": "public code of Gu et al. 2022, arXiv:2111.00396, its LRA experiments with S4-LegS",
}

_SSM_LR = 1e-3
_DEPARTURES = (
    "The cosine ends with the last epoch, each direction has its own skip D, and biases and "
    "norms have no weight decay."
)
_ONE_SYSTEM = "The public code has one A and B for all channels here; ours has them for each."
_FAST_DT = "Its dt learns at the full rate here, ours at the recurrence's."


@dataclass(frozen=True, kw_only=True)
class Row:
    """A task in the public configurations."""

    width: int = 256
    """Channels."""
    d_state: int
    """Size of a channel's real system."""
    lr: float = 0.01
    """Learning rate outside the systems."""
    batch_size: int
    """Sequences in a batch."""
    dropout: float = 0.0
    """Probability."""
    epochs: int
    """Passes through the training data."""
    prenorm: bool = True
    """Normalise before the mixer."""
    dt_min: float = 1e-3
    """Smallest initial step size; the largest is 0.1."""
    accuracy: float
    """Accuracy of S4D-LegS."""
    s4: float
    """Accuracy of S4-LegS."""
    one_system: bool = False
    """A and B are the same for all channels."""
    fast_dt: bool = False
    """The step sizes learn at the full rate."""

    def departures(self, mixer: str) -> str:
        """Where our configuration of this row differs from the public one."""
        several = self.one_system and mixer == "s4"
        parts = (_DEPARTURES, _ONE_SYSTEM * several, _FAST_DT * self.fast_dt)
        return " ".join(filter(None, parts))


_SHARED = {"one_system": True, "fast_dt": True}
TABLE = {
    "listops": Row(
        d_state=4, batch_size=32, epochs=40, prenorm=False, accuracy=0.6047, s4=0.5960, **_SHARED
    ),
    "imdb": Row(d_state=4, batch_size=16, epochs=32, accuracy=0.8618, s4=0.8682, **_SHARED),
    "retrieval": Row(d_state=4, batch_size=64, epochs=20, accuracy=0.8946, s4=0.9090, **_SHARED),
    "scifar": Row(
        width=512,
        d_state=64,
        batch_size=50,
        dropout=0.1,
        epochs=200,
        prenorm=False,
        accuracy=0.8819,
        s4=0.8865,
        one_system=True,
    ),
    "pathfinder": Row(d_state=64, lr=0.004, batch_size=64, epochs=200, accuracy=0.9306, s4=0.9420),
    "path_x": Row(
        d_state=64, lr=0.001, batch_size=16, epochs=50, dt_min=1e-4, accuracy=0.9195, s4=0.9635
    ),
}
"""By our name of the task; "scifar" is the grey one. All have 6 layers and weight decay 0.05."""


RECIPES = {
    "imdb_s4": "Six S4 layers on the task `imdb`, as in the public configurations.",
    "imdb_s4d": "Six S4D layers on the task `imdb`, as in the public configurations.",
    "listops_s4": "Six S4 layers on the task `listops`, as in the public configurations.",
    "listops_s4d": "Six S4D layers on the task `listops`, as in the public configurations.",
    "path_x_s4": "Six S4 layers on the task `path_x`, as in the public configurations.",
    "path_x_s4d": "Six S4D layers on the task `path_x`, as in the public configurations.",
    "pathfinder_s4": "Six S4 layers on the task `pathfinder`, as in the public configurations.",
    "pathfinder_s4d": "Six S4D layers on the task `pathfinder`, as in the public configurations.",
    "retrieval_s4": "Six S4 layers on the task `retrieval`, as in the public configurations.",
    "retrieval_s4d": "Six S4D layers on the task `retrieval`, as in the public configurations.",
    "scifar_grey_s4": "Six S4 layers on grey `scifar`, LRA Image, as in the public code.",
    "scifar_grey_s4d": "Six S4D layers on grey `scifar`, LRA Image, as in the public code.",
}


def paper(name: str) -> Recipe:
    """The recipe of a name in `RECIPES`."""
    task, _, mixer = name.replace("_grey", "").rpartition("_")
    row, departures = TABLE[task], IMDB if task == "imdb" else ""
    return Recipe(
        config=_config(task, mixer, row),
        summary=f"six {mixer.upper()} layers of width {row.width}, {row.epochs} epochs as "
        "published",
        shows=NOT_RUN,
        expected=row.accuracy if mixer == "s4d" else row.s4,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source=SOURCES[mixer],
        departures=f"{row.departures(mixer)} {departures}".strip(),
    )


def _config(task: str, mixer: str, row: Row) -> Config:
    options: dict[str, Any] = {"d_state": row.d_state, "dt_min": row.dt_min}
    if mixer == "s4d":
        options |= {"init": "legs", "separate_B": True}
        options |= {"n_ssm": 1} if row.one_system else {}
    return Config(
        task=task,
        mixer=mixer,
        mixer_options=options,
        task_options=SCIFAROptions(grey=True) if task == "scifar" else None,
        model=ModelConfig(
            d_model=row.width,
            n_layers=6,
            norm="batch",
            prenorm=row.prenorm,
            bidirectional=True,
            dropout=row.dropout,
            pool="mean",
        ),
        optim=OptimConfig(
            lr=row.lr,
            recurrent_lr_factor=_SSM_LR / row.lr,
            weight_decay=0.05,
            warmup_fraction=0.1,
            clip=0.0,
        ),
        train=TrainConfig(epochs=row.epochs, batch_size=row.batch_size),
    )
