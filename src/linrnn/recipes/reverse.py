"""An LRU that gives tokens back in reverse order."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.reverse import ReverseOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two LRU layers of width 64 on the task `reverse`, 10 tokens and 100 blanks."""
    return Recipe(
        config=Config(
            task="reverse",
            mixer="lru",
            mixer_options={"d_state": 128, "r_min": 0.9, "r_max": 0.999},
            task_options=ReverseOptions(train_size=12_800, validation_size=500),
            model=ModelConfig(d_model=64, n_layers=2, dropout=0.0, pool="none"),
            optim=OptimConfig(lr=3e-3, weight_decay=0.0),
            train=TrainConfig(epochs=5, batch_size=64, threads=1),
        ),
        summary="two LRU layers of width 64, 10 tokens and 100 blanks, two minutes on a core",
        shows=(
            "ten tokens survive 100 blanks and come back in reverse; not how many more would, "
            "nor how much seeds differ"
        ),
        expected=1.0,
        spread=0.0,
        seeds=(0,),
        seconds=93.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own; sizes of the task from S4's public code",
    )
