"""An LRU on the latch, task 2b of the LSTM paper."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.latch import LatchOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """One LRU layer of width 32 on the task `latch`, at the paper's length of 100."""
    return Recipe(
        config=Config(
            task="latch",
            mixer="lru",
            mixer_options={"r_min": 0.9, "r_max": 0.999, "max_phase": 0.3},
            task_options=LatchOptions(train_size=10_000),
            model=ModelConfig(d_model=32, n_layers=1, dropout=0.0, pool="none"),
            optim=OptimConfig(lr=3e-3, recurrent_lr_factor=1.0, weight_decay=0.0),
            train=TrainConfig(epochs=3, batch_size=32, threads=1),
        ),
        summary="one LRU layer of width 32, at the length of the paper",
        shows=(
            "a state carries one bit over 99 random symbols; an LSTM of this size learned it in as "
            "many batches with one of two seeds, and that with a forget bias of 6, which says "
            "nothing about longer training"
        ),
        expected=0.9998,
        spread=0.0004,
        seeds=(0, 1, 2),
        seconds=12.2,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own; the paper trains an LSTM without a forget gate, a sequence at a time",
    )
