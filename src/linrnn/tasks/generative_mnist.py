"""Generative MNIST: handwritten digits, to be predicted pixel by pixel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.generated import BatchDataset
from linrnn.tasks._kinds.images import (
    PixelOptions,
    held_out,
    in_characters,
    read_idx_images,
    read_pixels,
)
from linrnn.tasks._kinds.mnist import SOURCES

PIXELS = 784
_THRESHOLD = 127  # pixels above it are 1 where images are binarised
_LINEAR = "Katharopoulos et al. 2020, arXiv:2006.16236, Table 1"


@dataclass(frozen=True, kw_only=True)
class GenerativeMNISTOptions(PixelOptions):
    """Options of the task `generative_mnist`."""

    binarised: bool = False
    """Whether a pixel is 0 or 1, above 127 of 255, instead of one of 256 values."""
    train_images: int = 0
    """Number of training images, a tenth of them for validation; 0 takes all."""


class NextPixels(BatchDataset):
    """Images in memory as bytes; each pixel is the target after those before it.

    Args:
        pixels: bytes (images, 784) below ``values``.
        values: how many a pixel can have; the token of this number begins an image.
    """

    def __init__(self, pixels: Tensor, values: int) -> None:
        self.pixels, self.values = pixels, values

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Input and target (images, 784), integers."""
        target = self.pixels[torch.as_tensor(indices)].long()
        return shifted(target, self.values), target


