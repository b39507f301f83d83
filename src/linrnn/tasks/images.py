"""Your own images, a folder for each class: .png, .jpg and others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DataError, check_in, check_positive_int
from linrnn.tasks._kinds.base import Given
from linrnn.tasks._kinds.images import PixelData, read_pixels
from linrnn.tasks._kinds.labelled_files import FileOptions, LabelledFiles
from linrnn.tasks._reading.image_files import SUFFIXES, Mode, read_pixels_of

Steps = Literal["pixels", "rows"]


@dataclass(frozen=True, kw_only=True)
class ImagesOptions(FileOptions):
    """Options of the task `images`."""

    size: tuple[int, ...] = ()
    """Height and width to which all images are scaled, or one number for both.
    Default: the common size of the files."""
    mode: Mode = "grey"
    """Whether a pixel is its brightness, or red, green and blue."""
    steps: Steps = "pixels"
    """Whether a step is a pixel, or a row of them."""


class Images(LabelledFiles[np.ndarray]):
    """Classes for images of your own, read pixel by pixel or row by row.

    Pass a folder with one subfolder per class as ``--data FOLDER``, or a .csv or .parquet with the
    columns ``file``, relative to the table, and ``label``. Images are .png, .jpg, .bmp, .gif,
    .webp, .ppm or .tiff, with one frame, opaque, and at most 8 bits per colour. They are rotated as
    their metadata say. All must have the same size, or ``--task.size HEIGHT WIDTH`` scales them,
    which may change their proportions. Pixels of 0 to 255 become ``(pixel / 255 - 0.5) / 0.5``.

    Files whose names begin with a dot are ignored. Other kinds of files, a class with a single
    file, and unreadable images are errors. In each class a fifth is for testing, unless
    ``--task.test`` names a second folder, and a tenth for validation. ``--task.data-seed``
    selects them. The run folder stores classes and size, so its model predicts without the training
    images. Before a folder is passed, numbers such as the length are placeholders.

    Args:
        options: `ImagesOptions`.

    Raises:
        DataError: a file cannot be used, or sizes differ.
        UnknownNameError: no such mode or steps.
        ArgumentError: a size that is none.
        MissingExtraError: Pillow is not installed.
    """

    Options: ClassVar[type] = ImagesOptions
    summary: ClassVar[str] = "your own images, a folder for each class: --data FOLDER"
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    image_shape: tuple[int, ...] = (1, 1)
    """Height, width and, in colour, 3."""

    def check(self) -> None:
        """Sizes and names."""
        options = self.options
        check_in("Images", "mode", options.mode, get_args(Mode))
        check_in("Images", "steps", options.steps, get_args(Steps))
        if len(options.size) > 2:
            raise ArgumentError(f"Images: size must be height and width, got {options.size}.")
        check_positive_int("Images", **{f"size {i}": n for i, n in enumerate(options.size, 1)})

    @property
    def _size(self) -> tuple[int, int] | None:
        size = self.options.size
        return (size[0], size[-1]) if size else None

    def content(self, path: Path, inside: Path | None) -> np.ndarray:
        """The pixels of an image."""
        return read_pixels_of(path, inside, self.options.mode, self._size)

    def measure(self, paths: Sequence[Path], contents: Sequence[np.ndarray]) -> dict[str, int]:
        """Height and width."""
        height, width = contents[0].shape[:2]
        for path, pixels in zip(paths, contents, strict=True):
            _check_size(path, pixels, (height, width), f"that of {paths[0]}")
        return {"height": height, "width": width}

    def describe(self, measured: Mapping[str, int]) -> None:
        """The shape of what is read."""
        colours = 3 if self.options.mode == "rgb" else 1
        height, width = measured["height"], measured["width"]
        self.image_shape = (height, width) if colours == 1 else (height, width, 3)
        self.d_input = colours * (width if self.options.steps == "rows" else 1)
        self.sequence_length = height * width * colours // self.d_input

    def dataset(self, contents: Sequence[np.ndarray], labels: np.ndarray) -> PixelData:
        """A data set of pixels that stay bytes until they are read."""
        pixels = torch.from_numpy(np.stack(contents))
        return PixelData(pixels, torch.from_numpy(labels), self.sequences)

    def given(self, paths: Sequence[Path], contents: Sequence[np.ndarray]) -> Given:
        """Images for the model to classify."""
        for path, pixels in zip(paths, contents, strict=True):
            _check_size(path, pixels, self.image_shape[:2], "as in training")
        return Given(self.sequences(torch.from_numpy(np.stack(contents))))

    def sequences(self, pixels: Tensor) -> Tensor:
        """Pixels of 0..255 as (images, time, d_input) in [-1, 1], row by row."""
        return self.scaled(pixels.reshape(len(pixels), -1, self.d_input).float())

    def scaled(self, x: Tensor) -> Tensor:
        """Steps of pixels of 0..255 in [-1, 1]."""
        return (x / 255 - 0.5) / 0.5

    def flattened(self, x: Tensor) -> Tensor:
        """Images (images, height, width) or (images, height, width, 3), or one of them."""
        shape = self.image_shape
        if x.ndim - len(shape) in (0, 1) and tuple(x.shape[-len(shape) :]) == shape:
            return x.reshape(-1, self.sequence_length, self.d_input)
        return x

    def picture(self, x: Tensor) -> Tensor:
        """The image: see `Task.picture`."""
        return (x * 0.5 + 0.5).reshape(self.image_shape).clamp(0, 1)

    def read(self, path: Path) -> Tensor:
        """Images from a table, a row of pixels of 0..255 each."""
        return self.sequences(read_pixels(path, self.image_shape))


def _check_size(path: Path, pixels: np.ndarray, size: tuple[int, ...], whose: str) -> None:
    if pixels.shape[:2] != tuple(size):
        raise DataError(
            f"{path}: the image must be {size[0]} high and {size[1]} wide, {whose}, got "
            f"{pixels.shape[0]} and {pixels.shape[1]}. Bring all to one with --task.size."
        )
