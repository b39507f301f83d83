"""An LRU on the copying task."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.copy import CopyOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two LRU layers of width 64 on the task `copy`, 10 tokens and 256 blanks."""
    return Recipe(
        config=Config(
            task="copy",
            mixer="lru",
            mixer_options={"d_state": 128, "r_min": 0.9, "r_max": 0.999},
            task_options=CopyOptions(length=256, train_size=12_800),
            model=ModelConfig(d_model=64, n_layers=2, norm="batch", dropout=0.0, pool="none"),
            optim=OptimConfig(lr=3e-3, weight_decay=0.0),
            train=TrainConfig(epochs=6, batch_size=64, threads=1),
        ),
        summary="two LRU layers of width 64, 10 tokens and 256 blanks",
        shows=("ten tokens survive 256 blanks and come back in order; not how many more would"),
        expected=1.0,
        spread=1e-4,
        seeds=(0, 1, 2),
        seconds=272.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own",
    )
