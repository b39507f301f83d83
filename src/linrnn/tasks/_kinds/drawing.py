"""Shared by generated tasks: sizes of the splits, random choices, squared errors, symbols."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.tasks._kinds.base import IGNORE, Splits
from linrnn.tasks._kinds.generated import SPLITS, Generated, Uniform


@dataclass(frozen=True, kw_only=True)
class GeneratedOptions:
    """Options of every generated task."""

    train_size: int = 10_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 1_000
    """Validation sequences."""
    test_size: int = 2_000
    """Test sequences."""
    data_seed: int = 0
    """Seed of the sequences; the seed of a run does not change them."""


class Regression:
    """The part of a regression task that scores: mean squared error over steps and channels."""

    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    metric: ClassVar[str] = "mse"
    loss_name: ClassVar[str] = "mean squared error"
    higher_is_better: ClassVar[bool] = False

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error."""
        return nn.functional.mse_loss(y, target)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of each example."""
        return (y - target).square().flatten(1).mean(1)


def check_options(where: str, options: Any, *sizes: str) -> None:
    """Refuse options of which a size, one of ``sizes`` or of a split, is no positive integer."""
    names = (*sizes, *(f"{split}_size" for split in SPLITS))
    check_positive_int(where, **{name: getattr(options, name) for name in names})
    if options.data_seed < 0:
        raise ArgumentError(f"{where}: data_seed must be at least 0, got {options.data_seed}.")


def check_readable(where: str, times: str) -> None:
    """Refuse to read inputs from a table, which has no place for times between steps.

    Raises:
        ArgumentError: ``times`` is "dt".
    """
    if times == "dt":
        raise ArgumentError(
            f"{where}: times must be 'column' or 'none' to read inputs from a file, got 'dt'. "
            "Call the model with dt, as SequenceModel.forward takes it."
        )


def splits(options: GeneratedOptions, draw: Callable[[Uniform], tuple[Tensor, ...]]) -> Splits:
    """Training, validation and test data of the sizes in ``options``."""
    sizes = (options.train_size, options.validation_size, options.test_size)
    return Splits(
        *(
            Generated(size, split, draw, options.data_seed)
            for size, split in zip(sizes, SPLITS, strict=True)
        )
    )


def integers(u: np.ndarray, low: int, high: int) -> np.ndarray:
    """Uniform numbers in [0, 1) as integers in low..high-1."""
    return low + (u * (high - low)).astype(np.int64)


def normal(uniform: Uniform, n: int) -> np.ndarray:
    """(examples, n) numbers with mean 0 and variance 1, by the method of Box and Muller."""
    radius, angle = uniform(n), uniform(n)
    numbers: np.ndarray = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return numbers


def distinct(uniform: Uniform, k: int, n: int) -> np.ndarray:
    """(examples, k) different integers of 0..n-1 in random order.

    Floyd's method for a subset (Bentley and Floyd 1987), whatever the size of n, then a shuffle.
    """
    u = uniform(k)
    chosen = np.full(u.shape, -1)
    for i, top in enumerate(range(n - k, n)):
        new = integers(u[:, i], 0, top + 1)
        is_chosen = (chosen == new[:, None]).any(1)
        chosen[:, i] = np.where(is_chosen, top, new)
    return np.take_along_axis(chosen, uniform(k).argsort(1, kind="stable"), 1)


def recall(
    tokens: np.ndarray, positions: np.ndarray, steps: int, marker: int
) -> tuple[np.ndarray, np.ndarray]:
    """Blanks (0) with tokens among them, then as many markers, at which the tokens are targets.

    Args:
        tokens: (examples, k).
        positions: of the tokens, below ``steps``.
        steps: before the first marker.
        marker: the symbol.

    Returns:
        Input and target, (examples, steps + k) each.
    """
    examples, k = tokens.shape
    x = np.zeros((examples, steps + k), np.int64)
    np.put_along_axis(x, positions, tokens, 1)
    x[:, steps:] = marker
    target = np.full_like(x, IGNORE)
    target[:, steps:] = tokens
    return x, target


def spell_recall(x: Tensor, target: Tensor, marker: int) -> str:
    """Input and target of `recall` in symbols: blanks as dots, unscored steps as dashes."""
    symbols = {0: "·", marker: "?", IGNORE: "-"}
    lines = (spell(v.tolist(), lambda i: symbols.get(i, str(i))) for v in (x, target))
    return "input {}\ntarget {}".format(*lines)


def to_tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    """Arrays as tensors, real numbers as float32."""
    tensors = (torch.from_numpy(a) for a in arrays)
    return tuple(a.float() if a.is_floating_point() else a for a in tensors)


def spell(ids: Sequence[int], symbols: Callable[[int], str] = str) -> str:
    """Symbols with spaces between them; more than three equal ones in a row are counted.

    Example:
        >>> spell([3, 1, 0, 0, 0, 0, 0, 9], lambda i: ".123456789"[i])
        '3 1 .×5 9'
    """
    words = []
    for i, run in groupby(ids):
        count = len(list(run))
        words += [symbols(i)] * count if count <= 3 else [f"{symbols(i)}×{count}"]
    return " ".join(words)
