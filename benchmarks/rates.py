"""Which learning rate is the better default? Two rates, five seeds, four mixers, three small tasks.

    python benchmarks/rates.py --data folder

All that differs between two runs of a pair is the rate: weights at the start, batches, the number
of steps, warm-up, cosine, weight decay and clipping are those of `linrnn.train.OptimConfig`. The
folder has JapaneseVowels of the UEA archive in ``timeseries`` and ETTh1 in ``ett``; Mackey-Glass is
computed. Runs go to ``benchmarks/results/rates-cpu.csv`` one by one, and those that are there
already are not trained again. The table beside it has the mean of each setting, and for each the
paired differences by seed.
"""

import argparse
import csv
import math
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn.learn import Batch
from linrnn.tasks import Task
from linrnn.tasks.forecast import Forecast, ForecastOptions
from linrnn.tasks.mackey_glass import MackeyGlass, MackeyGlassOptions
from linrnn.tasks.table import Table, TableOptions
from linrnn.train import Config, ModelConfig, OptimConfig
from linrnn.train.data import unpack
from linrnn.train.model import build_model
from linrnn.train.optim import lr_factor, make_optimizer

RATES = (0.001, 0.003)
MIXERS = ("gru", "lru", "mingru", "mamba")
HEAD = ("task", "mixer", "steps", "seed", "lr", "metric", "test", "train_loss", "seconds")
BATCH = 32
_TESTED = 1000
"""Examples of the test part that are scored, the first ones."""


class Run(NamedTuple):
    """One training."""

    task: str
    mixer: str
    steps: int
    seed: int
    lr: float
    metric: str
    test: float
    train_loss: float
    """Mean over the last tenth of the steps."""
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, int, float]:
        """By it a run is found again."""
        return self.task, self.mixer, self.steps, self.seed, self.lr


def tasks_of(data: Path) -> dict[str, Task]:
    """By name; two read files of a folder."""
    vowels = data / "timeseries" / "JapaneseVowels_TRAIN.ts.gz"
    hours = ForecastOptions(
        data=str(data / "ett" / "ETTh1.csv"), time="date", horizon=24, length=48
    )
    return {
        "JapaneseVowels": Table(TableOptions(data=str(vowels))),
        "ETTh1": Forecast(hours),
        "Mackey-Glass": MackeyGlass(MackeyGlassOptions(length=100, train_size=1024)),
    }


def train(task: Task, mixer: str, seed: int, lr: float, steps: int) -> tuple[float, float]:
    """The test metric and the training loss of a model of two layers of width 32."""
    shape = ModelConfig(d_model=32, n_layers=2, pool=task.pools[0])
    optim = OptimConfig(lr=lr)
    name = type(task).__module__.rpartition(".")[2]
    config = Config(
        task=name, task_options=task.options, mixer=mixer, model=shape, optim=optim, seed=seed
    )
    model = build_model(config, task)
    optimizer = make_optimizer(model, config.optim)
    rates = [group["lr"] for group in optimizer.param_groups]
    parts = task.datasets()
    torch.manual_seed(seed)  # of dropout
    order = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(steps):
        picked = torch.randint(len(parts.train), (BATCH,), generator=order)  # type: ignore[arg-type]
        x, target, lengths, reset, dt = batch_of(parts.train, picked.tolist())
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * lr_factor(step, steps, config.optim)
        loss = task.loss(model(x, lengths=lengths, reset=reset, dt=dt)[0], target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        losses.append(loss.item())
    tested = range(min(_TESTED, len(parts.test)))  # type: ignore[arg-type]
    return score(model.eval(), task, parts.test, tested), mean(losses[-steps // 10 :])


def batch_of(dataset: Any, places: Iterable[int]) -> Batch:
    """Some examples of a part."""
    columns = zip(*(dataset[place] for place in places), strict=True)
    return unpack([torch.stack(column) for column in columns])


@torch.no_grad()
def score(model: Any, task: Task, dataset: Any, places: Iterable[int]) -> float:
    """The task's metric, a mean over examples."""
    scores = []
    for part in torch.tensor(list(places)).split(250):
        x, target, lengths, reset, dt = batch_of(dataset, part.tolist())
        y = model(x, lengths=lengths, reset=reset, dt=dt)[0]
        scores.append(task.scores(y, target).flatten())
    return float(torch.cat(scores).float().mean())


def read(path: Path) -> list[Run]:
    """Runs of a file, if there is one."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Run(t, m, int(n), int(s), float(lr), what, *map(float, rest))
        for t, m, n, s, lr, what, *rest in rows
    ]


def compared(runs: list[Run]) -> list[tuple[str, ...]]:
    """A row for each task, mixer and number of steps: both means, and the paired difference.

    The difference is that of the larger rate, positive where it is better.
    """
    rows = []
    for task, mixer, steps in dict.fromkeys((r.task, r.mixer, r.steps) for r in runs):
        found = [r for r in runs if (r.task, r.mixer, r.steps) == (task, mixer, steps)]
        by_rate = [{r.seed: r.test for r in found if r.lr == lr} for lr in RATES]
        seeds = sorted(by_rate[0].keys() & by_rate[1].keys())
        if len(seeds) < 2:
            continue
        sign = 1 if found[0].metric == "accuracy" else -1
        gains = [sign * (by_rate[1][seed] - by_rate[0][seed]) for seed in seeds]
        error = stdev(gains) / math.sqrt(len(gains))
        means = [f"{mean(one[seed] for seed in seeds):.3g}" for one in by_rate]
        rows.append(
            (task, mixer, str(steps), found[0].metric, *means, f"{mean(gains):+.2g} ± {error:.1g}")
        )
    return rows


def main() -> None:
    """Train what is not there yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tasks", nargs="+", default=None, metavar="TASK")
    parser.add_argument("--output", type=Path, default=RESULTS / "rates-cpu.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    log = args.output.with_suffix(".csv")
    runs = read(log)
    known = {run.key for run in runs}
    if not runs:
        log.write_text(",".join(HEAD) + "\n", encoding="utf-8")
    tasks = {n: t for n, t in tasks_of(args.data).items() if args.tasks is None or n in args.tasks}
    for seed, (name, task), mixer, lr in product(range(args.seeds), tasks.items(), MIXERS, RATES):
        if (name, mixer, args.steps, seed, lr) in known:
            continue
        begin = time.process_time()
        test, loss = train(task, mixer, seed, lr, args.steps)
        seconds = round(time.process_time() - begin, 1)
        metric = "accuracy" if task.kind == "classification" else "mse"
        runs.append(Run(name, mixer, args.steps, seed, lr, metric, test, loss, seconds))
        with log.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(runs[-1])
        print(*runs[-1], flush=True)
    head = ("task", "mixer", "steps", "metric", *map(str, RATES), "gain of the larger rate")
    write_lines(
        args.output,
        [
            "# Two learning rates",
            "",
            *conditions(command_line(), ["torch"]),
            f"- mean test score over seeds, two layers of width 32, batches of {BATCH}; gain: mean "
            "difference of a seed at both rates with its standard error, positive: the larger is "
            "better",
            "",
            *section("rates", table(head, compared(runs))),
        ],
    )


if __name__ == "__main__":
    main()
