"""Does a training step wait for its data? Time to make a batch against time to train on it.

Every task that generates its sequences, with the batch and the model of its recipe, or with an
untuned LRU where there is none. Batches are made in the process that trains, so the share is what a
step loses; with data-loader workers it would be nothing below 100 %. Writes
``benchmarks/results/data.md``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path

import torch

from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn
from linrnn import recipes, tasks
from linrnn.learn._parts.batch import read, unpack
from linrnn.train import Config
from linrnn.train.model import build_model, build_task
from linrnn.train.optim import make_optimizer

SECONDS, LIMIT = 2.0, 60.0


def generated() -> list[str]:
    """Tasks that draw their sequences; their options say how many."""
    return [
        name
        for name in tasks.names()
        if any(option.name == "train_size" for option in fields(tasks.load(name).Options))
    ]


def config_of(name: str) -> Config:
    """The configuration of `linrnn train` for a task: its recipe for a CPU, or untuned defaults."""
    if name in recipes.names() and recipes.CPU in recipes.scales(name):
        return recipes.load(name, recipes.CPU).config
    return recipes.untuned(name)


def contenders(config: Config) -> dict[str, Callable[[], object]]:
    """Making a batch that was not made before, and training on one."""
    task = build_task(config)
    data, size = task.datasets().train, config.train.batch_size
    model = build_model(config, task).train()
    optimizer = make_optimizer(model, config.optim)
    numbers = count()

    def make() -> tuple[torch.Tensor, ...]:
        first = next(numbers) * size % max(1, len(data) - size)  # type: ignore[arg-type]
        return data[list(range(first, first + size))]  # type: ignore[no-any-return]

    batch = unpack(make())

    def train() -> None:
        optimizer.zero_grad()
        task.loss(read(model, batch, None)[0], batch.target).backward()
        optimizer.step()

    return {"make": make, "train": train}


def row(name: str) -> list[str]:
    """One task: its setting, both times and their ratio."""
    config = config_of(name)
    times = in_turn(
        {key: Candidate(call) for key, call in contenders(config).items()},
        seconds=SECONDS,
        limit=LIMIT,
    )
    share = times["make"].seconds / times["train"].seconds
    steps = f"{build_task(config).sequence_length:,}"
    setting = f"{config.mixer}, width {config.model.d_model}, {config.model.n_layers} layers"
    batch = str(config.train.batch_size)
    cells = [times["make"].text(), times["train"].text(), f"{100 * share:.1f}"]
    return [name, setting, steps, batch, *cells]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=None, help="all that are generated")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # as the recipes train
    rows = []
    for name in options.tasks or generated():
        rows.append(row(name))
        print(rows[-1], file=sys.stderr, flush=True)
    head = ["task", "model", "steps", "batch", "make (ms)", "train (ms)", "make / train (%)"]
    lines = ["# Making data", "", *conditions(command_line(), ["torch", "numpy"]), ""]
    lines += section("data", table(head, rows))
    print("\n".join(lines))
    write_lines(options.out / "data.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
