"""Bouncing MNIST: two digits that move in a frame, to be predicted frame by frame."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.drawing import check_options, integers
from linrnn.tasks._kinds.generated import SPLITS, Generated, Uniform
from linrnn.tasks._kinds.images import PixelOptions, held_out, in_characters, read_idx_images
from linrnn.tasks._kinds.mnist import SOURCES

SIDE, DIGIT = 64, 28
"""Pixels of a frame, and of a digit, in each direction."""
PIXELS = SIDE * SIDE
FREE = SIDE - DIGIT
"""Pixels that a digit can be moved by in each direction."""
_BASELINE_ROWS = 1_000  # training sequences that baselines are counted on
_VPN = (
    "Kalchbrenner et al. 2016, arXiv:1610.00527, Table 1: ten frames predicted from ten; compare "
    "the order only"
)


@dataclass(frozen=True, kw_only=True)
class BouncingMNISTOptions(PixelOptions):
    """Options of the task `bouncing_mnist`."""

    length: int = 20
    """Frames of a sequence."""
    context: int = 10
    """Frames before the first that is scored; training is on all frames but the first."""
    digits: int = 2
    """Digits in a frame."""
    speed: float = 0.1
    """Way of a digit in a frame, as a part of the 36 pixels it can move by."""
    train_size: int = 10_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 500
    """Validation sequences."""
    test_size: int = 1_000
    """Test sequences."""
    data_seed: int = 0
    """Seed of the sequences; the seed of a run does not change them."""


class BouncingMNIST(Task):
    """Predict the next frame of a film in which handwritten digits bounce off the borders.

    Two digits of MNIST, 28x28 pixels, start at random places of a frame of 64x64 pixels. Each has a
    direction uniform on the circle and moves in a straight line by a tenth of its free way (3.6
    pixels) a frame. It is reflected at the borders, so that it never leaves the frame. Where digits
    overlap, the brighter pixel is seen. A step is a frame of 4,096 pixels in [0, 1], and the target
    the frame after it. Training, validation and test films have digits from disjoint sets of
    images: 54,000 and 6,000 of MNIST's training images, and its 10,000 test images.

    The loss is the binary cross-entropy of sigmoid outputs, in nats a pixel. The metric is the same
    in nats a frame, summed over 4,096 pixels, mean over the last 10 of 20 frames, each predicted
    from all true frames before it. Pixels are grey, so that even the true frame as its own
    prediction has a loss above 0, their entropy. `baselines` measures this bound, the mean frame
    and the last frame.

    Published numbers are of the classical protocol: read ten frames, then predict ten without
    seeing them. The metric here is an easier one, as a model sees every frame before the next.
    The classical generator stops digits at a border for a frame, where here they are reflected.

    Args:
        options: `BouncingMNISTOptions`.

    Raises:
        ArgumentError: a length below 2, a context outside 1 to length - 1, a speed outside [0, 1],
            digits or a size below 1, a negative data_seed.

    Reference:
        Srivastava, Mansimov and Salakhutdinov, "Unsupervised Learning of Video Representations
        using LSTMs", ICML 2015, arXiv:1502.04681.
    """

    Options: ClassVar[type] = BouncingMNISTOptions
    summary: ClassVar[str] = "two MNIST digits bounce in 64x64 pixels: predict the next frame"
    metric: ClassVar[str] = "nats per frame"
    loss_name: ClassVar[str] = "binary cross-entropy (nats)"
    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    higher_is_better: ClassVar[bool] = False
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="fully connected LSTM", value=341.2, source=_VPN),
        Published(model="dynamic filter network", value=285.2, source=_VPN),
        Published(model="video pixel network", value=87.6, source=_VPN),
    )

    chance = PIXELS * math.log(2)
    d_input = d_output = PIXELS

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("BouncingMNIST", options, "digits")
        if options.length < 2:
            raise ArgumentError(f"BouncingMNIST: length must be at least 2, got {options.length}.")
        if not 1 <= options.context < options.length:
            raise ArgumentError(
                f"BouncingMNIST: context must be from 1 to length - 1 = {options.length - 1}, got "
                f"{options.context}."
            )
        if not 0 <= options.speed <= 1:
            raise ArgumentError(f"BouncingMNIST: speed must be in [0, 1], got {options.speed}.")
        self.sequence_length = options.length - 1

    def datasets(self) -> Splits:
        """Splits of x (length - 1, 4096) and target (length - 1, 4096), float32 in [0, 1]."""
        options = self.options
        images = self._images("train")
        train, validation = (images[part.numpy()] for part in held_out(len(images)))
        digits = (train, validation, self._images("test"))
        sizes = (options.train_size, options.validation_size, options.test_size)
        draws: list[Callable[[Uniform], tuple[Tensor, ...]]] = [
            partial(self._draw, part) for part in digits
        ]
        rows = zip(sizes, SPLITS, draws, strict=True)
        return Splits(*(Generated(*row, options.data_seed) for row in rows))

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """Binary cross-entropy in nats a pixel, mean over all predicted frames."""
        return F.binary_cross_entropy_with_logits(y, target)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Nats a frame of each film, over the frames after `context`."""
        first = self.options.context - 1
        nats = F.binary_cross_entropy_with_logits(
            y[:, first:].float(), target[:, first:], reduction="none"
        )
        return nats.sum(2).mean(1)

    def numbers(self, y: Tensor) -> Tensor:
        """Brightness in [0, 1] of the predicted frames: see `Task.numbers`."""
        return y.sigmoid()

    def baselines(self) -> dict[str, float]:
        """The metric on the test films of predictions without a model.

        ``mean frame`` is the mean of all frames of the training films, ``last frame`` the mean
        brightness of a pixel given that of the frame before, of 256 levels, both of 1,000 films at
        most. ``entropy`` is the true frame as its own prediction: nothing is better.
        """
        splits = self.datasets()
        x, target = splits.train[list(range(min(_BASELINE_ROWS, self.options.train_size)))]
        seen, after = splits.test[list(range(self.options.test_size))]
        levels = _levels(x).flatten()
        total = torch.bincount(levels, target.flatten().double(), minlength=256)
        curve = (total + 0.5) / (torch.bincount(levels, minlength=256) + 1)
        means = {
            "mean frame": target.mean((0, 1)).expand_as(after),
            "last frame": curve.float()[_levels(seen)],
            "entropy": after,
        }
        return {
            name: self.scores(torch.logit(mean, 1e-6), after).mean().item()
            for name, mean in means.items()
        }

    def picture(self, x: Tensor) -> Tensor:
        """The first frames side by side, five at most: see `Task.picture`."""
        frames = x[:5].reshape(-1, SIDE, SIDE).clamp(0, 1)
        return torch.cat(list(frames), 1)

    def example(self) -> str:
        """The first frame of a test film in characters; nothing is downloaded for it."""
        images = self._images("test", download=False)
        data = Generated(1, "test", partial(self._draw, images), self.options.data_seed)
        frame = data[0][0][0].reshape(SIDE, SIDE).numpy() * 255
        lines = ["input, its first frame", *in_characters(frame), "target: each next frame"]
        return "\n".join(lines)

    def _images(self, split: str, download: bool = True) -> np.ndarray:
        images, _ = read_idx_images(
            "bouncing_mnist", SOURCES, "mnist", split, self.options.data, download
        )
        return images

    def _draw(self, images: np.ndarray, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        chosen = images[integers(uniform(options.digits), 0, len(images))]  # (B, digits, 28, 28)
        corners = paths(
            np.stack([uniform(options.digits), uniform(options.digits)], -1),
            2 * np.pi * uniform(options.digits),
            options.speed,
            options.length,
        )
        frames = torch.from_numpy(film(chosen, corners)).float() / 255
        flat = frames.flatten(2)  # (B, frames, 4096)
        return flat[:, :-1], flat[:, 1:]


def paths(start: np.ndarray, angle: np.ndarray, speed: float, frames: int) -> np.ndarray:
    """Upper left corners (films, digits, frames, 2) of digits, in whole pixels of 0..36.

    Args:
        start: (films, digits, 2) in [0, 1), parts of the free way.
        angle: (films, digits) directions, in radians.
        speed: part of the free way that is covered in a frame.
        frames: how many.
    """
    velocity = speed * np.stack([np.sin(angle), np.cos(angle)], -1)
    way = start[:, :, None] + velocity[:, :, None] * np.arange(frames)[:, None]
    folded = 1 - np.abs(1 - way % 2)  # a straight line between two mirrors
    corners: np.ndarray = np.rint(folded * FREE).astype(np.int64)
    return corners


def film(digits: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Frames (films, frames, 64, 64) of digits (films, digits, 28, 28) at their corners."""
    films, n_digits, n_frames, _ = corners.shape
    frames = np.zeros((films, n_frames, SIDE, SIDE), digits.dtype)
    place = np.arange(DIGIT)
    which, when = np.arange(films)[:, None, None, None], np.arange(n_frames)[:, None, None]
    for k in range(n_digits):
        row = corners[:, k, :, 0, None, None] + place[:, None]  # (films, frames, 28, 1)
        column = corners[:, k, :, 1, None, None] + place  # (films, frames, 1, 28)
        spot = (which, when, row, column)
        frames[spot] = np.maximum(frames[spot], digits[:, k, None])
    return frames


def _levels(frames: Tensor) -> Tensor:
    return (frames * 255).round().long()
