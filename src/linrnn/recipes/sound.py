"""SaShiMi on raw sound."""

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import NOT_RUN
from linrnn.tasks.sound import SoundOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def cpu() -> Recipe:
    """Three tiers of one S4 block each, 32 channels wide and up, on the task `sound`."""
    return Recipe(
        config=Config(
            task="sound",
            mixer="s4",
            mixer_options={"d_state": 32},
            task_options=SoundOptions(),
            model=ModelConfig(
                d_model=32,
                n_layers=1,
                tiers=(4, 4),
                norm="layer",
                block="glu_mlp",
                d_ffn=64,
                dropout=0.0,
                pool="none",
                final_norm=True,
            ),
            optim=OptimConfig(lr=1e-2, recurrent_lr_factor=0.1),
            train=TrainConfig(epochs=4, batch_size=2, threads=1),
        ),
        summary="SaShiMi of one S4 block a tier, for the spoken digits or sound of your own",
        shows=(
            "that raw sound is predicted at all; what it says is a voice without words, and its "
            "likelihood does not compare with the published ones, of models twenty times as large "
            "on three hundred times as much sound"
        ),
        expected=1.891,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="one core",
        source="our own, after Goel et al. 2022, arXiv:2202.09729",
    )


def paper() -> Recipe:
    """Eight S4 blocks a tier on the digits of Speech Commands, SC09, as published."""
    return Recipe(
        config=Config(
            task="sound",
            mixer="s4",
            mixer_options={"d_state": 64},
            task_options=SoundOptions(rate=16_000, length=16_000),
            model=ModelConfig(
                d_model=64,
                n_layers=8,
                tiers=(4, 4),
                expand=2,
                norm="layer",
                block="glu_mlp",
                d_ffn=128,
                dropout=0.0,
                pool="none",
                final_norm=True,
            ),
            optim=OptimConfig(
                lr=1e-3,
                recurrent_lr_factor=1.0,
                weight_decay=0.0,
                warmup_fraction=0.0,
                schedule="constant",
                clip=0.0,
            ),
            train=TrainConfig(epochs=1000, batch_size=32),
        ),
        summary="SaShiMi of eight S4 blocks a tier, on digits at 16 kHz as published",
        shows=NOT_RUN,
        expected=1.891,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU",
        source="public code of Goel et al. 2022, arXiv:2202.09729, its SC09 experiment",
        departures=(
            "A folder with the clips of zero to nine is wanted (--data), whose clips follow "
            "on one another in windows of a second, and are cut into parts by position, not by the "
            "lists of the data set; samples are coded as they are, where the public code stretches "
            "each clip to [-1, 1]. The learning rate is constant, not lowered where the validation "
            "loss stands still; A and B are those of each channel, not one for all; the maps "
            "between tiers have no weight normalisation."
        ),
    )
