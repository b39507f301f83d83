"""IndRNN on the skeletons of NTU RGB+D."""

from linrnn.recipes._settings.base import Recipe
from linrnn.recipes._settings.words import NOT_RUN
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def paper() -> Recipe:
    """Six IndRNN layers of width 512 on the task `skeletons`, as in the authors' public code."""
    return Recipe(
        config=Config(
            task="skeletons",
            mixer="ind_rnn",
            mixer_options={"t_max": 20, "gamma": 5.0},
            model=ModelConfig(
                d_model=512,
                n_layers=6,
                norm="batch",
                dropout=0.25,
                pool="last",
                block="bare",
                skip=False,
            ),
            optim=OptimConfig(lr=2e-4, recurrent_lr_factor=1.0, weight_decay=1e-4),
            train=TrainConfig(epochs=200, batch_size=128),
        ),
        summary="six IndRNN layers of width 512, 20 frames as published, other persons in the test",
        shows=NOT_RUN,
        expected=0.818,
        spread=None,
        seeds=(),
        seconds=None,
        hardware="a GPU, for hours",
        source=(
            "public code of Li et al. 2018, arXiv:1803.04831; the accuracy is the paper's, not "
            "checked against it"
        ),
        departures=(
            "200 passes with a warm-up and a cosine, where the code divides the rate by ten when "
            "validation stops improving; the middle frame of each twentieth, where the code draws "
            "one; batch norm before the linear map instead of after the recurrence"
        ),
    )
