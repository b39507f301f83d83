"""Files of NTU RGB+D: the joints of each body in each frame of a depth camera."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._reading.files import read_packed

JOINTS = 25
_BODY, _JOINT = 10, 12  # numbers of a body and of a joint; those of a joint begin with x, y, z
_MOST_FRAMES, _MOST_BODIES = 100_000, 64
_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})")


class Recording(NamedTuple):
    """The numbers in the name of a file, ``SsssCcccPpppRrrrAaaa.skeleton``."""

    setup: int
    camera: int
    person: int
    repetition: int
    action: int


def parse_name(path: Path) -> Recording:
    """The numbers in the name of a file.

    Raises:
        DataError: the name has another form.

    Example:
        >>> parse_name(Path("S001C002P003R002A013.skeleton"))
        Recording(setup=1, camera=2, person=3, repetition=2, action=13)
    """
    match = _NAME.fullmatch(path.name.split(".")[0])
    if match is None:
        raise DataError(
            f"{path}: the file name must be like S001C002P003R002A013.skeleton, got "
            f"{path.name!r:.60}. Take the file out, or give it back its name."
        )
    return Recording(*map(int, match.groups()))


def read_skeleton(path: Path, bodies: int) -> np.ndarray:
    """The joints of the bodies that move most.

    Args:
        path: of the file.
        bodies: how many; further ones are left out, and those that are not there are 0.

    Returns:
        (frames, bodies, 25, 3) float32, in metres. A body is 0 in frames without it. Bodies are
        sorted by the variance of their joints over the frames they are in, the largest first. There
        are no frames if no body is in any.

    Raises:
        DataError: the file is damaged or has another layout.
    """
    words = read_packed(path, "joints of skeletons").split()
    tracks: dict[bytes, list[tuple[int, np.ndarray]]] = {}
    try:
        frames, place = _count(words[0], _MOST_FRAMES), 1
        for frame in range(frames):
            count, place = _count(words[place], _MOST_BODIES), place + 1
            for _ in range(count):
                name, end = words[place], place + _BODY + 1
                if _count(words[end - 1], JOINTS) != JOINTS:
                    raise ValueError(f"{int(words[end - 1])} joints")
                place = end + JOINTS * _JOINT
                if place > len(words):
                    raise IndexError
                numbers = np.array(words[end:place], dtype=np.float32).reshape(JOINTS, _JOINT)
                tracks.setdefault(name, []).append((frame, numbers[:, :3]))
        if place != len(words):
            raise ValueError(f"{len(words) - place} numbers after the last frame")
    except (ValueError, IndexError) as error:
        reason = "its end" if isinstance(error, IndexError) else error
        raise DataError(
            f"{path}: the file must hold frames of bodies with {JOINTS} joints of {_JOINT} numbers "
            f"each, got {reason!s:.80}. Get it anew."
        ) from error
    x = np.zeros((frames if tracks else 0, bodies, JOINTS, 3), np.float32)
    for body, track in enumerate(sorted(tracks.values(), key=_motion, reverse=True)[:bodies]):
        for frame, joints in track:
            x[frame, body] = joints
    if not np.isfinite(x).all():
        raise DataError(f"{path}: joints must be finite numbers, got others. Leave the file out.")
    return x


def _count(word: bytes, most: int) -> int:
    """A number of things."""
    number = int(word)
    if not 0 <= number <= most:
        raise ValueError(f"a count of {number}")
    return number


def _motion(track: list[tuple[int, np.ndarray]]) -> float:
    """Variance of the joints over the frames, summed."""
    joints = np.stack([joints for _, joints in track]).astype(np.float64)
    return float(joints.var(0).sum())
