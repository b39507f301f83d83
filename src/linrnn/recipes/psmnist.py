"""An LRU on permuted MNIST."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.psmnist import PSMNISTOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Three LRU layers of width 96 on the task `psmnist`, 28 of the permuted pixels a step."""
    return Recipe(
        config=Config(
            task="psmnist",
            mixer="lru",
            mixer_options={"d_state": 64, "r_min": 0.0, "r_max": 0.99},
            task_options=PSMNISTOptions(rows=True),
            model=ModelConfig(d_model=96, n_layers=3, norm="batch", dropout=0.1, pool="mean"),
            optim=OptimConfig(lr=4e-3, recurrent_lr_factor=0.5, weight_decay=0.05),
            train=TrainConfig(epochs=8, batch_size=50, threads=1),
        ),
        summary="three LRU layers, the permuted pixels 28 at a time",
        shows=(
            "that an LRU gathers a picture whose pixels come in random order; with 28 steps "
            "in place of 784 no long memory, so compare nothing with results pixel by pixel"
        ),
        expected=0.9768,
        spread=0.0012,
        seeds=(0, 1, 2),
        seconds=325.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own",
    )
