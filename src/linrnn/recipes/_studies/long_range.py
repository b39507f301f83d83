"""DSS, Liquid-S4, SGConv and Mega on Long Range Arena, one row a mixer and task.

What a public configuration prints is in `TABLES`; what it leaves open, and what ours cannot say, is
in the departures of the recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import IMDB, NOT_RUN
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

SOURCES = {
    "dss": (
        "commands of the public code of Gupta, Gu and Berant 2022, arXiv:2203.14343, which name "
        "configurations of the first S4: Table 11 of Gu, Goel and Re 2022, arXiv:2111.00396"
    ),
    "liquid_s4": "public configurations of Hasani et al. 2022, arXiv:2209.12951",
    "sgconv": "public configurations of Li et al. 2022, arXiv:2210.09298",
    "mega": "public commands of Ma et al. 2022, arXiv:2209.10655",
}

_SHARED = (
    "The cosine ends with the last epoch, each direction has its own skip D, and biases and "
    "norms have no weight decay."
)
DEPARTURES = {
    "dss": (
        "The learning rate fell where validation stopped improving; here along a cosine, after a "
        "warm-up of a tenth, both ours. The commands do not say in how many directions a layer "
        "reads; here in one, the layer's own default. Where accuracy is printed, the configuration "
        "is the one of the commands, not the paper's best."
    ),
    "liquid_s4": (
        f"{_SHARED} The linear system is diagonal there but for a low rank, here diagonal. The "
        "configurations do not name the degree; 2 is the default of their code. Products of inputs "
        "are of consecutive ones."
    ),
    "sgconv": _SHARED,
    "mega": (
        "The published layer attends to later steps too, behind averages in both directions; here "
        "two layers each read one way. The learning rate falls along a cosine, not a line. The "
        "feed-forward part has GELU, not SiLU. The block adds its input once more to the layer's, "
        "which keeps a part of it by its own gate. Averages have no weight decay."
    ),
}
"""Departures that all rows of a mixer share."""
_FAST_DT = "Its dt learns at the full rate there, here at the recurrence's."
_WARMUP = "Its warm-up is not printed in the configuration; here a tenth."
_SCALE_NORM = "Its norm has one gain for all channels; here each has its own."
_ODD = "Its d_state is 7, of which conjugate pairs leave 6."


@dataclass(frozen=True, kw_only=True)
class Row:
    """A task in a public configuration."""

    n_layers: int = 6
    """Residual blocks."""
    width: int = 256
    """Channels."""
    lr: float
    """Learning rate outside the systems."""
    recurrent_lr: float | None = 0.001
    """Learning rate of the systems; None uses the other one."""
    batch_size: int
    """Sequences in a batch, those of all devices and sums of gradients together."""
    epochs: int
    """Passes through the training data."""
    weight_decay: float
    """Outside the systems."""
    dropout: float = 0.0
    """Probability."""
    warmup: float = 0.1
    """Part of all steps."""
    norm: Literal["batch", "layer", "rms"] = "batch"
    """Norm of each block."""
    prenorm: bool = True
    """Normalise before the mixer."""
    bidirectional: bool = False
    """Read in both directions."""
    pool: Literal["mean", "last"] = "mean"
    """Over time."""
    d_ffn: int | None = None
    """Hidden width of a feed-forward part, where there is one in place of the gated linear unit."""
    options: Mapping[str, Any]
    """Options of the mixer."""
    departures: tuple[str, ...] = ()
    """Departures of this row."""
    accuracy: float
    """As published."""


def _dss(length: int, **fields: Any) -> Row:
    options = {
        "kernel": "softmax",
        "length": length,
        "separate_dt": True,
        **fields.pop("options", {}),
    }
    return Row(options=options, **fields)


def _liquid(d_state: int, dt: tuple[float, float], *notes: str, **fields: Any) -> Row:
    options = {"d_state": d_state, "kernel": "pb", "dt_min": dt[0], "dt_max": dt[1]}
    return Row(options=options, departures=notes, **fields)


def _sgconv(d_kernel: int, l_max: int, *notes: str, **fields: Any) -> Row:
    options = {"d_kernel": d_kernel, "l_max": l_max, "decay": 0.5}
    return Row(options=options, departures=notes, bidirectional=True, **fields)


def _mega(d_key: int, d_inner: int, attention: str, *notes: str, **fields: Any) -> Row:
    options = {"d_key": d_key, "d_inner": d_inner, "attention": attention, "init": "published"}
    row_fields = {"d_ffn": d_inner, "bidirectional": True, "recurrent_lr": None, **fields}
    return Row(options=options, departures=notes, **row_fields)


TABLES: Mapping[str, Mapping[str, Row]] = {
    "dss": {
        "listops": _dss(2000, width=128, lr=0.01, batch_size=100, epochs=50, weight_decay=0.01,
                        prenorm=False, accuracy=0.582),
        "imdb": _dss(4096, n_layers=4, width=64, lr=0.001, batch_size=50, epochs=20,
                     weight_decay=0.0, accuracy=0.763),
        "retrieval": _dss(4000, lr=0.002, batch_size=64, epochs=20, weight_decay=0.0,
                          accuracy=0.878),
        "scifar": _dss(1024, width=512, lr=0.004, batch_size=50, epochs=200, weight_decay=0.01,
                       dropout=0.2, norm="layer", prenorm=False, accuracy=0.857),
        "pathfinder": _dss(1024, lr=0.004, batch_size=100, epochs=200, weight_decay=0.0,
                           dropout=0.1, accuracy=0.846),
        "path_x": _dss(16_384, lr=0.0005, batch_size=16, epochs=100, weight_decay=0.0,
                       options={"dt_min": 1e-4, "dt_max": 0.01},
                       departures=("Its dt learns at 0.0001 there, here as Lambda.",),
                       accuracy=0.85),
    },
    "liquid_s4": {
        "listops": _liquid(6, (0.002, 0.2), _ODD, _FAST_DT, _WARMUP, n_layers=9, width=128,
                           lr=0.002, recurrent_lr=0.0009, batch_size=12, epochs=40,
                           weight_decay=0.03, dropout=0.01, accuracy=0.6275),
        "imdb": _liquid(6, (0.002, 0.2), _ODD, _FAST_DT, _WARMUP, n_layers=4, width=128, lr=0.003,
                        recurrent_lr=0.0009, batch_size=8, epochs=50, weight_decay=0.01,
                        dropout=0.1, accuracy=0.8902),
        "retrieval": _liquid(64, (0.001, 0.1), _FAST_DT, lr=0.005, batch_size=16, epochs=20,
                             weight_decay=0.05, dropout=0.2, warmup=0.05, accuracy=0.9120),
        "scifar": _liquid(512, (0.002, 0.2), _FAST_DT, _WARMUP, width=512, lr=0.01, batch_size=50,
                          epochs=200, weight_decay=0.03, dropout=0.1, norm="layer",
                          prenorm=False, bidirectional=True, accuracy=0.8950),
        "pathfinder": _liquid(64, (0.001, 0.1), lr=0.004, batch_size=4, epochs=200,
                              weight_decay=0.03, warmup=0.005, pool="last", accuracy=0.948),
        "path_x": _liquid(64, (0.0001, 0.1), width=320, lr=0.001, recurrent_lr=0.0005,
                          batch_size=8, epochs=60, weight_decay=0.05, warmup=0.02,
                          accuracy=0.9666),
    },
    "sgconv": {
        "listops": _sgconv(1, 2000, _WARMUP, n_layers=8, width=128, lr=0.01, batch_size=50,
                           epochs=40, weight_decay=0.05, prenorm=False, accuracy=0.6145),
        "imdb": _sgconv(2, 4096, _WARMUP, lr=0.01, batch_size=16, epochs=32, weight_decay=0.05,
                        accuracy=0.8920),
        "retrieval": _sgconv(1, 4000, lr=0.01, batch_size=64, epochs=20, weight_decay=0.05,
                             warmup=0.05, accuracy=0.9111),
        "pathfinder": _sgconv(32, 1024, lr=0.004, batch_size=64, epochs=200, weight_decay=0.03,
                              dropout=0.2, warmup=0.005, pool="last", accuracy=0.9546),
    },
    "mega": {
        "listops": _mega(64, 160, "softmax", width=80, lr=0.001, batch_size=64, epochs=60,
                         weight_decay=0.01, dropout=0.1, warmup=1 / 30, norm="layer",
                         prenorm=False, accuracy=0.6314),
        "imdb": _mega(64, 256, "softmax", _SCALE_NORM, n_layers=4, width=128, lr=0.004,
                      batch_size=50, epochs=56, weight_decay=0.01, dropout=0.1, warmup=0.4,
                      norm="rms", prenorm=False, accuracy=0.9043),
        "retrieval": _mega(64, 256, "softmax", _SCALE_NORM, width=128, lr=0.003, batch_size=64,
                           epochs=40, weight_decay=0.04, dropout=0.1, warmup=10_000 / 91_960,
                           norm="rms", prenorm=False, accuracy=0.9125),
        "scifar": _mega(96, 320, "laplace", n_layers=8, width=160, lr=0.01, batch_size=50,
                        epochs=200, weight_decay=0.02, warmup=0.05, accuracy=0.9044),
        "pathfinder": _mega(64, 256, "laplace", width=128, lr=0.01, batch_size=128, epochs=200,
                            weight_decay=0.01, warmup=0.2, accuracy=0.9601),
        "path_x": _mega(32, 128, "laplace", n_layers=4, width=64, lr=0.01, batch_size=128,
                        epochs=100, weight_decay=0.01, warmup=0.2, accuracy=0.9798),
    },
}  # fmt: skip
"""By mixer and our name of the task; "scifar" is the grey one."""

STEPS = {
    "listops": 90_000,
    "imdb": 25_000,
    "retrieval": 91_960,
    "scifar": 180_000,
    "pathfinder": 250_000,
    "path_x": 125_000,
}
"""Steps that the public commands of Mega give instead of epochs."""


RECIPES = {
    "imdb_dss": "Four DSS layers on the task `imdb`, as in the public commands.",
    "imdb_liquid_s4": "Four Liquid-S4 layers on the task `imdb`, as in the public configurations.",
    "imdb_mega": "Four Mega layers on the task `imdb`, as in the public commands.",
    "imdb_sgconv": "Six SGConv layers on the task `imdb`, as in the public configurations.",
    "listops_dss": "Six DSS layers on the task `listops`, as in the public commands.",
    "listops_liquid_s4": "Nine Liquid-S4 layers on the task `listops`, as in the public code.",
    "listops_mega": "Six Mega layers on the task `listops`, as in the public commands.",
    "listops_sgconv": "Eight SGConv layers on the task `listops`, as in the public configurations.",
    "path_x_dss": "Six DSS layers on the task `path_x`, as in the public commands.",
    "path_x_liquid_s4": "Six Liquid-S4 layers on the task `path_x`, as in the public code.",
    "path_x_mega": "Four Mega layers on the task `path_x`, as in the public commands.",
    "pathfinder_dss": "Six DSS layers on the task `pathfinder`, as in the public commands.",
    "pathfinder_liquid_s4": "Six Liquid-S4 layers on the task `pathfinder`, as in the public code.",
    "pathfinder_mega": "Six Mega layers on the task `pathfinder`, as in the public commands.",
    "pathfinder_sgconv": "Six SGConv layers on the task `pathfinder`, as in the public code.",
    "retrieval_dss": "Six DSS layers on the task `retrieval`, as in the public commands.",
    "retrieval_liquid_s4": "Six Liquid-S4 layers on the task `retrieval`, as in the public code.",
    "retrieval_mega": "Six Mega layers on the task `retrieval`, as in the public commands.",
    "retrieval_sgconv": "Six SGConv layers on the task `retrieval`, as in the public code.",
    "scifar_grey_dss": "Six DSS layers on grey `scifar`, LRA Image, as in the public commands.",
    "scifar_grey_liquid_s4": "Six Liquid-S4 layers on grey `scifar`, LRA Image, as published.",
    "scifar_grey_mega": "Eight Mega layers on grey `scifar`, LRA Image, as published.",
}


def paper(name: str) -> Recipe:
    """The recipe of a name in `RECIPES`."""
    mixer = next(mixer for mixer in TABLES if name.endswith(f"_{mixer}"))
    task = name.removesuffix(f"_{mixer}").removesuffix("_grey")
    row = TABLES[mixer][task]
    task_departures = (IMDB,) if task == "imdb" else ()
    return Recipe(
        config=_config(task, mixer, row),
        summary=f"{row.n_layers} layers of width {row.width}, {row.epochs} epochs as published",
        shows=NOT_RUN,
        expected=row.accuracy,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source=SOURCES[mixer],
        departures=" ".join((DEPARTURES[mixer], *row.departures, *task_departures)),
    )


def _config(task: str, mixer: str, row: Row) -> Config:
    recurrent = 1.0 if row.recurrent_lr is None else row.recurrent_lr / row.lr
    published = {"betas": (0.9, 0.98), "clip": 1.0} if mixer == "mega" else {"clip": 0.0}
    return Config(
        task=task,
        mixer=mixer,
        mixer_options=dict(row.options),
        task_options=SCIFAROptions(grey=True) if task == "scifar" else None,
        model=ModelConfig(
            d_model=row.width,
            n_layers=row.n_layers,
            norm=row.norm,
            prenorm=row.prenorm,
            bidirectional=row.bidirectional,
            dropout=row.dropout,
            pool=row.pool,
            block="glu" if row.d_ffn is None else "mlp",
            d_ffn=row.d_ffn,
        ),
        optim=OptimConfig(
            lr=row.lr,
            recurrent_lr_factor=recurrent,
            weight_decay=row.weight_decay,
            warmup_fraction=row.warmup,
            **published,
        ),
        train=TrainConfig(epochs=row.epochs, batch_size=row.batch_size),
    )
