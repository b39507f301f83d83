"""Sequential CIFAR-10: photographs, read one pixel at a time."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.images import PixelOptions, PixelTask
from linrnn.tasks._kinds.long_range import long_range
from linrnn.tasks._reading.files import Source, chosen, folder_of, obtain, read_tar
from linrnn.tasks._reading.numpy import DAMAGED, open_numpy

_ARCHIVE = Source(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
_FOLDER = "cifar-10-batches-bin"
_MEMBERS = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
_RECORD = 1 + 3 * 32 * 32  # a class, then the red, the green and the blue pixels

_GREY = torch.tensor([0.299, 0.587, 0.114])  # of ITU-R BT.601, as image libraries have it
_MEAN, _STD = torch.tensor([[0.4914, 0.4822, 0.4465], [0.247, 0.243, 0.261]])
_GREY_MEAN, _GREY_STD = 122.6 / 255, 61 / 255
_LRU = "Orvieto et al. 2023, arXiv:2303.06349, Table {}"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396, {}"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"
_S4D = "public code of Gu et al. 2022, arXiv:2206.11893"
_LRA = "Tay et al. 2021, arXiv:2011.04006, Table 1"


@dataclass(frozen=True, kw_only=True)
class SCIFAROptions(PixelOptions):
    """Options of the task `scifar`."""

    grey: bool = False
    """Whether a pixel is one number, as in Long Range Arena, instead of three."""
    rows: bool = False
    """Whether a step is 32 pixels, a row of the image, instead of one."""
    train_images: int = 0
    """Number of training images, a tenth of them for validation; 0 takes all."""


class SCIFAR(PixelTask):
    """The photographs of CIFAR-10: 32x32 pixels, row by row as 1,024 steps; 10 equal classes.

    In colour a step is red, green and blue, as in the LRU paper's "sCIFAR"; with the option `grey`
    it is their brightness, the task "Image" of Long Range Arena. The two have different results
    and are not to be compared. Pixels are divided by 255, less their mean, over their standard
    deviation. A tenth of the 50,000 training images, always the same, is for validation.

    Read are the binary version of the official archive, or an .npz with ``x_train`` (images, 32,
    32, 3), ``y_train``, ``x_test`` and ``y_test``. The official Python version is a pickle, which
    could run any code, and is not read.

    Args:
        options: `SCIFAROptions`. Published numbers are for single pixels and all images.

    Raises:
        ArgumentError: a negative train_images.
    """

    Options: ClassVar[type] = SCIFAROptions
    summary: ClassVar[str] = "CIFAR-10 photographs, 32x32 pixels read one at a time, 10 classes"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="LRU (colour)", value=0.890, source=_LRU.format(8)),
        Published(model="S4D, reproduced (colour)", value=0.915, source=_LRU.format(8)),
        Published(model="S5, reproduced (colour)", value=0.888, source=_LRU.format(8)),
        Published(model="deep RNN, dense, tanh (colour)", value=0.699, source=_LRU.format(1)),
        Published(model="deep RNN, dense, linear (colour)", value=0.722, source=_LRU.format(1)),
        Published(model="LSTM (colour)", value=0.6301, source=_S4.format("Table 12")),
        Published(model="S4 (colour)", value=0.9113, source=_S4.format("Table 12")),
        Published(model="S5 (grey)", value=0.8800, source=_S5),
        Published(model="S4, first release (grey)", value=0.8726, source=_S4.format("Table 4")),
        Published(model="S4-LegS (grey)", value=0.8865, source=_S4.format("updated results")),
        Published(model="S4D-LegS (grey)", value=0.8819, source=_S4D),
        *long_range(dss=0.857, liquid_s4=0.895, sgconv=0.8797, mega=0.9044, suffix=" (grey)"),
        Published(model="Transformer (grey)", value=0.4244, source=_LRA),
    )

    sequence_length = 1024
    image_shape = (32, 32, 3)
    class_names = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        if self.options.train_images < 0:
            raise ArgumentError(
                f"SCIFAR: train_images must be at least 0, got {self.options.train_images}."
            )
        channels, together = 1 if self.options.grey else 3, 32 if self.options.rows else 1
        self.d_input, self.sequence_length = channels * together, 1024 // together

    def images(self, split: str, download: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Read a part of an archive: see `PixelTask.images`."""
        path = self._path(download)
        read = read_npz if path.suffix == ".npz" else read_binary
        images, labels = read(path, split)
        count = self.options.train_images
        if split != "train" or not count:
            return images, labels
        if len(images) < count:
            raise DataError(
                f"{path}: the file must hold train_images={count} training images, got "
                f"{len(images)}. Ask for fewer, or get all of CIFAR-10."
            )
        return images[:count], labels[:count]

    def sequences(self, pixels: Tensor) -> Tensor:
        """Normalised pixels, row by row."""
        x = pixels.reshape(len(pixels), 1024, 3).float() / 255  # (images, pixels, colours)
        if self.options.grey:
            x = ((x @ _GREY)[..., None] - _GREY_MEAN) / _GREY_STD  # (images, pixels, 1)
        else:
            x = (x - _MEAN) / _STD
        return x.reshape(len(pixels), self.sequence_length, self.d_input)

    def picture(self, x: Tensor) -> Tensor:
        """The image (32, 32), or (32, 32, 3) in colour: see `Task.picture`."""
        if self.options.grey:
            return (x * _GREY_STD + _GREY_MEAN).reshape(32, 32).clamp(0, 1)
        colour: Tensor = x.reshape(32, 32, 3) * _STD.to(x) + _MEAN.to(x)
        return colour.clamp(0, 1)

    def _path(self, download: bool) -> Path:
        place = folder_of("cifar10", self.options.data)
        if place.is_file():
            return place
        arrays = sorted(place.glob("*.npz"))
        if arrays and not (place / _ARCHIVE.name).is_file():
            return chosen("scifar", arrays[0], place)
        return obtain("scifar", _ARCHIVE, "cifar10", self.options.data, download)


