"""Small grey pictures of lines and discs, drawn twice as large and reduced with a Lanczos filter.

What Pathfinder is drawn with. The filter is a weighted mean over three pixels of the result either
way. It swings over: beside an edge values leave [0, 1] by a ninth. As in Long Range Arena's files,
what is below 0 is cut off and what is above 1 stays.
"""

from math import ceil, cos, sin

import numpy as np

SCALE = 2  # how much larger a stroke is drawn
_LOBES = 3  # of the Lanczos filter


def reach(length: int, thickness: float, margin: int) -> int:
    """Pixels from the middle of a stroke's picture, where the line begins, to its edge."""
    return length + ceil(thickness) + margin


def stroke(
    angle: float, length: int, thickness: float, margin: int
) -> tuple[np.ndarray, np.ndarray]:
    """A line from the middle of a picture, and the room it takes.

    Args:
        angle: of the line, in radians; 0 is to the right, pi / 2 down.
        length: of the line in pixels.
        thickness: of the line in pixels.
        margin: the room is the line widened by as many pixels.

    Returns:
        Two squares of the same size, 2 * `reach` + 1: brightness, and the room in 0..255.
    """
    half = reach(length, thickness, margin)
    middle, side = half * SCALE, 2 * half * SCALE + 1
    # rounded up, as everywhere a point is moved along a line
    end = (ceil(length * SCALE * sin(angle)), ceil(length * SCALE * cos(angle)))
    large = _line(side, (middle, middle), end, round(thickness * SCALE))
    room = shrink(widen(large, margin * SCALE), 2 * half + 1)
    return shrink(large, 2 * half + 1), np.rint(255 * room.clip(0, 1)).astype(np.uint8)


def disc(radius: float) -> np.ndarray:
    """Brightness of a filled disc around the middle pixel of a square with room for its blur."""
    half = ceil(radius) + 2 * _LOBES
    steps = np.arange((2 * half + 1) * SCALE) - half * SCALE
    inside = steps[:, None] ** 2 + steps**2 <= (radius * SCALE) ** 2
    return shrink(inside.astype(float), 2 * half + 1)


def offsets(radius: int) -> np.ndarray:
    """(n, 2) whole steps down and right that lead no farther than ``radius``."""
    steps = np.arange(-radius, radius + 1)
    inside = steps[:, None] ** 2 + steps**2 <= radius**2
    return np.argwhere(inside) - radius


def widen(image: np.ndarray, radius: int) -> np.ndarray:
    """The largest value within ``radius`` of each pixel: a dilation by a disc."""
    padded = np.pad(image, radius)
    height, width = image.shape
    moved = (
        padded[radius + dy : radius + dy + height, radius + dx : radius + dx + width]
        for dy, dx in offsets(radius)
    )
    result = image
    for shifted in moved:
        result = np.maximum(result, shifted)
    return result


def shrink(image: np.ndarray, side: int) -> np.ndarray:
    """A square picture reduced to ``side`` pixels with a Lanczos filter, at least 0."""
    weights = _lanczos(len(image), side)
    reduced: np.ndarray = weights @ image @ weights.T
    return reduced.clip(0)


def _lanczos(old: int, new: int) -> np.ndarray:
    """(new, old) weights: sinc(x) sinc(x / 3) for |x| < 3 pixels of the result, with sum 1."""
    scale = old / new
    centre = (np.arange(new) + 0.5) * scale
    x = (np.arange(old) + 0.5 - centre[:, None]) / scale
    weights = np.where(np.abs(x) < _LOBES, np.sinc(x) * np.sinc(x / _LOBES), 0.0)
    normalised: np.ndarray = weights / weights.sum(1, keepdims=True)
    return normalised


def _line(side: int, start: tuple[int, int], move: tuple[int, int], width: int) -> np.ndarray:
    """A line of ones on zeros; one pixel wide by Bresenham's rule, else the pixels it covers."""
    image = np.zeros((side, side))
    steps = max(abs(move[0]), abs(move[1]))
    if width <= 1:
        at = np.arange(steps + 1)
        y, x = (
            s + np.sign(d) * ((2 * at * abs(d) + steps) // (2 * steps))
            for s, d in zip(start, move, strict=True)
        )
        image[y, x] = 1
        return image
    y, x = np.arange(side)[:, None] - start[0], np.arange(side) - start[1]
    length = np.hypot(*move)
    along = (y * move[0] + x * move[1]) / length
    across = (y * move[1] - x * move[0]) / length
    covered = (np.abs(across) <= width / 2) & (along >= -0.5) & (along <= length + 0.5)
    image[covered] = 1
    return image
