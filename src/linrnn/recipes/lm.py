"""minGRU as a language model, on tiny Shakespeare or a text of your own."""

from linrnn.recipes._settings.base import Recipe
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Two minGRU layers of width 160 on the task `lm`."""
    return Recipe(
        config=Config(
            task="lm",
            mixer="mingru",
            task_options=LMOptions(),
            model=ModelConfig(
                d_model=160,
                n_layers=2,
                norm="rms",
                block="mlp",
                conv_width=4,
                dropout=0.1,
                pool="none",
                final_norm=True,
            ),
            optim=OptimConfig(lr=3e-3, recurrent_lr_factor=1.0, weight_decay=0.1),
            train=TrainConfig(epochs=6, batch_size=8, threads=1),
        ),
        summary="two minGRU layers of width 160, for tiny Shakespeare or a megabyte of your own",
        shows=(
            "a model of the letters of a text that writes words and lines; nothing of meaning, "
            "for which text and model are too small"
        ),
        expected=2.196,
        spread=0.005,
        seeds=(0, 1, 2),
        seconds=390.0,
        hardware="one core of a two-core x86-64 virtual machine, processor time",
        source="our own, after Feng et al. 2024, arXiv:2410.01201",
        departures="fewer and narrower layers, no expansion, smaller and fewer batches",
    )


def paper() -> Recipe:
    """Three minGRU layers of width 384 on tiny Shakespeare, as published."""
    return Recipe(
        config=Config(
            task="lm",
            mixer="mingru",
            mixer_options={"expansion": 2.0},
            task_options=LMOptions(),
            model=ModelConfig(
                d_model=384,
                n_layers=3,
                norm="rms",
                block="mlp",
                conv_width=4,
                dropout=0.2,
                pool="none",
                final_norm=True,
            ),
            optim=OptimConfig(
                lr=1e-3,
                recurrent_lr_factor=1.0,
                weight_decay=0.01,
                warmup_fraction=0.0,
                schedule="constant",
                clip=0.25,
            ),
            train=TrainConfig(epochs=81, batch_size=64),
        ),
        summary="three minGRU layers of width 384, 5,000 batches of 64 as published, needs a GPU",
        shows="the published loss; the Transformer beside it is `--mixer attention`",
        expected=2.233,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source="Feng et al. 2024, arXiv:2410.01201, language modelling",
        departures=(
            "a token is a byte, which for this ASCII text is a character, so 191 of 256 never "
            "occur; windows do not overlap where the paper draws them anywhere, so 81 passes make "
            "its 5,000 steps; validation after each of the 62 steps of a pass, not after 25; the "
            "norms, the weight decay (PyTorch's default) and the schedule are not stated there"
        ),
    )
