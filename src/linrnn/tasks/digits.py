"""Handwritten digits, read one pixel at a time."""

from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from linrnn.errors import ArgumentError, DataError, MissingExtraError, check_in
from linrnn.tasks._kinds.base import Splits, Task, tensors

_SIDE = 8
_WHITE = 16  # the largest pixel in the file
_SPLIT_SEED = 0  # the split is part of the task: never the run's seed
_ORDER_SEED = 92916  # as for the larger images of `psmnist`


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """Options of the task `digits`."""

    shift: int = 1
    """Largest shift of a training image in each direction, in pixels; 0 leaves it in place."""
    turn: float = 8.0
    """Largest rotation of a training image either way, in degrees."""
    stretch: float = 0.1
    """Largest relative change of a training image's width and of its height, in [0, 1)."""
    noise: float = 0.1
    """Standard deviation of the normal noise on each training pixel; pixels are in [0, 1]."""
    order: Literal["rows", "permuted"] = "rows"
    """Pixels are read row by row, or in a fixed random order, the same for all images."""


class Digits(Task):
    """Handwritten digits of scikit-learn: 1,797 real 8x8 images as sequences of 64 pixels.

    The data comes with scikit-learn (the test part of the UCI set "Optical Recognition of
    Handwritten Digits"), so nothing is downloaded. Pixels are 0..16, divided by 16, read row by
    row, or in a random order in which neighbours lie far apart. The split is fixed and stratified
    by class: 1,257 training, 180 validation and 360 test images. Training images are turned,
    stretched, shifted and get noise, a little and anew each time; the others never.

    Args:
        options: `DigitsOptions`.

    Raises:
        ArgumentError: a shift outside 0..7, a stretch outside [0, 1), a negative turn or noise.
        UnknownNameError: another order.
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
        if not 0 <= self.options.stretch < 1:
            raise ArgumentError(f"Digits: stretch must be in [0, 1), got {self.options.stretch}.")
        for name in ("turn", "noise"):
            value = getattr(self.options, name)
            if not 0 <= value < float("inf"):
                raise ArgumentError(f"Digits: {name} must be at least 0, got {value}.")
        check_in("Digits", "order", self.options.order, ("rows", "permuted"))
        order = np.arange(_SIDE * _SIDE)
        if self.options.order == "permuted":
            order = np.random.RandomState(_ORDER_SEED).permutation(len(order))
        self._order = torch.from_numpy(order)
        self._place = self._order.argsort()

    def datasets(self) -> Splits:
        """Read the images and split them: see `Task.datasets`."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise MissingExtraError("the task digits", "scikit-learn", "train") from error
        pixels, labels = load_digits(return_X_y=True)
        return _split(pixels[:, self._order.numpy()], labels)

    def picture(self, x: Tensor) -> Tensor:
        """The image (8, 8), after `augment` with its noise cut off: see `Task.picture`."""
        return x.flatten()[self._place.to(x.device)].reshape(_SIDE, _SIDE).clamp(0, 1)

    def read(self, path: Path) -> Tensor:
        """Images from a user's file, a row of 64 pixels each, 0..16 as scikit-learn has them."""
        pixels = super().read(path)
        low, high = (pixels.min().item(), pixels.max().item()) if len(pixels) else (0, _WHITE)
        if low < 0 or 0 < high <= 1 or high > _WHITE:
            raise DataError(
                f"{path}: pixels must lie in 0..{_WHITE}, as sklearn.datasets.load_digits gives "
                f"them, got {low:g} to {high:g}. Scale them so that white is {_WHITE}."
            )
        return self.arranged(pixels)

    def scaled(self, x: Tensor) -> Tensor:
        """Pixels of 0..16, white is 1."""
        return x / _WHITE

    def arranged(self, x: Tensor) -> Tensor:
        """Whole images, their pixels in the order of this task."""
        return self.scaled(x[:, self._order])

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Turn, stretch and shift each image at random, fill with 0, and add noise."""
        images = x[:, self._place.to(x.device)].view(len(x), _SIDE, _SIDE)  # (B, 8, 8)
        images = self._shift(self._deform(images, generator), generator)
        noise = torch.randn(x.shape, generator=generator).to(x)
        noisy: Tensor = images.reshape(x.shape) + self.options.noise * noise
        return noisy[:, self._order.to(x.device)]

    def _deform(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Rotation and stretching, interpolated between pixels."""
        turn, width, height = 2 * torch.rand(3, len(images), generator=generator) - 1  # (B,) each
        angle = turn * self.options.turn * pi / 180
        width, height = 1 + width * self.options.stretch, 1 + height * self.options.stretch
        zero = torch.zeros_like(angle)
        rows = (
            torch.stack([angle.cos() / width, -angle.sin(), zero], 1),
            torch.stack([angle.sin(), angle.cos() / height, zero], 1),
        )
        maps = torch.stack(rows, 1).to(images)  # (B, 2, 3)
        grid = affine_grid(maps, [len(images), 1, _SIDE, _SIDE], align_corners=False)
        moved: Tensor = grid_sample(images[:, None], grid, align_corners=False)  # (B, 1, 8, 8)
        return moved[:, 0]

    def _shift(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Whole pixels, so that nothing is blurred twice."""
        reach, batch = self.options.shift, len(images)
        offsets = torch.randint(0, 2 * reach + 1, (2, batch, 1), generator=generator)
        rows, columns = (offsets + torch.arange(_SIDE)).to(images.device)  # (B, 8) each
        image = torch.arange(batch, device=images.device)[:, None, None]
        return pad(images, (reach,) * 4)[image, rows[:, :, None], columns[:, None, :]]  # (B, 8, 8)


def _split(pixels: np.ndarray, labels: np.ndarray) -> Splits:
    """70 %, 10 % and 20 % of every class, the same on every machine."""
    # RandomState's stream is frozen by NumPy's compatibility promise; that of Generator is not
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    slot = np.arange(len(order)) % 10
    parts = (~np.isin(slot, (0, 1, 5)), slot == 1, np.isin(slot, (0, 5)))
    x = torch.from_numpy(pixels.astype(np.float32) / _WHITE)[..., None]  # (images, 64, 1)
    target = torch.from_numpy(labels.astype(np.int64))
    return Splits(*(tensors(x[order[p]], target[order[p]], "digits") for p in parts))
