"""S5 on the irregular images of a pendulum."""

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import NOT_RUN
from linrnn.tasks.pendulum import PendulumOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two S5 layers of width 64 on the task `pendulum`, which read the times between images."""
    return Recipe(
        config=Config(
            task="pendulum",
            mixer="s5",
            mixer_options={"d_state": 32, "dt_min": 0.01, "dt_max": 0.1},
            task_options=PendulumOptions(times="dt"),
            model=ModelConfig(d_model=64, n_layers=2, norm="layer", dropout=0.0, pool="none"),
            optim=OptimConfig(lr=4e-3, recurrent_lr_factor=0.5, weight_decay=0.0),
            train=TrainConfig(epochs=15, batch_size=32, threads=1),
        ),
        summary="two S5 layers of width 64 that read the times between images",
        shows=(
            "a recurrence follows the pendulum through noise, with half the error of interpolating "
            "between single images, which sees later ones too; three times the published error"
        ),
        expected=0.01069,
        spread=0.00021,
        seeds=(0, 1, 2),
        seconds=71.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own; the steps are those of S5's public code",
    )


def paper() -> Recipe:
    """Four S5 layers of width 30 on the task `pendulum`, as in S5's public code."""
    return Recipe(
        config=Config(
            task="pendulum",
            mixer="s5",
            mixer_options={"d_state": 16, "blocks": 8, "dt_min": 0.01, "dt_max": 0.1},
            task_options=PendulumOptions(times="dt"),
            model=ModelConfig(
                d_model=30, n_layers=4, norm="layer", prenorm=False, dropout=0.0, pool="none"
            ),
            optim=OptimConfig(lr=0.012, recurrent_lr_factor=0.25, weight_decay=0.0),
            train=TrainConfig(epochs=100, batch_size=32),
        ),
        summary="four S5 layers of width 30, 100 epochs as published",
        shows=NOT_RUN,
        expected=3.41e-3,
        spread=0.27e-3,
        seeds=(),
        seconds=None,
        hardware="a CPU, for hours, or a GPU",
        source="Smith, Warrington and Linderman 2023, arXiv:2208.04933, and its public code",
        departures=(
            "a linear encoder of the pixels, where the code has convolutions, and a linear head; "
            "a warm-up and a cosine, on which we have no word of theirs"
        ),
    )
