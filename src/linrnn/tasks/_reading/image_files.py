"""Image files, read by Pillow: what is there is what comes out, or an error."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linrnn._files.door import open_file
from linrnn.errors import DataError, MissingExtraError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".pnm"),
    *(".tif", ".tiff"),
)
Mode = Literal["grey", "rgb"]

MAX_PIXELS = 1 << 26
"""Pixels of an image before it is resized."""

_KINDS = ("1", "L", "P", "RGB", "YCbCr")  # of 8 bits or fewer, and opaque


@contextmanager
def opened(path: Path, inside: Path | None, formats: Sequence[str]) -> Iterator[Any]:
    """An image of one of some formats, of which nothing but its header was read.

    Raises:
        DataError: there is none, or, while its pixels are read inside, they are damaged.
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading images", "Pillow", "train") from error
    try:
        with (
            open_file(path, inside=inside) as file,
            Image.open(file, formats=list(formats)) as image,
        ):
            yield image
    except DataError:  # of who reads it
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: the file must hold an image, got: {error}.") from error


def read_pixels_of(
    path: Path, inside: Path | None, mode: Mode, size: tuple[int, int] | None
) -> np.ndarray:
    """Bytes (height, width), or (height, width, 3) in colour, of an image as it is looked at.

    It is turned as its camera says. Colours become grey by ITU-R BT.601,
    ``0.299 R + 0.587 G + 0.114 B``. Another size is interpolated by triangles as wide as what they
    stand for, and proportions are not kept.

    Args:
        path: of the file.
        inside: a folder above it, below which no link is followed; None: its own.
        mode: grey or rgb.
        size: height and width, or None to leave them.

    Raises:
        DataError: no image, one with transparent parts, several frames or more than 8 bits a
            colour, or a huge one.
    """
    from PIL import Image, ImageOps

    with opened(path, inside, FORMATS) as image:
        width, height = image.size
        transparent = "transparency" in image.info
        frames = getattr(image, "n_frames", 1)
        if image.mode not in _KINDS or transparent or frames > 1 or width * height > MAX_PIXELS:
            what = f"mode {image.mode}" + (" with transparency" if transparent else "")
            raise DataError(
                f"{path}: an image must be one picture of at most {MAX_PIXELS:,} pixels, opaque, "
                f"with at most 8 bits a colour, got {frames} of {width * height:,} pixels, {what}. "
                "Convert it."
            )
        upright = ImageOps.exif_transpose(image).convert("L" if mode == "grey" else "RGB")
        if size is not None and upright.size != size[::-1]:
            upright = upright.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.array(upright)
