"""Shared by Pathfinder and Path-X: Long Range Arena's rules for each size, options, files."""

import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isqrt
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import read_bytes
from linrnn.errors import ArgumentError, DataError, check_in
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import check_options
from linrnn.tasks._kinds.generated import SPLITS, BatchDataset, mix
from linrnn.tasks._kinds.images import read_pixels
from linrnn.tasks._kinds.scenes import Scenes, Style, scenes
from linrnn.tasks._kinds.snakes import Rules
from linrnn.tasks._reading.files import chosen, folder_of
from linrnn.tasks._reading.image_files import opened
from linrnn.tasks._reading.kept import KeptImages
from linrnn.tasks._reading.numpy import DAMAGED, open_numpy

Size = Literal[32, 64, 128, 256]

# the data set's notes, and where they are silent the defaults of the published generator; of the
# short snakes in the images of 32 pixels see `Pathfinder`
RULES: dict[int, Rules] = {
    32: Rules(32, 1, (1,), 7, 1.5, 0.5, 2, 1.0, 2, 2.0, 0.75),
    64: Rules(64, 1, (1,), 12, 2.5, 1.0, 5, 1.8, 5, 0.8, 1.0),
    128: Rules(128, 1, (2, 3), 20, 3.0, 1.5, 5, 1.8, 8, 0.9, 1.0),
    256: Rules(256, 22, (3,), 27, 5.0, 2.0, 5, 1.8, 7, 1.0, 1.0),
}

_VERSION = 1  # of the images; another one where any byte of them changes
_LEVEL = "curv_contour_length_14"
_RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_SPLIT_SEED = 42  # of the usual split of the released images
_SHOWN, _LIT, _BLOCKS = 32, 50, " ▀▄█"  # of an example: columns, threshold, two pixels each


@dataclass(frozen=True, kw_only=True)
class PathfinderOptions:
    """Options of the tasks `pathfinder` and `path_x`."""

    size: Size = 32
    """Pixels of a side; a sequence has as many steps as the image has pixels."""
    rows: bool = False
    """Whether a step is a row of the image instead of a pixel."""
    data: str = ""
    """Folder of Long Range Arena's images. Default: drawn, and stored in `LINRNN_DATA`."""
    single_paddles: bool = False
    """Whether what room is left is filled with strokes that belong to no path."""
    contrast: Literal["rescale", "clip"] = "rescale"
    """Whether an image is scaled to its brightest pixel, or cut off at 1."""
    train_size: int = 160_000
    """Training images; an epoch is one pass through them."""
    validation_size: int = 20_000
    """Validation images."""
    test_size: int = 20_000
    """Test images."""
    data_seed: int = 0
    """Seed of the images; the seed of a run does not change them."""


