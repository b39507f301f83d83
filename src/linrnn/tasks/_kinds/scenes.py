"""Whole images of Pathfinder: the snakes that are in one, drawn, with two of their ends marked."""

from typing import NamedTuple

import numpy as np

from linrnn.tasks._kinds.generated import mix
from linrnn.tasks._kinds.snakes import (
    Rules,
    Snakes,
    Tables,
    Windows,
    draw,
    long_snakes,
    short_snakes,
    tables,
)
from linrnn.tasks._kinds.strokes import disc

_CELLS = 2**22  # pixels of all windows in which snakes grow at once
_ATTEMPTS = 256  # at an image that are made at once, at most
_CROWD = 150 * 123.5  # over the room of a stroke: how many strokes an image full of them has


class Style(NamedTuple):
    """Options of an image's look: how free space is filled, and how brightness is scaled."""

    single_strokes: bool = False
    """Whether what room is left is filled with strokes that belong to no snake."""
    rescale: bool = True
    """Whether brightness is scaled to the brightest of the image, instead of cut off at 1."""


class Scenes(NamedTuple):
    """Images, and how they came about."""

    pixels: np.ndarray
    """(images, size, size) bytes."""
    label: np.ndarray
    """(images,) 1 where the marked ends belong to one snake."""
    tips: np.ndarray
    """(images, 2 snakes, segments, 2): outer ends of the segments, row and column."""
    marked: np.ndarray
    """(images, 2, 2): the marked first end of a snake, and the marked last one."""


def scenes(rules: Rules, style: Style, keys: np.ndarray) -> Scenes:
    """One image for each key (images,) of 64 bits; it depends on nothing else in the batch."""
    u = draw(keys, 0, 3)
    margin = np.array(rules.margins)[(u[:, 0] * len(rules.margins)).astype(np.int64)]
    label, origin = (u[:, 1:] * 2).astype(np.int64).T
    tips = np.zeros((len(keys), 2, rules.segments, 2), np.int64)
    lines = np.zeros((len(keys), rules.size, rules.size), np.float32)
    for m in rules.margins:
        rows = (margin == m).nonzero()[0]
        # a part at a time, so that the windows of many large images need not fit in memory
        for part in np.array_split(rows, 1 + len(rows) * rules.size**2 // _CELLS):
            if len(part):
                tips[part], lines[part] = _strokes(tables(rules, m), style, keys[part])
    image = np.arange(len(keys))
    last = np.where(label == 1, origin, 1 - origin)
    marked = np.stack([tips[image, origin, 0], tips[image, last, -1]], 1)
    return Scenes(_finish(lines, marked, rules, style), label, tips, marked)


def _strokes(table: Tables, style: Style, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tips of the long snakes, and brightness of all strokes: (images, size, size)."""
    rules = table.rules
    long, windows, keys = _first_success(table, keys)
    layers = [(long, rules.contrast * rules.path_contrast)]
    counts = [(rules.short_snakes, rules.short_segments)]
    if style.single_strokes:
        full = int(_CROWD / (7.5 + 13 * table.margin + 4 * table.margin**2))
        used = 2 * rules.segments + rules.short_snakes * rules.short_segments
        counts.append((full - used, 1))
    for count, segments in counts:
        grown = short_snakes(table, keys, windows, count, segments)
        layers.append((grown, rules.contrast))
    canvas = np.zeros(windows.occupied.shape, np.float32)
    for snakes, contrast in layers:
        _paint(canvas, table, snakes, contrast)
    inner = slice(table.frame, -table.frame)
    tips = table.point(long.tips).reshape(len(keys), 2, rules.segments, 2)  # (images, 2, n, 2)
    return tips, canvas.reshape(-1, table.side, table.side)[:, inner, inner]


def _first_success(table: Tables, keys: np.ndarray) -> tuple[Snakes, Windows, np.ndarray]:
    """The first attempt at the long snakes of each image that succeeds, and its key."""
    pending, tried = np.arange(len(keys)), 0
    hits: list[tuple[np.ndarray, Snakes, Windows, np.ndarray]] = []
    while len(pending):
        n_attempts = min(max(_CELLS // (len(pending) * table.side**2), 1), _ATTEMPTS)
        attempts = keys[pending, None] + np.arange(
            tried + 1, tried + n_attempts + 1, dtype=np.uint64
        )
        own_keys = mix(attempts.ravel())
        snakes, windows = long_snakes(table, own_keys)
        which, first = np.unique(snakes.image[::2] // n_attempts, return_index=True)
        rows = (2 * first[:, None] + [0, 1]).ravel()
        number = snakes.image[2 * first]
        hits.append(
            (
                pending[which],
                Snakes(*(a[rows] for a in snakes)),
                windows.at(first),
                own_keys[number],
            )
        )
        pending, tried = np.delete(pending, which), tried + n_attempts
    order = np.concatenate([part[0] for part in hits]).argsort()
    pairs = (2 * order[:, None] + [0, 1]).ravel()
    snakes = Snakes(*(np.concatenate(a)[pairs] for a in zip(*(s[1] for s in hits), strict=True)))
    windows = Windows(*(np.concatenate(a)[order] for a in zip(*(s[2] for s in hits), strict=True)))
    image = np.arange(len(keys)).repeat(2)
    return snakes._replace(image=image), windows, np.concatenate([s[3] for s in hits])[order]


def _paint(canvas: np.ndarray, table: Tables, snakes: Snakes, contrast: float) -> None:
    """Draw every segment; where strokes cross, the brighter is seen."""
    start = (snakes.image[:, None] * canvas.shape[1] + snakes.tips).ravel()
    direction = snakes.direction.ravel()
    pixels = start[:, None] + table.bright.pixel[direction]
    bright = contrast * table.bright.value[direction]
    np.maximum.at(canvas.reshape(-1), pixels.ravel(), bright.ravel())


def _finish(lines: np.ndarray, marked: np.ndarray, rules: Rules, style: Style) -> np.ndarray:
    """Images of bytes from the brightness of their strokes, with discs at the marked ends."""
    if style.rescale:
        lines = lines / lines.max((1, 2), keepdims=True)
    mark = disc(rules.marker_radius).astype(np.float32)
    half, side = len(mark) // 2, np.arange(len(mark))
    image = np.pad(lines, ((0, 0), (half, half), (half, half)))
    row = np.arange(len(lines))[:, None, None]
    for y, x in marked.swapaxes(0, 1).swapaxes(1, 2):
        at = (row, (y[:, None] + side)[:, :, None], (x[:, None] + side)[:, None])
        image[at] = np.maximum(image[at], mark)
    image = image[:, half:-half, half:-half]
    if style.rescale:
        image = image / image.max((1, 2), keepdims=True)
    pixels: np.ndarray = (255 * image.clip(max=1)).astype(np.uint8)
    return pixels
