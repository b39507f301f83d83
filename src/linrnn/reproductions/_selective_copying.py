"""Selective copying, as two papers trained on it, and scaled down."""

from dataclasses import dataclass, replace

from linrnn import recipes
from linrnn.reproductions._trained import Column
from linrnn.tasks.selective_copy import SelectiveCopyOptions
from linrnn.train import Config

NAME = "selective copying"
STEPS = 400_000
SOURCE = "Feng et al. 2024, arXiv:2410.01201"

NOTES = (
    "the published errors of minGRU and minLSTM are standard deviations, ours are standard errors.",
    "ours: RMSNorm before every mixer, of which the paper says nothing; ten passes through the "
    "training sequences in place of new ones all the time; weights of the best validation.",
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """What the task and its training are scaled down to; depth and blocks stay as published."""

    length: int
    """Blank steps."""
    n_tokens: int
    """Tokens to copy."""
    train_size: int
    """Training sequences, each seen once an epoch."""
    epochs: int
    """Passes through them."""
    d_model: int
    """Width of the residual stream."""
    expansion: float
    """Of minGRU's and minLSTM's state over the width."""
    lr: float
    """Learning rate, constant as published."""
    dropout: float
    """Of minGRU and minLSTM; the other mixers were published without."""


CPU = Size(
    length=256,
    n_tokens=8,
    train_size=64_000,
    epochs=5,
    d_model=64,
    expansion=6.0,
    lr=1e-3,
    dropout=0.1,
)
"""The scale "cpu" of both tables."""


def column(size: Size | None) -> Column:
    """The column of both tables, with minGRU's configuration; None is the published size."""
    paper = recipes.load("selective_copy", "paper").config
    ours = paper if size is None else shrink(paper, size)
    return Column(name=NAME, config=ours, paper=paper, steps=STEPS)


def shrink(config: Config, size: Size) -> Config:
    """A published configuration at a smaller size, on one thread."""
    task = SelectiveCopyOptions(
        length=size.length, n_tokens=size.n_tokens, train_size=size.train_size
    )
    options = dict(config.mixer_options)
    if "expansion" in options:
        options["expansion"] = size.expansion
    dropout = size.dropout if config.model.dropout else 0.0
    return replace(
        config,
        task_options=task,
        mixer_options=options,
        model=replace(config.model, d_model=size.d_model, dropout=dropout),
        optim=replace(config.optim, lr=size.lr),
        train=replace(config.train, epochs=size.epochs, threads=1),
    )
