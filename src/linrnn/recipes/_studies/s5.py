"""S5 as its public scripts train it, one row a task, and a row as a recipe."""

from dataclasses import dataclass
from typing import Any, Literal

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import IMDB, NOT_RUN
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

SOURCE = "public scripts of Smith, Warrington and Linderman 2023, arXiv:2208.04933"

_DEPARTURES = (
    "The public code reads backward with the same A and B and another C, and gates with one "
    "matrix; here each direction has its own parameters and the GLU has two matrices. Biases "
    "and norms have no weight decay."
)
_GROUPS = {
    "standard": "",
    "BfastandCdecay": (
        "The scripts' B learns at the full rate with weight decay; ours as the recurrence."
    ),
    "BandCdecay": "The scripts' B has weight decay; ours has none.",
    "noBCdecay": (
        "The scripts' C learns at the recurrence's rate without weight decay; ours at the full "
        "rate with it."
    ),
}
_FAST_DT = "The scripts' dt learns at the full rate; ours at the recurrence's."


@dataclass(frozen=True, kw_only=True)
class Row:
    """A task in the public scripts."""

    blocks: int
    """HiPPO matrices on the diagonal, called J."""
    width: int
    """Channels, called H."""
    d_state: int
    """Size of the real system, called N or P."""
    ssm_lr: float
    """Learning rate of the recurrence."""
    lr_factor: float
    """The other learning rate over that of the recurrence."""
    batch_size: int
    """Sequences in a batch."""
    epochs: int
    """Passes through the training data."""
    weight_decay: float
    """Outside the recurrence."""
    dropout: float = 0.0
    """Probability."""
    n_layers: int = 6
    """Residual blocks."""
    groups: Literal["standard", "BfastandCdecay", "BandCdecay", "noBCdecay"] = "standard"
    """Which parameters learn how, in the scripts' words."""
    warmup_epochs: int = 1
    """Over which the learning rate rises."""
    options: tuple[tuple[str, Any], ...] = ()
    """Other options of the mixer."""
    fast_dt: bool = False
    """The step sizes learn at the full rate."""
    accuracy: float
    """As published."""

    @property
    def departures(self) -> str:
        """Where our configuration of this row differs from the scripts."""
        return " ".join(filter(None, (_DEPARTURES, _GROUPS[self.groups], _FAST_DT * self.fast_dt)))


TABLE = {
    "listops": Row(
        n_layers=8,
        blocks=8,
        width=128,
        d_state=16,
        ssm_lr=0.001,
        lr_factor=3,
        batch_size=50,
        epochs=40,
        weight_decay=0.04,
        groups="BfastandCdecay",
        options=(("C_init", "lecun"),),
        accuracy=0.6215,
    ),
    "imdb": Row(
        blocks=12,
        width=256,
        d_state=192,
        ssm_lr=0.001,
        lr_factor=4,
        batch_size=50,
        epochs=35,
        weight_decay=0.07,
        dropout=0.1,
        warmup_epochs=0,
        fast_dt=True,
        options=(("C_init", "lecun"),),
        accuracy=0.8931,
    ),
    "retrieval": Row(
        blocks=16,
        width=128,
        d_state=256,
        ssm_lr=0.001,
        lr_factor=2,
        batch_size=32,
        epochs=20,
        weight_decay=0.05,
        fast_dt=True,
        accuracy=0.9140,
    ),
    "scifar": Row(
        blocks=3,
        width=512,
        d_state=384,
        ssm_lr=0.001,
        lr_factor=4.5,
        batch_size=50,
        epochs=250,
        weight_decay=0.07,
        dropout=0.1,
        groups="BfastandCdecay",
        options=(("clip_eigs", True), ("C_init", "lecun")),
        accuracy=0.8800,
    ),
    "pathfinder": Row(
        blocks=8,
        width=192,
        d_state=256,
        ssm_lr=0.0009,
        lr_factor=5,
        batch_size=64,
        epochs=200,
        weight_decay=0.03,
        dropout=0.05,
        accuracy=0.9533,
    ),
    "path_x": Row(
        blocks=16,
        width=128,
        d_state=256,
        ssm_lr=0.0006,
        lr_factor=3,
        batch_size=32,
        epochs=75,
        weight_decay=0.06,
        groups="BandCdecay",
        options=(("dt_min", 1e-4), ("C_init", "normal")),
        accuracy=0.9858,
    ),
    "speech_commands": Row(
        blocks=16,
        width=96,
        d_state=128,
        ssm_lr=0.002,
        lr_factor=4,
        batch_size=16,
        epochs=40,
        weight_decay=0.04,
        dropout=0.1,
        groups="noBCdecay",
        options=(("C_init", "lecun"),),
        accuracy=0.9652,
    ),
}
"""By our name of the task; "scifar" is the grey one."""


RECIPES = {
    "imdb_s5": "Six S5 layers on the task `imdb`, as in the public scripts.",
    "listops_s5": "Eight S5 layers on the task `listops`, as in the public scripts.",
    "path_x_s5": "Six S5 layers on the task `path_x`, as in the public scripts.",
    "pathfinder_s5": "Six S5 layers on the task `pathfinder`, as in the public scripts.",
    "retrieval_s5": "Six S5 layers on the task `retrieval`, as in the public scripts.",
    "scifar_grey_s5": "Six S5 layers on grey `scifar` (LRA Image), as in the public scripts.",
    "speech_commands": "Six S5 layers on the task `speech_commands`, as in the public scripts.",
}


def paper(name: str) -> Recipe:
    """The recipe of a name in `RECIPES`."""
    task = name.removesuffix("_s5").removesuffix("_grey")
    row, departures = TABLE[task], IMDB if task == "imdb" else ""
    task_options = SCIFAROptions(grey=True) if task == "scifar" else None
    return Recipe(
        config=_config(task, row, task_options),
        summary=f"{_count(row.n_layers)} S5 layers of width {row.width}, {row.epochs} epochs as "
        "published",
        shows=NOT_RUN,
        expected=row.accuracy,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source=SOURCE,
        departures=f"{row.departures} {departures}".strip(),
    )


def _config(task: str, row: Row, task_options: Any) -> Config:
    return Config(
        task=task,
        mixer="s5",
        mixer_options={"d_state": row.d_state, "blocks": row.blocks, **dict(row.options)},
        task_options=task_options,
        model=ModelConfig(
            d_model=row.width,
            n_layers=row.n_layers,
            norm="batch",
            bidirectional=True,
            dropout=row.dropout,
            pool="mean",
        ),
        optim=OptimConfig(
            lr=round(row.ssm_lr * row.lr_factor, 6),
            recurrent_lr_factor=1 / row.lr_factor,
            weight_decay=row.weight_decay,
            warmup_fraction=row.warmup_epochs / row.epochs,
            clip=0.0,
        ),
        train=TrainConfig(epochs=row.epochs, batch_size=row.batch_size),
    )


def _count(layers: int) -> str:
    return {6: "six", 8: "eight"}[layers]
