"""Mamba on the two synthetic tasks of its paper."""

from typing import Any

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import NOT_RUN
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

SOURCE = "Gu and Dao 2023, arXiv:2312.00752, {}, with the authors' answers in its issue tracker"


def paper(*, expected: float, epochs: int, source: str, departures: str, **config: Any) -> Recipe:
    """Two Mamba layers of width 64 at a constant learning rate, trained as published.

    Args:
        expected: the published accuracy.
        epochs: passes through the training data.
        source: the place in the paper.
        departures: of this task.
        config: ``task``, ``task_options``, ``pool``, ``lr`` and ``batch_size``.
    """
    return Recipe(
        config=_config(epochs=epochs, **config),
        summary="two Mamba layers of width 64, trained as long as published",
        shows=NOT_RUN,
        expected=expected,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source=SOURCE.format(source),
        departures=departures,
    )


def _config(
    *, task: str, pool: Any, lr: float, batch_size: int, epochs: int, task_options: Any = None
) -> Config:
    return Config(
        task=task,
        mixer="mamba",
        task_options=task_options,
        model=ModelConfig(d_model=64, n_layers=2, norm="rms", block="bare", dropout=0.0, pool=pool),
        optim=OptimConfig(
            lr=lr,
            recurrent_lr_factor=1.0,
            weight_decay=0.0,
            warmup_fraction=0.0,
            schedule="constant",
            clip=0.0,
        ),
        train=TrainConfig(epochs=epochs, batch_size=batch_size),
    )
