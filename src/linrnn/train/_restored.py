"""Reads a checkpoint and checks types and sizes against its run before anything is restored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn._files.reading import reading
from linrnn._options.schema import AnyFloat, record
from linrnn.errors import RunFolderError
from linrnn.learn import Learner
from linrnn.state import check_flat
from linrnn.train.checkpoint import load_tree

_FIX = "Restore it from a copy, or train again."


@dataclass(frozen=True, kw_only=True)
class Best:
    """The validation that was best."""

    metric: AnyFloat
    loss: AnyFloat
    step: int


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Running sums of an epoch that is not at its end."""

    loss: AnyFloat = 0.0
    metric: AnyFloat = 0.0
    examples: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of steps whose numbers were not finite."""

    skipped: int = 0
    in_a_row: int = 0
    rollbacks: int = 0
    since_epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The counters and running means that a run stores in a checkpoint.

    Raises:
        ArgumentError, UnknownNameError, ValueError: no run has come to this.
    """

    step: int
    seconds: float
    best: dict[str, Any]
    """State of `Best`; empty before the first validation."""
    train_mean: dict[str, Any]
    """State of `Sums`."""
    train_scores: Tensor | None = None
    """(examples, numbers) of the epoch so far, where the metric is one of all predictions."""
    carried: dict[str, Tensor] | None = None
    not_finite: dict[str, Any] = field(default_factory=dict)
    """State of `Counts`."""
    learner: dict[str, Tensor] = field(default_factory=dict)
    """The learner's state."""

    def __post_init__(self) -> None:
        best = record("best", Best, self.best)["step"] if self.best else 1
        record("train_mean", Sums, self.train_mean)
        counts = asdict(Counts(**record("not_finite", Counts, self.not_finite)))
        object.__setattr__(self, "not_finite", counts)
        if self.step < 0 or best < 1 or self.seconds < 0 or min(counts.values()) < 0:
            raise ValueError(f"step {self.step}, best {best}, {self.seconds} s, {counts}")


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    last_epoch: int
    _step_count: int
    _last_lr: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """The names in a checkpoint that are used; Lightning writes others."""

    run: dict[str, Any]
    state_dict: dict[str, Tensor]
    optimizer_states: list[Any]
    lr_schedulers: list[Any]
    metrics: str | None = None
    epoch: int = 0
    global_step: int = 0


def progress(path: Path, *, inside: Path) -> tuple[Progress, str | None, dict[str, Tensor]]:
    """The counters of a checkpoint, what ``metrics.csv`` held then, and the weights.

    Raises:
        RunFolderError: no such file, damaged, or not the checkpoint of a run.
    """
    tree = load_tree(path, inside=inside)
    with reading(path, RunFolderError, "hold step and best of a run", _FIX):
        checkpoint = _Tree(**record("checkpoint", _Tree, tree, more=True))
        return (
            Progress(**record("run", Progress, checkpoint.run)),
            checkpoint.metrics,
            checkpoint.state_dict,
        )


class Expected(NamedTuple):
    """The weights, optimiser, steps, state and learner that a checkpoint must match."""

    weights: Mapping[str, Tensor]
    """By name: shapes and dtypes count."""
    optimizer: torch.optim.Optimizer
    """A fresh one."""
    steps: int
    """Steps of the whole run."""
    state: Mapping[str, Tensor]
    """State of one sequence, flat."""
    learner: Learner
    """One of the same options, which takes what is of such a one."""


def restore_point(path: Path, expected: Expected, *, inside: Path) -> dict[str, Any]:
    """A checkpoint for Lightning: nothing in it but what a run like this one has written.

    The settings of the optimiser are not those of the file, which are the configuration's.

    Args:
        path: the file.
        expected: of the run.
        inside: the run's folder, below which no link is followed.

    Raises:
        RunFolderError: no such file, damaged, or the checkpoint of another run.
    """
    tree = load_tree(path, inside=inside)
    with reading(path, RunFolderError, "be a checkpoint of this run", _FIX):
        checkpoint = _Tree(**record("checkpoint", _Tree, tree, more=True))
        run = Progress(**record("run", Progress, checkpoint.run))
        if run.step > expected.steps:
            raise ValueError(f"step {run.step} of {expected.steps}")
        _check_like("state_dict", checkpoint.state_dict, expected.weights)
        if run.carried is not None:
            check_flat(path, run.carried, expected.state)
        expected.learner.load_state_dict(run.learner)
        (means_of,), (schedule,) = checkpoint.optimizer_states, checkpoint.lr_schedulers
        at = _Schedule(**record("lr_schedulers", _Schedule, schedule, more=True))
        fresh = expected.optimizer.state_dict()["param_groups"]
        if len(at._last_lr) != len(fresh):
            raise ValueError(f"{len(at._last_lr)} learning rates for {len(fresh)} groups")
        pairs = zip(fresh, at._last_lr, strict=True)
        groups = [group | {"lr": lr, "initial_lr": group["lr"]} for group, lr in pairs]
        means = moments(means_of["state"], expected.optimizer)
        return {
            "epoch": checkpoint.epoch,
            "global_step": checkpoint.global_step,
            "pytorch-lightning_version": _lightning_version(),
            "state_dict": checkpoint.state_dict,
            "callbacks": {},
            "run": vars(run),
            "optimizer_states": [{"state": means, "param_groups": groups}],
            "lr_schedulers": [
                {
                    **vars(at),
                    "_last_lr": list(at._last_lr),
                    "base_lrs": [group["initial_lr"] for group in groups],
                    "lr_lambdas": [None for _ in groups],
                }
            ],
        }


def moments(state: Any, optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """The optimiser's means, those of each parameter of its size."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not isinstance(state, dict) or not set(state) <= set(range(len(parameters))):
        raise ValueError("means of other parameters")
    for i, means in state.items():
        like = {name: parameters[i] for name in ("exp_avg", "exp_avg_sq")}
        like["step"] = torch.zeros(())
        record_of = means if isinstance(means, dict) else {}
        _check_like(f"the optimiser's state {i}", record_of, like)
        if not bool(means["step"] >= 0) or not bool(means["step"].isfinite()):
            raise ValueError(f"step {means['step']} of the optimiser")
    return state


def _check_like(what: str, tensors: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
    """Raise unless all tensors are there, of the shapes and dtypes of others."""
    if tensors.keys() != like.keys():
        name = min(map(str, tensors.keys() ^ like.keys()))
        raise ValueError(f"{what} with other names, such as {name!r:.60}")
    for name, x in like.items():
        y = tensors[name]
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            kind = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else f"{y!r:.40}"
            raise ValueError(f"{kind} as {name} of {what}, not {tuple(x.shape)} of {x.dtype}")


def _lightning_version() -> str:
    """The installed version: Lightning would convert checkpoints of older ones; ours need none."""
    import lightning

    return str(lightning.__version__)
