"""An LRU that learns a long convolution."""

from linrnn.recipes._settings.base import Recipe
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """One LRU layer of width 16 on the task `convolution`."""
    return Recipe(
        config=Config(
            task="convolution",
            mixer="lru",
            mixer_options={"d_state": 32, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3},
            model=ModelConfig(d_model=16, n_layers=1, norm="none", dropout=0.0, pool="none"),
            optim=OptimConfig(lr=1e-2, weight_decay=0.0),
            train=TrainConfig(epochs=300, batch_size=32, threads=1),
        ),
        summary="one LRU layer of width 16, a few seconds",
        shows=(
            "a linear recurrence learns a long filter; nothing about tasks that need more "
            "than a linear map"
        ),
        expected=1.3e-4,
        spread=8e-5,
        seeds=(0, 1, 2),
        seconds=8.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own; the paper compares a linear and a tanh RNN of 100 units",
    )
