"""A minGRU, and LEM as published, on noise-padded CIFAR-10."""

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import NOT_RUN
from linrnn.tasks.noise_padded_cifar import NoisePaddedCIFAROptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """One minGRU layer of width 64 on the task `noise_padded_cifar`, 200 steps long."""
    return Recipe(
        config=Config(
            task="noise_padded_cifar",
            mixer="mingru",
            mixer_options={"bias": True, "gates": "chrono", "t_max": 600},
            task_options=NoisePaddedCIFAROptions(length=200, train_images=9_000),
            model=ModelConfig(d_model=64, n_layers=1, norm="none", dropout=0.0, pool="last"),
            optim=OptimConfig(lr=4e-3, recurrent_lr_factor=1.0, weight_decay=0.05),
            train=TrainConfig(epochs=8, batch_size=50, threads=1),
        ),
        summary="one minGRU layer of width 64 on a fifth of the images, with 168 steps of noise",
        shows=(
            "classes are carried over 168 steps of noise, well above chance; with 200 steps in "
            "place of 1,000 and a fifth of the images, compare nothing with published results. At "
            "1,000 steps such a layer was still at chance after 150 batches"
        ),
        expected=0.2973,
        spread=0.0063,
        seeds=(0, 1, 2),
        seconds=41.3,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own",
    )


def paper() -> Recipe:
    """One LEM layer of 128 units on the task `noise_padded_cifar`, as in its public code."""
    return Recipe(
        config=Config(
            task="noise_padded_cifar",
            mixer="lem",
            mixer_options={"step_size": 0.44},
            model=ModelConfig(
                d_model=128,
                n_layers=1,
                norm="none",
                skip=False,
                block="bare",
                dropout=0.0,
                pool="last",
            ),
            optim=OptimConfig(
                lr=0.00322,
                recurrent_lr_factor=1.0,
                weight_decay=0.0,
                warmup_fraction=0.0,
                schedule="constant",
                clip=0.0,
            ),
            train=TrainConfig(epochs=120, batch_size=100),
        ),
        summary="one LEM layer of 128 units, 120 epochs as published, needs a GPU",
        shows=NOT_RUN,
        expected=0.605,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source="Rusch et al. 2022, arXiv:2110.04744, and its public code",
        departures=(
            "an encoder from 96 channels to 128 before the layer; the learning rate is constant, "
            "where the code divides it by ten after 100 epochs; 5,000 images for validation, not "
            "2,000"
        ),
    )
