"""The contest for one answer to each sequence."""

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.utils.data import Dataset

from linrnn.contest._race import Entry, Scale
from linrnn.contest._trial import Trial
from linrnn.estimators import RecurrentClassifier, RecurrentRegressor
from linrnn.estimators.frozen import bank_model
from linrnn.frozen import BankModel
from linrnn.tasks import Task
from linrnn.train import Config
from linrnn.train.data import eval_loader, size_of, unpack

MOST_NUMBERS = 2_000_000
"""Numbers of all sequences up to which the bank is tried: about a minute of two cores."""
_SMALL = 1000
"""Sequences up to which a mixer is trained once for each of three parts that are left out."""
_FOLDS = 3
_ROWS = 256

_UNSEEN = -1e6
"""The score of a class that no sequence was of."""


@dataclass(frozen=True)
class Pool:
    """The sequences of the training and the validation part, in memory."""

    task: Task
    parts: tuple[Tensor, ...]
    """x (sequences, time, channels), targets, and lengths and times where there are some."""
    n_train: int

    @classmethod
    def of(cls, task: Task, train: Dataset[Any], validation: Dataset[Any]) -> "Pool":
        """The examples of both parts."""
        batches = [tuple(b) for part in (train, validation) for b in eval_loader(part, _ROWS)]
        parts = tuple(map(torch.cat, zip(*batches, strict=True)))
        return cls(task, parts, size_of(train, "training data"))

    def take(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Some of the sequences as a batch."""
        return tuple(part[rows] for part in self.parts)

    @property
    def target(self) -> Tensor:
        """(sequences, ...)."""
        return self.parts[1]

    @property
    def classes(self) -> bool:
        """Whether the answers are classes."""
        return self.task.kind == "classification"

    @cached_property
    def flat(self) -> np.ndarray:
        """All numbers of a sequence in a row, padded with 0, the mean."""
        flat: np.ndarray = self.parts[0].flatten(1).double().numpy()
        return flat

    @cached_property
    def answers(self) -> np.ndarray:
        """(sequences,): class numbers, or numbers of the unit of the task."""
        answers: np.ndarray = self.target.reshape(len(self.target), -1)[:, 0].numpy()
        return answers

    def scores(self, answers: np.ndarray) -> Tensor:
        """Numbers (sequences,) whose mean is the metric.

        Args:
            answers: class numbers (sequences,) or scores of classes (sequences, classes); in
                regression numbers (sequences,).
        """
        if self.classes:
            y = torch.from_numpy(answers)
            if y.ndim == 1:
                y = nn.functional.one_hot(y.long(), self.task.d_output)
            return self.task.contributions(self.task.scores(y.double(), self.target).double())
        return torch.from_numpy((answers - self.answers.astype(np.float64)) ** 2)

    def observed(self) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
        """Sequences (time, channels), NaN where a value is missing, and times where there are."""
        x, _, lengths, _, dt = unpack(self.parts)
        channels = x.shape[2]
        if marked(self.task):
            channels //= 2
            x = x[..., :channels].masked_fill(x[..., channels:] > 0, torch.nan)
        ends = [x.shape[1]] * len(x) if lengths is None else lengths.flatten().tolist()
        rows = [row[:n].double().numpy() for row, n in zip(x, ends, strict=True)]
        if dt is None:
            return rows, None
        return rows, [row[:n].double().numpy() for row, n in zip(dt, ends, strict=True)]


def marked(task: Task) -> bool:
    """Whether the second half of the numbers of a step marks what is missing in the first."""
    masks = getattr(task.options, "missing", "error") == "mask"
    return masks and task.d_input == 2 * task.channels


def fit_bank(pool: Pool, seed: int) -> tuple[BankModel, Tensor]:
    """A bank that read all sequences, and what it says of each without it.

    Raises:
        ValueError: of the estimator, where it cannot be fitted.
    """
    kind = RecurrentClassifier if pool.classes else RecurrentRegressor
    rows, dt = pool.observed()
    estimator = kind(random_state=seed, layout="time_channels").fit(rows, pool.answers, dt)
    model = bank_model(estimator.readout_, pool.task.d_input)
    left_out = estimator.readout_.left_out
    if not pool.classes:
        return model, pool.scores(left_out[:, 0])
    present = estimator.classes_
    if left_out.shape[1] == 1:  # the margin of the second of two classes
        left_out = np.concatenate([-left_out, left_out], 1)
    answers = spread(left_out, present, pool.task.d_output)
    return _for_all(model, present, pool.task.d_output), pool.scores(answers)


def spread(scores: np.ndarray, present: np.ndarray, n_classes: int) -> np.ndarray:
    """Scores (sequences, classes) of the classes that occur, beside minus infinity for others."""
    spread = np.full((len(scores), n_classes), -np.inf)
    spread[:, present] = scores
    return spread


def _for_all(model: BankModel, present: np.ndarray, n_classes: int) -> BankModel:
    """A model with an output for classes that no sequence was of as well."""
    if len(present) == n_classes:
        return model
    head: nn.Linear = model.head
    read_out = for_all(head.weight.detach(), head.bias.detach(), present, n_classes)
    return BankModel(model.bank, model.d_input, *read_out)


def for_all(
    weight: Tensor, bias: Tensor, present: np.ndarray, n_classes: int
) -> tuple[Tensor, Tensor]:
    """A linear read-out with a row for each class: one that did not occur never answers."""
    places = torch.from_numpy(present)
    weights = weight.new_zeros(n_classes, weight.shape[1])
    biases = bias.new_full((n_classes,), _UNSEEN)
    weights[places], biases[places] = weight, bias
    return weights, biases


def nearest(pool: Pool, scale: Scale) -> Entry:
    """The nearest other sequence."""
    begin = time.perf_counter()
    return scale.entry("the nearest sequence", "plain", pool.scores(_nearest(pool)), begin)


def _nearest(pool: Pool) -> np.ndarray:
    near = NearestNeighbors(n_neighbors=2).fit(pool.flat).kneighbors(pool.flat)[1]
    itself = near[:, 0] == np.arange(len(near))  # alike ones may stand before it
    answers: np.ndarray = pool.answers[np.where(itself, near[:, 1], near[:, 0])]
    return answers


def folds(pool: Pool, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three parts of the sequences, each once left out, with the classes in proportion."""
    counts = np.unique(pool.answers, return_counts=True)[1] if pool.classes else np.array([1])
    stratified = pool.classes and counts.min() >= _FOLDS
    kind = (StratifiedKFold if stratified else KFold)(_FOLDS, shuffle=True, random_state=seed)
    return list(kind.split(pool.flat, pool.answers))


def splits_of(pool: Pool, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The split of the task, for many sequences."""
    if len(pool.target) <= _SMALL:
        return folds(pool, seed)
    rows = np.arange(len(pool.target))
    return [(rows[: pool.n_train], rows[pool.n_train :])]


def race(config: Config, pool: Pool, holder: Tensor, scale: Scale) -> tuple[Entry, bool]:
    """Train the mixer without each part in turn, as long as it may win; and whether it did."""
    begin, trial = time.perf_counter(), Trial(config, pool.task, pool.take)
    scores, judged = torch.zeros_like(holder), torch.zeros(len(holder), dtype=torch.bool)
    splits = splits_of(pool, config.seed)
    due = torch.zeros_like(judged)
    for _, judge in splits:
        due[torch.from_numpy(judge)] = True
    remark = f"{trial.steps} steps"
    for train, judge in splits:
        if not scale.may_win(scores[due], holder[due], judged[due]):
            left = int((due & ~judged).sum())
            remark = (
                f"{trial.steps} steps; stopped with {left:,} sequences to go: it can no longer win"
                if bool(judged.any())
                else "not trained: even a perfect score would not win"
            )
            break
        rows = torch.from_numpy(judge)
        scores[rows] = trial.scores(torch.from_numpy(train), rows).double()
        judged[rows] = True
    complete = bool((judged == due).all())
    entry = scale.entry(config.mixer, "trained", scores[judged], begin, remark)
    return entry, complete and scale.wins(scores[due], holder[due])
