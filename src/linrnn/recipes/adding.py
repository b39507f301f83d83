"""An LRU on the adding problem."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.adding import AddingOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two LRU layers of width 32 on the task `adding`, 200 steps long in place of 1,000."""
    return Recipe(
        config=Config(
            task="adding",
            mixer="lru",
            mixer_options={"d_state": 64, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3},
            task_options=AddingOptions(
                length=200, train_size=20_000, validation_size=1_000, test_size=2_000
            ),
            model=ModelConfig(d_model=32, n_layers=2, dropout=0.0, pool="last"),
            optim=OptimConfig(lr=3e-3, weight_decay=0.0),
            train=TrainConfig(epochs=4, batch_size=50, threads=1),
        ),
        summary="two LRU layers of width 32 at length 200, two minutes on a core",
        shows=(
            "a state can carry two numbers over 200 steps; not that it can over the 1,000 "
            "and more steps that papers report, nor how much seeds differ"
        ),
        expected=3.2e-4,
        spread=0.0,
        seeds=(0,),
        seconds=75.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own",
    )
