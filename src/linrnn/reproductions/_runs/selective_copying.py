"""Selective copying, as two papers trained on it, and scaled down."""

from dataclasses import replace

from linrnn import recipes
from linrnn.reproductions._runs.trained import Column
from linrnn.train import Config

NAME = "selective copying"
STEPS = 400_000
SOURCE = "Feng et al. 2024, arXiv:2410.01201"

NOTES = (
    "the published errors of minGRU and minLSTM are standard deviations, ours are standard errors.",
    "ours: RMSNorm before every mixer, of which the paper says nothing; the same training "
    "sequences in every pass in place of new ones; weights of the best validation.",
    "what was changed is listed for minGRU; the other mixers share its task, width and training.",
)


def column(scale: str) -> Column:
    """The column of both tables, with the configuration of minGRU's recipe at that scale."""
    configs = {name: recipes.load("selective_copy", name).config for name in {scale, "paper"}}
    return Column(name=NAME, config=configs[scale], paper=configs["paper"], steps=STEPS)


def at_scale(config: Config, scale: str) -> Config:
    """A published configuration with the task, the training and the width of minGRU's recipe.

    Depth and block stay; so do the options of a mixer, but for an expansion.
    """
    base = column(scale).config
    expansion = {k: v for k, v in base.mixer_options.items() if k in config.mixer_options}
    return replace(
        config,
        task_options=base.task_options,
        mixer_options={**config.mixer_options, **expansion},
        model=replace(config.model, d_model=base.model.d_model, dropout=base.model.dropout),
        optim=base.optim,
        train=base.train,
    )
