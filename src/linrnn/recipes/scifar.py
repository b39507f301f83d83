"""An LRU on colour CIFAR-10."""

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._studies import lru
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Three LRU layers of width 96 on 9,000 images of the task `scifar`, a row a step."""
    return Recipe(
        config=Config(
            task="scifar",
            mixer="lru",
            mixer_options={"d_state": 64, "r_min": 0.0, "r_max": 0.99},
            task_options=SCIFAROptions(rows=True, train_images=9_000),
            model=ModelConfig(d_model=96, n_layers=3, norm="batch", dropout=0.2, pool="mean"),
            optim=OptimConfig(lr=4e-3, recurrent_lr_factor=0.25, weight_decay=0.05),
            train=TrainConfig(epochs=25, batch_size=50, threads=1),
        ),
        summary="three LRU layers on a fifth of the images, read by the row",
        shows=(
            "that rows of photographs read one after the other can be told apart far better than "
            "by chance; with 32 steps in place of 1,024 and a fifth of the images, compare nothing "
            "with published results"
        ),
        expected=0.5707,
        spread=0.0083,
        seeds=(0, 1, 2),
        seconds=198.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own; learning rate and its factor of Orvieto et al. 2023, Table 9",
    )


def paper() -> Recipe:
    """Six LRU layers on the task `scifar`, as in the paper's Table 9."""
    return lru.paper("scifar")
