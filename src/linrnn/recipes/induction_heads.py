"""Mamba on induction heads."""

from linrnn.recipes import _mamba
from linrnn.recipes._base import Recipe
from linrnn.tasks.induction_heads import InductionHeadsOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two Mamba layers of width 64 on the task `induction_heads`, 4,000 batches of 16."""
    return Recipe(
        config=Config(
            task="induction_heads",
            mixer="mamba",
            task_options=InductionHeadsOptions(train_size=64_000),
            model=ModelConfig(
                d_model=64, n_layers=2, norm="rms", block="bare", dropout=0.0, pool="last"
            ),
            optim=OptimConfig(lr=3e-3, recurrent_lr_factor=1.0, weight_decay=0.0),
            train=TrainConfig(epochs=1, batch_size=16, threads=1),
        ),
        summary="two Mamba layers of width 64, every sequence read once",
        shows=(
            "the task solved at its full length, 256; what longer sequences give is for "
            "`linrnn eval --lengths` to say, after a fiftieth of the published training"
        ),
        expected=1.0,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a CPU",
        source="our own, after Gu and Dao 2023, arXiv:2312.00752, induction heads",
        departures=(
            "4,000 batches of 16 in place of 204,800 of 8, at three times the learning rate, "
            "with a warm-up and a cosine."
        ),
    )


def paper() -> Recipe:
    """Two Mamba layers of width 64 on the task `induction_heads`, 204,800 batches of 8.

    The published number is at the length of training, 256, and at every length up to 2**20;
    test the longer ones with the trained model.
    """
    return _mamba.paper(
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
