"""Pathfinder's snakes: two long dashed paths and some short ones, many images at a time.

An attempt at an image is one row of every array. All its random numbers are hashes of one 64-bit
key, so it comes out the same whatever else is in the batch. Rows that fail are left out; an image
is its first attempt that comes to an end.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import pi
from typing import NamedTuple

import numpy as np

from linrnn.tasks._kinds.generated import mix
from linrnn.tasks._kinds.strokes import reach, stroke, widen

_TRIES = 3  # at a segment
_SNAKE_TRIES = 5  # at a short snake
_PLACES = 64  # looked at for a short snake's beginning
_FULL = 459  # 1.8 of 255: more than a place can take
_OCCUPIED = 76  # 0.3 of 255: a place where nothing can begin
_DEGREES = 360
_RIPPLE = 8  # of 255: what the filter leaves beside a stroke, which takes no room
_LONG, _SHORT = 2, 10_000  # where the random numbers of segments begin
_NO_WEIGHT = 1e-4  # of the whole circle: a dead end


class Rules(NamedTuple):
    """How images of one size are drawn; lengths in pixels."""

    size: int
    padding: int
    margins: tuple[int, ...]
    """Gaps between the segments of a snake; one is chosen for each image."""
    seed_distance: int
    marker_radius: float
    thickness: float
    length: int
    """Length of a segment."""
    continuity: float
    """How fast a turn gets unlikely with its angle."""
    short_snakes: int
    contrast: float
    """Contrast of the short snakes."""
    path_contrast: float
    """Contrast of the two long snakes, relative to the short ones."""
    segments: int = 14
    short_segments: int = 4


class Snakes(NamedTuple):
    """Snakes, one on each row; a pixel is its number in a window: see `Tables`."""

    image: np.ndarray
    """(snakes,) number of the image it is in."""
    tips: np.ndarray
    """(snakes, segments): the outer end of each segment, from one tip of the snake to the other."""
    direction: np.ndarray
    """(snakes, segments) in which each is drawn from there."""


class Windows(NamedTuple):
    """The pixels that are occupied of each image, 0..255: (images, window)."""

    occupied: np.ndarray
    widened: np.ndarray
    """The same widened by the margin."""

    def at(self, rows: np.ndarray) -> "Windows":
        """A copy of some images."""
        return Windows(self.occupied[rows], self.widened[rows])


class Marks(NamedTuple):
    """The pixels of some pictures that are not empty: (pictures, n) each, some more than once."""

    pixel: np.ndarray
    """Steps from the middle of the picture."""
    value: np.ndarray

    @classmethod
    def of(cls, pictures: Sequence[np.ndarray], threshold: int, unit: np.ndarray) -> "Marks":
        """The pixels of at least ``threshold``, numbered in a window."""
        positions = [
            np.argwhere(one >= threshold) if threshold else np.argwhere(one) for one in pictures
        ]
        count = max(map(len, positions))
        positions = [one[np.arange(count) % len(one)] for one in positions]
        value = [picture[tuple(at.T)] for picture, at in zip(pictures, positions, strict=True)]
        half = len(pictures[0]) // 2
        return cls(np.stack([(at - half) @ unit for at in positions]), np.stack(value))


class Tables:
    """Tables that all images of one size and margin share.

    An image has a frame, so that nothing that begins in it leaves the window; pixels of a window
    are numbered row by row. Directions are the 360 whole degrees from -180 up, and after them those
    from a joint to each pixel of the circle around it.
    """

    def __init__(self, rules: Rules, margin: int) -> None:
        self.rules, self.margin = rules, margin
        half = reach(rules.length, rules.thickness, margin)
        self.frame = half + margin + 1
        self.side = rules.size + 2 * self.frame
        self.unit = np.array([self.side, 1])
        circle = _circle(rules.length + margin)
        degrees = np.arange(-_DEGREES // 2, _DEGREES // 2) * pi / 180
        around = np.arctan2(*circle.T)
        self.angle = np.concatenate([degrees, around])
        # a segment found on the circle is drawn from its outer end back to the joint
        back = np.where(around < 0, around + pi, around - pi)
        pictures = [
            stroke(a, rules.length, rules.thickness, margin)
            for a in np.concatenate([degrees, back])
        ]
        rooms = [np.where(room > _RIPPLE, room, 0) for _, room in pictures]
        self.bright = Marks.of([bright.astype(np.float32) for bright, _ in pictures], 0, self.unit)
        self.room = Marks.of(rooms, 1, self.unit)
        self.widened = Marks.of([widen(room, margin) for room in rooms], 1, self.unit)
        self.solid = Marks.of(rooms[_DEGREES:], _FULL - 255, self.unit)
        self.circle = circle @ self.unit
        self.base = _base(rooms[:_DEGREES])
        self.weight = _turns(self.angle, around, rules.continuity)
        self.skip = self.step(rules.length + 2 * margin) @ self.unit

    def step(self, by: int) -> np.ndarray:
        """(directions, 2) pixels down and across of a move, rounded up."""
        moved = by * np.stack([np.sin(self.angle), np.cos(self.angle)], 1)
        pixels: np.ndarray = np.ceil(moved).astype(np.int64)
        return pixels

    def pixel(self, point: np.ndarray) -> np.ndarray:
        """Numbers of points (..., 2) of the image."""
        number: np.ndarray = (point + self.frame) @ self.unit
        return number

    def point(self, pixel: np.ndarray) -> np.ndarray:
        """The opposite of `pixel`."""
        return np.stack(np.divmod(pixel, self.side), -1) - self.frame

    def windows(self, images: int) -> Windows:
        """Windows of which the border of the image is taken alone."""
        free = self.frame + self.rules.padding
        inner = np.full((self.rules.size,) * 2, 255, np.uint8)
        inner[(slice(self.rules.padding, -self.rules.padding),) * 2] = 0
        occupied = np.pad(inner, self.frame)
        widened = np.full_like(occupied, 255)  # nothing ends outside
        widened[(slice(free, -free),) * 2] = widen(occupied, self.margin)[(slice(free, -free),) * 2]
        return Windows(*(a.ravel()[None].repeat(images, 0) for a in (occupied, widened)))


@lru_cache(maxsize=8)
def tables(rules: Rules, margin: int) -> Tables:
    """`Tables`, kept."""
    return Tables(rules, margin)


def _circle(radius: int) -> np.ndarray:
    """(n, 2) pixels about one apart on a circle, rounded down."""
    angle = np.arange(0, 2 * pi, 1 / radius)
    points = radius * np.stack([np.sin(angle), np.cos(angle)], 1)
    return np.unique(np.floor(points).astype(np.int64), axis=0)


def _base(rooms: Sequence[np.ndarray]) -> np.ndarray:
    """(360, n, 2) steps to the pixels that must be free where a snake begins, some twice.

    As published, they are those a first segment takes all of, a step down and to the right.
    """
    half = len(rooms[0]) // 2
    offsets = [np.argwhere(room == 255) - half + 1 for room in rooms]
    count = max(map(len, offsets))
    return np.stack([one[np.arange(count) % len(one)] for one in offsets])


def _turns(angle: np.ndarray, around: np.ndarray, continuity: float) -> np.ndarray:
    """(directions, circle) weight of going on to each pixel of the circle."""
    turn = np.abs(around - angle[:, None])
    turn = np.minimum(turn, 2 * pi - turn) * continuity
    weight: np.ndarray = np.cos(np.minimum(turn, pi / 2)) ** 2
    return weight


def draw(keys: np.ndarray, place: int, n: int) -> np.ndarray:
    """(keys, n) numbers in [0, 1), a hash of (key, place, column)."""
    row = mix(keys + np.uint64(place))
    bits = mix(row[:, None] + np.arange(n, dtype=np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


class _State(NamedTuple):
    """The end of one snake on each row: the joint before its last segment, and that segment."""

    joint: np.ndarray
    tip: np.ndarray
    direction: np.ndarray

    def at(self, rows: np.ndarray) -> "_State":
        """Some rows."""
        return _State(*(a[rows] for a in self))


def _extend(
    table: Tables, windows: Windows, image: np.ndarray, snake: _State, u: np.ndarray
) -> tuple[_State, np.ndarray]:
    """A further segment of the snake on each row; the room of the one before is taken then.

    Args:
        table: of the size and margin.
        windows: of all images.
        image: (rows,) whose each snake is.
        snake: its end.
        u: (rows, tries) uniform in [0, 1).

    Returns:
        The new end, and on which rows there is one.
    """
    at = image * windows.occupied.shape[1]  # numbers of pixels in all windows
    joint = snake.joint + table.skip[snake.direction]
    ends = joint[:, None] + table.circle  # (rows, circle)
    weight = 255.0 - windows.widened.reshape(-1).take(at[:, None] + ends)
    weight = (weight * table.weight[snake.direction]).cumsum(1)  # (rows, circle)
    alive = weight[:, -1] >= 255 * _NO_WEIGHT
    choice = np.zeros(len(joint), np.int64)
    left = alive.nonzero()[0]
    for attempt in u.T:
        passed = weight[left] <= (attempt[left] * weight[left, -1])[:, None]
        choice[left] = passed.sum(1).clip(max=len(table.circle) - 1)
        tip = (at + joint)[left] + table.circle[choice[left]]
        pixels = tip[:, None] + table.solid.pixel[choice[left]]  # (left, n)
        room = _FULL - 1 - table.solid.value[choice[left]].astype(np.int16)
        left = left[(windows.occupied.reshape(-1).take(pixels) > room).any(1)]
    alive[left] = False
    _settle(table, windows, image[alive], snake.at(alive))
    return _State(joint, joint + table.circle[choice], _DEGREES + choice), alive


def _settle(table: Tables, windows: Windows, image: np.ndarray, snake: _State) -> None:
    """Take the room of the last segment of the snake on each row."""
    at = (image * windows.occupied.shape[1] + snake.tip)[:, None]
    for window, room in zip(windows, (table.room, table.widened), strict=True):
        flat, pixels = window.reshape(-1), at + room.pixel[snake.direction]
        flat[pixels] = np.maximum(flat.take(pixels), room.value[snake.direction])


def _first(table: Tables, tip: np.ndarray, degree: np.ndarray) -> tuple[_State, np.ndarray]:
    """A snake of one segment on each row, begun at a point, and whether it lies in the image."""
    rules = table.rules
    head = tip + table.step(rules.length)[degree]
    joint = head + table.step(-rules.length - table.margin)[degree]
    points = np.stack([head, joint])  # (2, rows, 2)
    inside: np.ndarray = np.all((points >= 0) & (points < rules.size), axis=(0, 2))
    return _State(table.pixel(joint), table.pixel(tip), degree), inside


def _two_seeds(table: Tables, keys: np.ndarray) -> tuple[list[_State], np.ndarray]:
    """First segments of both long snakes on each row, and where they lie in the image."""
    rules, u = table.rules, draw(keys, 0, 3)
    degree = (u[:, 0] * _DEGREES).astype(np.int64)
    edge = 2 * rules.seed_distance
    low = edge - table.base.min(1)[degree]
    n_positions = rules.size - edge - table.base.max(1)[degree] - low
    tip = low + (u[:, 1:] * n_positions).astype(np.int64)
    first, alive = _first(table, tip, degree)
    alive &= (n_positions > 0).all(1)
    second, placed = first, np.zeros(len(keys), bool)
    for u in draw(keys, 1, 2 * _TRIES).reshape(-1, _TRIES, 2).swapaxes(0, 1):
        degree, bearing = (u.T * _DEGREES).astype(np.int64)  # (rows,) each
        step = np.stack([np.sin(bearing * pi / 180), np.cos(bearing * pi / 180)], 1)  # (rows, 2)
        second_tip = np.rint(tip + rules.seed_distance * step).astype(np.int64)
        new, inside = _first(table, second_tip, degree)
        second = _State(*(np.where(placed, a, b) for a, b in zip(second, new, strict=True)))
        placed |= inside
    return [first, second], alive & placed


def long_snakes(table: Tables, keys: np.ndarray) -> tuple[Snakes, Windows]:
    """One attempt at the two long snakes for each key.

    Returns:
        Those that came to an end have two rows each, with the number of their key; their windows.
    """
    ends, alive = _two_seeds(table, keys)
    image = alive.nonzero()[0]
    ends = [end.at(image) for end in ends]
    windows = table.windows(len(keys))
    tips = np.zeros((len(keys), 2, table.rules.segments), np.int64)
    direction = np.zeros_like(tips)
    for segment in range(table.rules.segments):
        for i in (0, 1):
            if segment:
                u = draw(keys[image], _LONG + 2 * segment + i, _TRIES)
                ends[i], alive = _extend(table, windows, image, ends[i], u)
                image, ends = image[alive], [end.at(alive) for end in ends]
            tips[image, i, segment] = ends[i].tip
            direction[image, i, segment] = ends[i].direction
    _settle(table, windows, image, ends[1])  # as published, of the second alone
    rows = (tips[image], direction[image])  # (images, 2, segments) each
    snakes = Snakes(image.repeat(2), *(a.reshape(-1, a.shape[2]) for a in rows))
    return snakes, windows.at(image)


def short_snakes(
    table: Tables, keys: np.ndarray, windows: Windows, count: int, segments: int
) -> Snakes:
    """Up to ``count`` snakes in each image, where there is room, which is taken then."""
    snakes = []
    for i in range(count):
        left = np.arange(len(keys))
        for attempt in range(_SNAKE_TRIES if segments > 1 else _TRIES):
            # other random numbers for each snake, each attempt and each number of segments
            place = (i * _SNAKE_TRIES + attempt) * (segments + 1) + segments * _SHORT
            grown = _short(table, keys[left], windows, left, segments, place)
            snakes.append(grown)
            left = np.setdiff1d(left, grown.image)
            if not len(left):
                break
    return Snakes(*map(np.concatenate, zip(*snakes, strict=True)))


def _short(
    table: Tables, keys: np.ndarray, windows: Windows, image: np.ndarray, segments: int, place: int
) -> Snakes:
    """One attempt at a snake in some images."""
    end, alive = _seed(table, keys, windows, image, place)
    row, end = alive.nonzero()[0], end.at(alive)
    scratch = windows.at(image[row])  # what fails takes no room
    window_row = np.arange(len(row))
    tips, direction = [end.tip], [end.direction]
    for segment in range(1, segments):
        u = draw(keys[row], place + segment, _TRIES)
        end, alive = _extend(table, scratch, window_row, end, u)
        row, window_row, end = row[alive], window_row[alive], end.at(alive)
        tips = [*(a[alive] for a in tips), end.tip]
        direction = [*(a[alive] for a in direction), end.direction]
    _settle(table, scratch, window_row, end)
    windows.occupied[image[row]], windows.widened[image[row]] = scratch.at(window_row)
    return Snakes(image[row], np.stack(tips, 1), np.stack(direction, 1))


def _seed(
    table: Tables, keys: np.ndarray, windows: Windows, image: np.ndarray, place: int
) -> tuple[_State, np.ndarray]:
    """A first segment in each of some images where nothing is, and where there is one."""
    u = draw(keys, place, 1 + 2 * _PLACES)
    degree = (u[:, 0] * _DEGREES).astype(np.int64)
    points = (u[:, 1:] * table.rules.size).astype(np.int64).reshape(-1, _PLACES, 2)
    base = table.base[degree] @ table.unit  # (rows, n)
    at = image * windows.occupied.shape[1]
    pixels = (at[:, None] + table.pixel(points))[:, :, None] + base[:, None]
    free = (windows.occupied.reshape(-1).take(pixels) <= _OCCUPIED).all(2)  # (rows, places)
    seed, inside = _first(table, points[np.arange(len(points)), free.argmax(1)], degree)
    return seed, inside & free.any(1)
