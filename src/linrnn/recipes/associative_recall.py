"""Mamba on associative recall."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.associative_recall import AssociativeRecallOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two Mamba layers of width 64 on the task `associative_recall`."""
    return Recipe(
        config=Config(
            task="associative_recall",
            mixer="mamba",
            task_options=AssociativeRecallOptions(train_size=6_400),
            model=ModelConfig(
                d_model=64, n_layers=2, norm="rms", block="bare", dropout=0.0, pool="none"
            ),
            optim=OptimConfig(lr=3e-3, recurrent_lr_factor=1.0, weight_decay=0.0),
            train=TrainConfig(epochs=8, batch_size=32, threads=1),
        ),
        summary="two Mamba layers of width 64, a minute on a core",
        shows=(
            "a recurrence whose decays depend on its input recalls pairs; not how other "
            "mixers do, nor anything about longer sequences"
        ),
        expected=0.997,
        spread=0.001,
        seeds=(0, 1),
        seconds=50.0,
        hardware="one core of a two-core x86-64 virtual machine, native kernels, processor time",
        source="our own; the published code trains 20 times as long on fewer sequences",
    )
