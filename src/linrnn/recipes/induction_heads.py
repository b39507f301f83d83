"""Recurrences whose decays follow the input, on induction heads."""

from linrnn.recipes._settings import mamba
from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.induction_heads import InductionHeadsOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two minGRU layers of width 64 on the task `induction_heads`, each after a convolution."""
    return Recipe(
        config=Config(
            task="induction_heads",
            mixer="mingru",
            mixer_options={"expansion": 2.0},
            task_options=InductionHeadsOptions(train_size=32_000),
            model=ModelConfig(
                d_model=64,
                n_layers=2,
                norm="rms",
                block="bare",
                conv_width=4,
                dropout=0.0,
                pool="last",
            ),
            optim=OptimConfig(lr=2e-3, recurrent_lr_factor=1.0, weight_decay=0.0),
            train=TrainConfig(epochs=4, batch_size=8, threads=1),
        ),
        summary="two minGRU layers of width 64, 16,000 batches of 8",
        shows=(
            "the task solved at its full length, 256, after some thousand steps at chance; what "
            "longer sequences give is for `linrnn eval --lengths` to say"
        ),
        expected=1.0,
        spread=0.0,
        seeds=(0, 1, 2),
        seconds=340.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own, after Gu and Dao 2023, arXiv:2312.00752, induction heads",
        departures=(
            "minGRU after a convolution of four taps in place of Mamba, which has one inside; a "
            "thirteenth of the batches, at twice the learning rate, with a warm-up and a cosine."
        ),
    )


def paper() -> Recipe:
    """Two Mamba layers of width 64 on the task `induction_heads`, 204,800 batches of 8.

    The published number is at the length of training, 256, and at every length up to 2**20;
    test the longer ones with the trained model.
    """
    return mamba.paper(
        task="induction_heads",
        pool="last",
        lr=1e-3,
        batch_size=8,
        epochs=25,
        expected=1.0,
        source="induction heads",
        departures=(
            "25 passes through 65,536 sequences make the 204,800 batches; the paper drew new "
            "sequences all the time. The special token is never an answer."
        ),
    )