class GenerativeMNIST(Task):
    """Predict each pixel of an MNIST digit from those before it, row by row, in 784 steps.

    A pixel is a token of 0 to 255. The model reads a token that begins the image, then every pixel
    but the last, and gives a distribution over 256 values at each step. The metric is the negative
    log-likelihood in bits a pixel (bits per dimension): the mean over the pixels of an image of
    ``-log2 p(x_t | x_1 ... x_{t-1})``. Of 60,000 training images 6,000, always the same, are for
    validation; 10,000 are for testing.

    Chance, 8 bits, says that all values are equally likely. Two baselines say more, and
    ``linrnn show generative_mnist`` measures them where the data is at hand: the distribution of
    every pixel by its place (1.69 bits on MNIST), and that of a pixel given the one before it
    (1.42 bits), both counted on the training images, see `baselines`.

    With the option `binarised` a pixel above 127 is 1 and others are 0. Then the metric is in nats
    an image, as is usual there, the sum over its pixels; chance is ``784 ln 2 = 543.4``. Published
    numbers of binarised MNIST, such as 79.2 nats of PixelRNN (van den Oord et al. 2016,
    arXiv:1601.06759), are for a random binarisation drawn once, and not to be compared with.

    Args:
        options: `GenerativeMNISTOptions`.

    Raises:
        ArgumentError: a negative train_images.

    Reference:
        Katharopoulos et al., "Transformers are RNNs", ICML 2020, arXiv:2006.16236.
    """

    Options: ClassVar[type] = GenerativeMNISTOptions
    summary: ClassVar[str] = "predict MNIST digits pixel by pixel, 784 steps, bits per pixel"
    metric: ClassVar[str] = "bits per pixel"
    higher_is_better: ClassVar[bool] = False
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="softmax attention, 256 values", value=0.621, source=_LINEAR),
        Published(model="linear attention, 256 values", value=0.644, source=_LINEAR),
    )

    sequence_length = PIXELS

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        if self.options.train_images < 0:
            raise ArgumentError(
                "GenerativeMNIST: train_images must be at least 0, got "
                f"{self.options.train_images}."
            )
        self.d_output = 2 if self.options.binarised else 256
        self.d_input = self.d_output + 1
        self.chance = 8.0
        if self.options.binarised:
            self.metric = "nats per image"  # type: ignore[misc]
            self.chance = PIXELS * math.log(2)

    def datasets(self) -> Splits:
        """Splits of x (784,) and target (784,), integers: see `Task.datasets`."""
        images = self._pixels("train")
        train, validation = held_out(len(images))
        parts = (images[train], images[validation], self._pixels("test"))
        return Splits(*(NextPixels(part, self.d_output) for part in parts))

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Bits a pixel of each image, or with `binarised` nats of each image."""
        return self._unit(F.cross_entropy(y.transpose(1, 2).float(), target, reduction="none"))

    def baselines(self) -> dict[str, float]:
        """The metric on the test images of two counts on the training images.

        Each count has 1 added for every value. ``marginal`` is the distribution of a pixel by its
        place, ``previous pixel`` that of a pixel given the one before it, at any place.
        """
        splits, values = self.datasets(), self.d_output
        train, test = (part.pixels.long() for part in (splits.train, splits.test))  # type: ignore[attr-defined]
        places = torch.arange(PIXELS).expand_as
        nats = {
            "marginal": _counted((places(train), train), (places(test), test), values),
            "previous pixel": _counted(
                (shifted(train, values), train), (shifted(test, values), test), values
            ),
        }
        return {name: self._unit(x).mean().item() for name, x in nats.items()}

    def read(self, path: Path) -> Tensor:
        """Images from a user's file, a row of pixels of 0..255 each, as tokens (images, 784)."""
        pixels = self._valued(read_pixels(path, (PIXELS,)).long())
        return shifted(pixels, self.d_output)

    def picture(self, x: Tensor) -> Tensor:
        """The image (28, 28) but for its last pixel, which is never read: see `Task.picture`."""
        pixels = torch.cat([x[1:], x.new_zeros(1)]).float() / (self.d_output - 1)
        return pixels.reshape(28, 28)

    def example(self) -> str:
        """The first test image in characters, and the baselines where all files are at hand."""
        pixels = self._pixels("test", download=False)[0].reshape(28, 28).numpy()
        grey = pixels * (255 // (self.d_output - 1))
        lines = ["input, as the image it is", *in_characters(grey), "target: each next pixel"]
        try:
            self._pixels("train", download=False)
        except DataError:
            return "\n".join(lines)
        words = (f"{name} {value:.4g}" for name, value in self.baselines().items())
        return "\n".join([*lines, f"baselines, {self.metric}: {', '.join(words)}"])

    def _pixels(self, split: str, download: bool = True) -> Tensor:
        """Bytes (images, 784)."""
        name, data = "generative_mnist", self.options.data
        images, _ = read_idx_images(name, SOURCES, "mnist", split, data, download)
        count = self.options.train_images
        if split == "train" and count:
            if len(images) < count:
                raise DataError(
                    f"{name}: the train files must hold train_images={count} images, got "
                    f"{len(images)}. Ask for fewer."
                )
            images = images[:count]
        return self._valued(torch.from_numpy(images).reshape(len(images), PIXELS))

    def _valued(self, pixels: Tensor) -> Tensor:
        return (pixels > _THRESHOLD).to(pixels.dtype) if self.options.binarised else pixels

    def _unit(self, nats: Tensor) -> Tensor:
        """The metric of each image from nats (images, 784)."""
        return nats.sum(1) if self.options.binarised else nats.mean(1) / math.log(2)


def shifted(pixels: Tensor, start: int) -> Tensor:
    """Inputs (images, 784): the token ``start``, then every pixel but the last."""
    return F.pad(pixels[:, :-1], (1, 0), value=start)


def _counted(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], values: int) -> Tensor:
    """Nats (images, 784) of test pixels given their contexts, counted on the training pixels.

    Args:
        train, test: contexts and pixels, (images, 784) each.
        values: of a pixel.
    """
    seen, test_pairs = (context * values + pixel for context, pixel in (train, test))
    contexts = int(max(train[0].max(), test[0].max())) + 1
    counts = np.bincount(seen.flatten().numpy(), minlength=contexts * values) + 1.0
    table = counts.reshape(contexts, values)
    nats = -np.log(table / table.sum(1, keepdims=True)).reshape(-1)
    return torch.from_numpy(nats[test_pairs.numpy()])
