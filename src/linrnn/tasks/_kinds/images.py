"""Images as sequences: IDX files, splits, and pixels that stay bytes until they are read."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.generated import BatchDataset
from linrnn.tasks._reading.files import Source, obtain, read_packed

_SPLIT_SEED = 0  # the split is part of the task: never the run's seed
_IDX = {1: 0x801, 3: 0x803}  # number of axes: first four bytes of a file of bytes
_SHADES = " .:+#"


@dataclass(frozen=True, kw_only=True)
class PixelOptions:
    """Options of the tasks that read images."""

    data: str = ""
    """Folder of the files. Default: downloaded once, into `LINRNN_DATA`."""


@dataclass(frozen=True, kw_only=True)
class RowOptions(PixelOptions):
    """Options of the tasks that read images of one channel."""

    rows: bool = False
    """Whether a step is 28 pixels, a row of the image, instead of one."""


class PixelData(BatchDataset):
    """Images in memory as bytes; a batch of them as sequences.

    Args:
        pixels: bytes (images, ...).
        target: (images,) classes.
        sequences: makes (images, time, channels) real numbers of some of the bytes.
    """

    def __init__(
        self, pixels: Tensor, target: Tensor, sequences: Callable[[Tensor], Tensor]
    ) -> None:
        self.pixels, self.target, self.sequences = pixels, target, sequences

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Sequences and classes."""
        rows = torch.as_tensor(indices)
        return self.sequences(self.pixels[rows]), self.target[rows]


class PixelTask(Task):
    """Ten classes of images, of which a tenth of the training part is for validation."""

    chance = 0.1
    d_output = 10

    @abstractmethod
    def images(self, split: str, download: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Bytes (images, height, width, channels or none) and classes, of "train" or "test"."""

    @abstractmethod
    def sequences(self, pixels: Tensor) -> Tensor:
        """Bytes of images, each flat or not, as (images, sequence_length, d_input)."""

    def datasets(self) -> Splits:
        """Read the images, or download and read them: see `Task.datasets`."""
        pixels, target = map(torch.from_numpy, self.images("train"))
        train, validation = held_out(len(pixels))
        return Splits(
            self._dataset(pixels[train], target[train]),
            self._dataset(pixels[validation], target[validation]),
            self._dataset(*map(torch.from_numpy, self.images("test"))),
        )

    def _dataset(self, pixels: Tensor, target: Tensor) -> PixelData:
        return PixelData(pixels, target.long(), self.sequences)

    def read(self, path: Path) -> Tensor:
        """Images from a user's file, a row of pixels of 0..255 each."""
        return self.sequences(read_pixels(path, self.image_shape))

    def scaled(self, x: Tensor) -> Tensor:
        """Nothing: a step may be a pixel, a row or a colour, of one place or another.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"{type(self).__name__}: steps must be of a task that scales each alone, got pixels. "
            "Take whole images, or feed linrnn.streaming.Session(run.model) what the model reads."
        )

    def arranged(self, x: Tensor) -> Tensor:
        """Whole images, pixels of 0..255."""
        if not bool(((x >= 0) & (x <= 255) & (x == x.round())).all()):
            raise ArgumentError(
                f"{type(self).__name__}: pixels must be whole numbers of 0..255, got others."
            )
        return self.sequences(x.reshape(-1, *self.image_shape))

    image_shape: ClassVar[tuple[int, ...]]
    """Height, width and, if there are several, channels."""

    def example(self) -> str:
        """The first test image in characters, every other row; nothing is downloaded for it."""
        pixels, target = self.images("test", download=False)
        grey = pixels[0] if pixels.ndim == 3 else pixels[0].mean(-1)
        name = self.class_names[target[0]]
        return "\n".join(["input, as the image it is", *in_characters(grey), f"target {name}"])


class IdxTask(PixelTask):
    """A data set in the four files of MNIST: 28x28 grey images, read by pixels or by rows."""

    Options: ClassVar[type] = RowOptions
    published: ClassVar[tuple[Published, ...]] = ()
    image_shape = (28, 28)

    data_set: ClassVar[str]
    """Name of the folder."""
    sources: ClassVar[dict[str, Source]]
    """By the names ``{train,test}_{images,labels}``."""

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        self.d_input = 28 if self.options.rows else 1
        self.sequence_length = 784 // self.d_input

    def images(self, split: str, download: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Read two files: see `PixelTask.images`."""
        return read_idx_images(
            self._where(), self.sources, self.data_set, split, self.options.data, download
        )

    def sequences(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] in the order of reading."""
        flat = self.order(pixels.reshape(len(pixels), -1)).float() / 255  # (images, 784)
        return flat.reshape(len(pixels), self.sequence_length, self.d_input)

    def picture(self, x: Tensor) -> Tensor:
        """The image (28, 28) that was read in some order: see `Task.picture`."""
        flat = x.flatten()
        image = torch.zeros_like(flat)
        image[self.order(torch.arange(784, device=x.device)[None])[0]] = flat
        return image.reshape(28, 28)

    def order(self, pixels: Tensor) -> Tensor:
        """Pixels (images, 784) in the order in which they are read. Default: row by row."""
        return pixels

    def _where(self) -> str:
        return type(self).__module__.rpartition(".")[2]


def held_out(n_images: int) -> tuple[Tensor, Tensor]:
    """Places of the training and of the validation images, a tenth, always the same."""
    # RandomState's stream is frozen by NumPy's compatibility promise; Generator's is not
    order = torch.from_numpy(np.random.RandomState(_SPLIT_SEED).permutation(n_images))
    last = n_images - max(1, n_images // 10)
    return order[:last], order[last:]


def in_characters(grey: np.ndarray) -> list[str]:
    """Lines that show an image (height, width) of 0..255, every other row."""
    shades = (grey[::2].astype(float) * len(_SHADES) / 256).astype(int)
    return ["".join(_SHADES[i] for i in row).rstrip() for row in shades]


def read_idx_images(
    task: str,
    sources: Mapping[str, Source],
    data_set: str,
    split: str,
    data: str,
    download: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Images (images, 28, 28) and classes (images,), bytes, of a data set in the files of MNIST.

    Args:
        task: its name, for messages.
        sources: by the names ``{train,test}_{images,labels}``.
        data_set: name of the folder.
        split: train or test.
        data: the user's own folder, if one was given.
        download: whether the files may be.

    Raises:
        DataError: a file is missing, damaged, or of another data set.
    """
    images, labels = (
        read_idx(obtain(task, sources[f"{split}_{part}"], data_set, data, download), axes)
        for part, axes in (("images", 3), ("labels", 1))
    )
    where = f"{task}: the {split} files"
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"{where} must hold a label for each image, got {len(images)} images and "
            f"{len(labels)} labels. Get both files anew."
        )
    if images.shape[1:] != (28, 28) or labels.max() > 9:
        raise DataError(
            f"{where} must hold 28x28 images of the classes 0 to 9, got "
            f"{images.shape[1]}x{images.shape[2]} and {labels.max()}. Is it another data set?"
        )
    return images, labels


