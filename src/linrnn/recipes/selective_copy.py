"""minGRU on selective copying."""

from linrnn.recipes._settings import min_gated
from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.selective_copy import SelectiveCopyOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Three minGRU layers of width 64 on the task `selective_copy`, 8 tokens among 256 blanks."""
    return Recipe(
        config=Config(
            task="selective_copy",
            mixer="mingru",
            mixer_options={"expansion": 2.0},
            task_options=SelectiveCopyOptions(length=256, n_tokens=8, train_size=64_000),
            model=ModelConfig(
                d_model=64,
                n_layers=min_gated.LAYERS,
                norm="rms",
                block="bare",
                dropout=0.0,
                pool="none",
            ),
            optim=OptimConfig(lr=3e-3, recurrent_lr_factor=1.0, weight_decay=0.0),
            train=TrainConfig(epochs=2, batch_size=16, threads=1),
        ),
        summary="three minGRU layers, 8 tokens among 256 blanks",
        shows=(
            "that gates which follow the input choose what to remember, and that it takes more "
            "than one layer; not the accuracies at length 4,096"
        ),
        expected=0.9776,
        spread=0.0102,
        seeds=(0, 1, 2),
        seconds=430.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own, after Feng et al. 2024, arXiv:2410.01201, selective copying",
        departures=(
            "256 blanks, 8 tokens and an expansion of 2 in place of 4,096, 16 and 6; 8,000 "
            "batches of 16 in place of 400,000 of 64, at thirty times the learning rate, with "
            "a warm-up and a cosine; no dropout."
        ),
    )


def paper() -> Recipe:
    """Three minGRU layers of width 64 on the task `selective_copy` at its full length."""
    return min_gated.paper("mingru", seconds=4e6, hardware="one CPU core; take a GPU")
