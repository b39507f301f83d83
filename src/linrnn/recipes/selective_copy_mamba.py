"""Mamba on selective copying."""

from linrnn.recipes._settings import mamba
from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.selective_copy import SelectiveCopyOptions


def paper() -> Recipe:
    """Two Mamba layers of width 64 on the task `selective_copy` at its full length."""
    return mamba.paper(
        task="selective_copy",
        task_options=SelectiveCopyOptions(train_size=2_560_000),
        pool="none",
        lr=1e-4,
        batch_size=64,
        epochs=10,
        expected=0.998,
        source="selective copying",
        departures=(
            "Ten passes through 2.56 million sequences make the 400,000 batches; the paper drew "
            "new sequences all the time, from a generator that was not published. Weights of the "
            "best validation are kept."
        ),
    )
