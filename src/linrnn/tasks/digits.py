"""Handwritten digits, read one pixel at a time."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from linrnn.errors import ArgumentError, MissingExtraError
from linrnn.tasks._base import Splits, Task, tensors

_SIDE = 8
_SPLIT_SEED = 0  # the split is part of the task: never the run's seed


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """Options of the task `digits`."""

    shift: int = 1
    """Largest shift of a training image in each direction, in pixels; 0 leaves it in place."""
    noise: float = 0.1
    """Standard deviation of the normal noise on each training pixel; pixels are in [0, 1]."""


class Digits(Task):
    """Handwritten digits of scikit-learn: 1,797 real 8x8 images as sequences of 64 pixels.

    The data comes with scikit-learn (the test part of the UCI set "Optical Recognition of
    Handwritten Digits"), so nothing is downloaded. Pixels are 0..16, divided by 16, read row by
    row. The split is fixed and stratified by class: 1,257 training, 180 validation and 360 test
    images. Training images are
    shifted by up to ``shift`` pixels and get normal noise of size ``noise``; the others never.

    Args:
        options: `DigitsOptions`.

    Raises:
        ArgumentError: a shift outside 0..7, a noise below 0.
        MissingExtraError: scikit-learn is not installed.
    """

    Options: ClassVar[type] = DigitsOptions
    summary: ClassVar[str] = "handwritten digits, 8x8 pixels read one at a time, 10 classes"

    chance = 0.1
    sequence_length = _SIDE * _SIDE
    d_input = 1
    d_output = 10
    class_names = tuple("0123456789")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        if not 0 <= self.options.shift < _SIDE:
            raise ArgumentError(
                f"Digits: shift must be in 0..{_SIDE - 1}, got {self.options.shift}."
            )
        if not 0 <= self.options.noise < float("inf"):
            raise ArgumentError(f"Digits: noise must be at least 0, got {self.options.noise}.")

    def datasets(self) -> Splits:
        """Read the images and split them: see `Task.datasets`."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise MissingExtraError("the task digits", "scikit-learn", "train") from error
        pixels, labels = load_digits(return_X_y=True)
        return _split(pixels, labels)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Shift each image by a random whole number of pixels, fill with 0, and add noise."""
        reach, batch = self.options.shift, len(x)
        offsets = torch.randint(0, 2 * reach + 1, (2, batch, 1), generator=generator)
        rows, columns = (offsets + torch.arange(_SIDE)).to(x.device)  # (B, 8) each
        padded = pad(x.view(batch, _SIDE, _SIDE), (reach,) * 4)
        image = torch.arange(batch, device=x.device)[:, None, None]
        shifted = padded[image, rows[:, :, None], columns[:, None, :]]  # (B, 8, 8)
        noise = torch.randn(x.shape, generator=generator).to(x)
        return shifted.reshape(x.shape) + self.options.noise * noise


def _split(pixels: np.ndarray, labels: np.ndarray) -> Splits:
    """70 %, 10 % and 20 % of every class, the same on every machine."""
    # RandomState's stream is frozen by NumPy's compatibility promise; that of Generator is not
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    slot = np.arange(len(order)) % 10
    parts = (~np.isin(slot, (0, 1, 5)), slot == 1, np.isin(slot, (0, 5)))
    x = torch.from_numpy(pixels.astype(np.float32) / 16)[..., None]  # (images, 64, 1)
    target = torch.from_numpy(labels.astype(np.int64))
    return Splits(*(tensors(x[order[p]], target[order[p]], "digits") for p in parts))
