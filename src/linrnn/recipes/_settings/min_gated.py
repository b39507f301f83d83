"""minGRU and minLSTM on selective copying, as published."""

from typing import Literal

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import NOT_RUN
from linrnn.tasks.selective_copy import SelectiveCopyOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

LAYERS = 3
EXPANSION = 6.0
BATCHES = 400_000
BATCH_SIZE = 64

TABLE = {"mingru": ("minGRU", 0.995, 0.002), "minlstm": ("minLSTM", 0.960, 0.028)}
"""Name, accuracy and its standard deviation with three layers, Table 1."""


def paper(mixer: Literal["mingru", "minlstm"], seconds: float | None, hardware: str) -> Recipe:
    """Three layers of a row of `TABLE` on the task `selective_copy` at its full length."""
    name, accuracy, deviation = TABLE[mixer]
    return Recipe(
        config=Config(
            task="selective_copy",
            mixer=mixer,
            mixer_options={"expansion": EXPANSION},
            task_options=SelectiveCopyOptions(train_size=BATCHES * BATCH_SIZE // 10),
            model=ModelConfig(
                d_model=64, n_layers=LAYERS, norm="rms", block="bare", dropout=0.1, pool="none"
            ),
            optim=OptimConfig(
                lr=1e-4,
                recurrent_lr_factor=1.0,
                weight_decay=0.0,
                warmup_fraction=0.0,
                schedule="constant",
                clip=1.0,
            ),
            train=TrainConfig(epochs=10, batch_size=BATCH_SIZE),
        ),
        summary=f"three {name} layers, 400,000 batches at length 4096 as published",
        shows=NOT_RUN,
        expected=accuracy,
        spread=deviation,
        seeds=(),
        seconds=seconds,
        hardware=hardware,
        source="Feng et al. 2024, arXiv:2410.01201, selective copying",
        departures=(
            "Ten passes through 2.56 million sequences make the 400,000 batches; the paper drew "
            "new sequences all the time. The weights of the best validation stand for its early "
            "stopping. It says nothing of a norm; RMSNorm is ours."
        ),
    )
