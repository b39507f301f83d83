"""An LRU that reads the pixels of handwritten digits."""

from linrnn.recipes._base import Recipe
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def recipe() -> Recipe:
    """Two LRU layers of width 64 on the task `digits`."""
    return Recipe(
        config=Config(
            task="digits",
            mixer="lru",
            mixer_options={"d_state": 64, "r_min": 0.5, "r_max": 0.999},
            model=ModelConfig(d_model=64, n_layers=2, norm="batch", dropout=0.2, pool="mean"),
            optim=OptimConfig(lr=8e-3, recurrent_lr_factor=0.5, weight_decay=0.05),
            train=TrainConfig(epochs=40, batch_size=32),
        ),
        summary="two LRU layers of width 64, a minute on two CPU cores",
        expected=0.98,
        spread=0.01,
        seeds=(0, 1, 2),
        seconds=45.0,
        hardware="2 CPU cores",
        source="our own: tuned on the validation split alone",
    )