def read_binary(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes from the binary version of CIFAR-10, a .tar.gz that is not unpacked.

    Raises:
        DataError: damaged, or another archive.
    """
    names = [f"{_FOLDER}/{name}" for name in _MEMBERS[split]]
    what = f"the binary version of CIFAR-10, {_ARCHIVE.name} from {_ARCHIVE.url}"
    members = dict(read_tar(path, names.__contains__, what))
    records = []
    for name in names:
        content = np.frombuffer(members.get(name, b""), "u1")
        if not content.size or content.size % _RECORD:
            raise DataError(
                f"{path}: the file must be {what}, with records of {_RECORD} bytes in {name}, got "
                f"{content.size} bytes. The Python version is not read."
            )
        records.append(content.reshape(-1, _RECORD))  # (images, bytes)
    table = np.concatenate(records)
    images = np.moveaxis(table[:, 1:].reshape(-1, 3, 32, 32), 1, 3)  # (n, 32, 32, 3)
    return _checked(path, np.ascontiguousarray(images), table[:, 0].copy())


def read_npz(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes from an .npz.

    Raises:
        DataError: damaged, or other arrays.
    """
    try:
        with open_numpy(path) as arrays:
            images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    except (KeyError, *DAMAGED) as error:
        raise DataError(
            f"{path}: the file must hold x_{split} and y_{split}, got: {error}. Get it anew."
        ) from error
    return _checked(path, images, labels)


def _checked(path: Path, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    fits = images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3) and len(images) > 0
    if not fits or labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: images must be bytes (images, 32, 32, 3) and labels integers (images,), got "
            f"{images.dtype} {images.shape} and {labels.dtype} {labels.shape}."
        )
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{path}: classes must be 0 to 9, got {labels.min()} to {labels.max()}.")
    return images, labels
