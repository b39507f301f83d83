"""The columns of the LRU paper's tables: its six tasks as published, or scaled down."""

from dataclasses import dataclass, replace
from typing import Any

from linrnn.recipes import LRU_TABLE, lru_config
from linrnn.reproductions._runs.trained import Column
from linrnn.train import Config

NAMES = {
    "scifar": "sCIFAR",
    "listops": "ListOps",
    "imdb": "Text",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "path_x": "PathX",
}
"""Head of the paper's column, by our name of the task."""

SOURCE = "Orvieto et al. 2023, arXiv:2303.06349"

NOTES = (
    "the published numbers are means ± standard errors over 3 seeds, weights chosen on validation "
    "data, learning rates tuned for each model on a grid of factors of 2; ours are not tuned, and "
    "the same for all rows of a table.",
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Scaled-down size of a task; everything else stays as published."""

    task_options: Any
    """Options of the task."""
    d_model: int
    """Width."""
    d_state: int
    """Size of the recurrent state."""
    n_layers: int
    """Depth."""
    epochs: int
    """Passes through the training data."""
    lr: float
    """Peak learning rate."""
    clip: float = 0.0
    """Largest norm of the gradient; 0 does not clip, as published."""


def published(task: str) -> Column:
    """A task with the model and the training of Table 9."""
    row = LRU_TABLE[task]
    paper = _base(lru_config(row))
    return Column(name=NAMES[task], config=paper, paper=paper, steps=row.iterations)


def small(task: str, size: Size) -> Column:
    """A task at a size for a CPU, on one thread, so that the same bits come out everywhere."""
    column = published(task)
    paper = column.paper
    model = replace(paper.model, d_model=size.d_model, n_layers=size.n_layers)
    ours = replace(
        paper,
        task_options=size.task_options,
        model=model,
        mixer_options={"d_state": size.d_state},
        optim=replace(paper.optim, lr=size.lr, clip=size.clip),
        train=replace(paper.train, epochs=size.epochs, threads=1),
    )
    return replace(column, config=ours)


def _base(config: Config) -> Config:
    """The configuration without the options by which the rows of a table differ."""
    return replace(config, mixer_options={"d_state": config.mixer_options["d_state"]})