class PathfinderTask(Task):
    """Images of dashed paths, pixel by pixel; the question is whether one joins two marked ends."""

    chance = 0.5
    d_output = 2
    class_names = ("apart", "connected")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        where = type(self).__name__
        check_in(where, "contrast", self.options.contrast, ("rescale", "clip"))
        if self.options.size not in RULES:
            raise ArgumentError(
                f"{where}: size must be one of {', '.join(map(str, RULES))}, "
                f"got {self.options.size}."
            )
        check_options(where, self.options)
        self.d_input = self.options.size if self.options.rows else 1
        self.sequence_length = self.options.size**2 // self.d_input

    def datasets(self) -> Splits:
        """Splits of x (time, d_input) and target (): see `Task.datasets`."""
        if self.options.data:
            return self._released()
        sizes = (self.options.train_size, self.options.validation_size, self.options.test_size)
        return Splits(
            *(self._generated(split, size) for split, size in zip(SPLITS, sizes, strict=True))
        )

    def scenes(self, split: str, indices: Sequence[int]) -> Scenes:
        """Images of a split by their numbers, drawn anew, and the paths that are in them."""
        split_key = mix(np.array([self.options.data_seed * len(SPLITS) + SPLITS[split]], np.uint64))
        keys = mix(split_key + np.asarray(indices).astype(np.uint64))
        return scenes(RULES[self.options.size], self._style(), keys)

    def sequences(self, pixels: Tensor) -> Tensor:
        """Bytes of images as (images, time, d_input) in [-1, 1], row by row."""
        return (pixels.reshape(len(pixels), -1, self.d_input).float() / 255 - 0.5) / 0.5

    def picture(self, x: Tensor) -> Tensor:
        """The image (size, size): see `Task.picture`."""
        return (x * 0.5 + 0.5).reshape(self.options.size, -1).clamp(0, 1)

    def read(self, path: Path) -> Tensor:
        """Images from a user's file, a row of pixels of 0..255 each."""
        return self.sequences(read_pixels(path, (self.options.size, self.options.size)))

    def at_length(self, length: int) -> "PathfinderTask":
        """The same question about larger or smaller images: 1024, 4096, 16384 or 65536 pixels.

        Read by rows, another size would be another number of inputs, which no model takes.
        """
        if self.options.rows:
            raise ArgumentError(
                f"{type(self).__name__}: rows must be False to change the length, got True."
            )
        if length not in {size**2 for size in RULES}:
            lengths = ", ".join(str(size**2) for size in RULES)
            raise ArgumentError(
                f"{type(self).__name__}: length must be one of {lengths}, got {length}."
            )
        return type(self)(replace(self.options, size=isqrt(length)))

    def example(self) -> str:
        """The first training image in characters; a larger one is shown with 32 columns."""
        scene = self.scenes("train", [0])
        by = self.options.size // _SHOWN
        lit = scene.pixels[0].reshape(_SHOWN, by, _SHOWN, by).max((1, 3)) > _LIT
        rows = (
            "".join(_BLOCKS[a + 2 * b] for a, b in zip(*two, strict=True))
            for two in lit.reshape(-1, 2, _SHOWN)
        )
        target = f"target {self.class_names[scene.label[0]]}"
        return "\n".join(["input, as the image it is", *(row.rstrip() for row in rows), target])

    def _style(self) -> Style:
        return Style(self.options.single_paddles, self.options.contrast == "rescale")

    def _generated(self, split: str, size: int) -> KeptImages:
        def make(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            batch = self.scenes(split, indices.tolist())
            return batch.pixels.reshape(len(indices), -1), batch.label

        rules = (RULES[self.options.size], self._style(), self.options.data_seed, size, _VERSION)
        digest = sha256(repr(rules).encode()).hexdigest()[:12]
        name = f"pathfinder{self.options.size}_{split}_{digest}.bin"
        path = folder_of("pathfinder") / name
        return KeptImages(size, self.options.size**2, make, self.sequences, path)

    def _released(self) -> Splits:
        place = folder_of("pathfinder", self.options.data)
        paths, target = released(place, self.options.size)
        tenth = len(paths) // 10
        order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        parts = order.split([len(paths) - 2 * tenth, tenth, tenth])
        files = np.array(paths, dtype=object)
        return Splits(
            *(_Files(files[p.numpy()], target[p], self.options.size, self.sequences) for p in parts)
        )


class _Files(BatchDataset):
    """Images that are read from their files on each access."""

    def __init__(self, paths: np.ndarray, target: Tensor, size: int, sequences: Any) -> None:
        self.paths, self.target, self.size, self.sequences = paths, target, size, sequences

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Sequences and classes."""
        images = [read_image(self.paths[i], self.size) for i in indices]
        return self.sequences(torch.from_numpy(np.stack(images))), self.target[list(indices)]


def read_image(path: Path, size: int) -> np.ndarray:
    """Bytes (size, size) of a grey image, a .png.

    Raises:
        DataError: damaged, or of another size.
        MissingExtraError: Pillow is not installed.
    """
    with opened(path, path.parent, ["PNG"]) as image:
        actual = image.size
        if actual == (size, size):  # before there is memory for its pixels
            return np.array(image.convert("L"))
    raise DataError(
        f"{path}: the image must have {size}x{size} pixels, got "
        f"{actual[1]}x{actual[0]}. Choose another --task.size."
    )


def released(place: Path, size: int) -> tuple[list[Path], Tensor]:
    """Images and classes of Long Range Arena's hard level, in the order of its files.

    Files that are empty, of which the release has one, are left out.

    Raises:
        DataError: no such files, or of another content.
    """
    folders = (place, place / f"pathfinder{size}", place / "lra_release" / f"pathfinder{size}")
    levels = [f / _LEVEL for f in folders if (f / _LEVEL / "metadata").is_dir()]
    if not levels:
        raise DataError(
            f"pathfinder: the folder {place} must hold pathfinder{size}/{_LEVEL} with imgs and "
            f"metadata, got none. Get lra_release.gz from {_RELEASE} and unpack it there, or leave "
            "--data out and images are drawn."
        )
    level = levels[0]
    regular = _Regular(level)
    files = sorted((level / "metadata").glob("*.npy"), key=lambda f: (len(f.stem), f.stem))
    paths, labels = [], []
    for file in files:
        for number, row in enumerate(_rows(chosen("pathfinder", file, place))):
            if len(row) < 4 or row[3] not in ("0", "1"):
                raise DataError(
                    f"{file}: line {number + 1} must be a folder, a file, a number and the class "
                    f"0 or 1, got {' '.join(row)[:60]!r}."
                )
            if any(".." in PurePath(part).parts or PurePath(part).anchor for part in row[:2]):
                raise DataError(
                    f"{file}: line {number + 1} must name a file below {level}, got "
                    f"{' '.join(row[:2])[:60]!r}."
                )
            path = level / row[0] / row[1]
            if regular(path):
                paths.append(path)
                labels.append(int(row[3]))
    if len(paths) < 10:
        raise DataError(f"{level}: there must be at least 10 images, got {len(paths)}.")
    return paths, torch.tensor(labels)


class _Regular:
    """Says of each of many files whether it holds something; each folder is looked at once."""

    def __init__(self, level: Path) -> None:
        self.level, self.folders = level, {level}

    def __call__(self, path: Path) -> bool:
        """False where there is none, or the name is one that no file can have.

        Raises:
            DataError: something else than a file has the name, or a link leads to it.
        """
        try:
            status = path.lstat()
        except (OSError, ValueError):
            return False
        if path.parent not in self.folders or not stat.S_ISREG(status.st_mode):
            chosen("pathfinder", path, self.level)
            self.folders.add(path.parent)
        return status.st_size > 0


def _rows(path: Path) -> list[list[str]]:
    """Words of each line of a list of images: text in the release, an array from the generator."""
    try:
        text = read_bytes(path, inside=path.parent)
        if text[:6] == b"\x93NUMPY":
            table = open_numpy(path)
            if table.ndim != 2:
                raise ValueError(f"an array of {table.ndim} axes")
            rows: list[list[str]] = table.astype(str).tolist()
            return rows
        return [line.split() for line in text.decode().splitlines()]
    except DAMAGED as error:
        raise DataError(f"{path}: the file must hold lines of text, got: {error}.") from error
