"""Raw sound as tokens: samples in [-1, 1] to codes of eight bits and back, and files to listen to.

By ``mu-law``, the companding curve of ITU-T G.711 with mu = 255 as a continuous function, codes lie
closer together where samples are small, as ears do; by ``linear`` all are equally far apart.
"""

import io
import math
import wave
from pathlib import Path
from typing import Literal

import numpy as np

from linrnn._files.storage import write_atomically
from linrnn.errors import ArgumentError, DTypeError, check_in, check_positive_int

__all__ = [
    "CODES",
    "CODINGS",
    "Coding",
    "decode",
    "encode",
    "silence",
    "wav_bytes",
    "write_wav",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Coding = Literal["mu-law", "linear"]
CODINGS: tuple[Coding, ...] = ("mu-law", "linear")
CODES = 256
"""Codes there are."""

_MU = CODES - 1
_HIGHEST = 2**31 - 1  # samples a second that a .wav can say


def encode(samples: np.ndarray, coding: Coding = "mu-law") -> np.ndarray:
    """The codes of samples, uint8.

    Equation::

        code = round((f(x) + 1) / 2 * 255)
        f(x) = sign(x) ln(1 + 255 |x|) / ln(256)    mu-law;   f(x) = x    linear

    Args:
        samples: real numbers; beyond [-1, 1] they are cut.
        coding: "mu-law" or "linear".

    Raises:
        UnknownNameError: another coding.
        ArgumentError: samples that are not finite.

    Example:
        >>> encode(np.array([-1.0, 0.0, 0.01, 1.0])).tolist()
        [0, 128, 157, 255]
    """
    check_in("encode", "coding", coding, CODINGS)
    x = np.asarray(samples, np.float64)
    if not np.isfinite(x).all():
        raise ArgumentError("encode: samples must be finite, got NaN or infinity.")
    x = x.clip(-1, 1)
    if coding == "mu-law":
        x = np.sign(x) * np.log1p(_MU * np.abs(x)) / math.log1p(_MU)
    return np.floor((x + 1) / 2 * _MU + 0.5).astype(np.uint8)


def decode(codes: np.ndarray, coding: Coding = "mu-law") -> np.ndarray:
    """The samples that codes stand for, float64 in [-1, 1]: the inverse of `encode`.

    Args:
        codes: integers in 0..255.
        coding: "mu-law" or "linear".

    Raises:
        UnknownNameError: another coding.
        DTypeError: no integers.
        ArgumentError: a code that there is none of.

    Example:
        >>> decode(np.array([0, 128, 255])).round(4).tolist()
        [-1.0, 0.0001, 1.0]
    """
    check_in("decode", "coding", coding, CODINGS)
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu":
        raise DTypeError(f"decode: codes must be integers, got {codes.dtype}.")
    wrong = codes[(codes < 0) | (codes >= CODES)]
    if len(wrong):
        raise ArgumentError(f"decode: codes must be in 0..{CODES - 1}, got {wrong[0]}.")
    x: np.ndarray = codes / (_MU / 2) - 1
    if coding == "mu-law":
        x = np.sign(x) * np.expm1(np.abs(x) * math.log1p(_MU)) / _MU
    return x


def silence(coding: Coding = "mu-law") -> int:
    """The code of 0."""
    return int(encode(np.zeros(1), coding)[0])


def wav_bytes(samples: np.ndarray, rate: int) -> bytes:
    """The content of a .wav file of one channel of 16 bits.

    Args:
        samples: (time,) in [-1, 1]; beyond that they are cut.
        rate: samples a second.

    Raises:
        ArgumentError: samples that are not a row of finite numbers, or no such rate.

    Example:
        >>> len(wav_bytes(np.zeros(8000), 8000))
        16044
    """
    check_positive_int("wav", rate=rate)
    if rate > _HIGHEST:
        raise ArgumentError(f"wav: rate must be at most {_HIGHEST:,}, got {rate:,}.")
    x = np.asarray(samples, np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ArgumentError(
            f"wav: samples must be a row of finite numbers, got shape {x.shape}"
            f"{'' if np.isfinite(x).all() else ' with NaN or infinity'}."
        )
    pcm = np.clip(np.rint(x * 32768), -32768, 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(rate)
        clip.writeframes(pcm.tobytes())
    return file.getvalue()


def write_wav(path: Path | str, samples: np.ndarray, rate: int) -> None:
    """Write a file to listen to, all of it or nothing: see `wav_bytes`.

    Raises:
        StorageError: the file cannot be written; it is as it was.
    """
    write_atomically(Path(path), wav_bytes(samples, rate))