def read_pixels(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Images (images, *shape) of 0..255 from a user's file, a row of pixels each.

    Raises:
        DataError: the file is no such table, or its numbers are on another scale.
    """
    from linrnn.tasks._reading.table import read_table

    pixels = read_table(path, int(np.prod(shape)))
    if len(pixels) and not (pixels.min() >= 0 and 1 < pixels.max() <= 255):
        raise DataError(
            f"{path}: pixels must lie in 0..255, got {pixels.min().item():g} to "
            f"{pixels.max().item():g}. Scale them so that white is 255."
        )
    return pixels.reshape(-1, *shape)


def read_idx(path: Path, axes: int) -> np.ndarray:
    """An array of bytes from a file in the format of MNIST.

    Args:
        path: of the file; unpacked if it ends in .gz.
        axes: how many the array has.

    Raises:
        DataError: the file is damaged, of another kind, or not of the size it says.
    """
    what = f"an IDX array of bytes with {axes} axes"
    content = read_packed(path, what)
    start = 4 * axes + 4
    header = np.frombuffer(content[: min(start, len(content) // 4 * 4)], ">u4").tolist()
    if len(header) <= axes or header[0] != _IDX[axes]:
        raise DataError(
            f"{path}: the file must hold {what}, got one that begins with "
            f"{content[:4].hex() or 'nothing'}. Get it anew."
        )
    data = np.frombuffer(content, "u1", offset=start)
    if not data.size or data.size != math.prod(header[1:]):
        raise DataError(
            f"{path}: the file must hold {' x '.join(map(str, header[1:]))} bytes, got "
            f"{data.size}. Is it truncated? Get it anew."
        )
    return data.reshape(header[1:]).copy()
