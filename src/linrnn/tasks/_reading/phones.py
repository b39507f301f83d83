"""Recordings of sentences with their phones, as TIMIT has them: NIST sphere or .wav, and .phn."""

from pathlib import Path

import numpy as np

from linrnn._files.door import read_bytes
from linrnn.errors import DataError
from linrnn.tasks._reading.audio import Clip, decode_wav

_SILENT = ("pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi")
_FOLDED = {
    **{"ao": "aa", "ax": "ah", "ax-h": "ah", "axr": "er", "hv": "hh", "ix": "ih", "el": "l"},
    **{"em": "m", "en": "n", "nx": "n", "eng": "ng", "zh": "sh", "ux": "uw"},
    **dict.fromkeys(_SILENT, "sil"),
}
_LEFT_OUT = "q"  # the glottal stop, which the 39 classes do not have
PHONES_61 = (
    *("aa", "ae", "ah", "ao", "aw", "ax", "ax-h", "axr", "ay", "b", "bcl", "ch"),
    *("d", "dcl", "dh", "dx", "eh", "el", "em", "en", "eng", "epi", "er", "ey"),
    *("f", "g", "gcl", "h#", "hh", "hv", "ih", "ix", "iy", "jh", "k", "kcl"),
    *("l", "m", "n", "ng", "nx", "ow", "oy", "p", "pau", "pcl", "q", "r"),
    *("s", "sh", "t", "tcl", "th", "uh", "uw", "ux", "v", "w", "y", "z", "zh"),
)
PHONES_39 = tuple(sorted({_FOLDED.get(p, p) for p in PHONES_61 if p != _LEFT_OUT}))
_HEADER_BYTES = 1024
_TYPES = {"-i": int, "-r": float}


def fold(phone: str) -> str:
    """One of the 39 classes for one of the 61 phones; empty for the glottal stop.

    Example:
        >>> fold("ax-h"), fold("tcl"), fold("q"), fold("iy")
        ('ah', 'sil', '', 'iy')

    Reference:
        Lee and Hon 1989, "Speaker-independent phone recognition using hidden Markov models".
    """
    return "" if phone == _LEFT_OUT else _FOLDED.get(phone, phone)


def read_recording(path: Path, inside: Path | None) -> Clip:
    """A recording of one channel: NIST sphere, or .wav, by its content.

    Raises:
        DataError: it is damaged, packed, or of several channels.
    """
    try:
        content = read_bytes(path, inside=inside)
    except OSError as error:
        raise DataError(f"{path}: the data file must be readable, got {error}.") from error
    if content.startswith(b"NIST_1A"):
        return _decode_sphere(path, content)
    samples, rate = decode_wav(str(path), content)
    if samples.shape[1] != 1:
        raise DataError(f"{path}: a recording must have one channel, got {samples.shape[1]}.")
    return Clip(samples[:, 0], rate)


def _decode_sphere(path: Path, content: bytes) -> Clip:
    """A recording behind a header of text, which says how many bytes it has."""
    fields, size = _sphere_header(path, content)
    coding = str(fields.get("sample_coding", "pcm"))
    width, channels = fields.get("sample_n_bytes", 2), fields.get("channel_count", 1)
    if (coding, width, channels) != ("pcm", 2, 1):
        raise DataError(
            f"{path}: a sphere file must hold one channel of 16 bits, not packed (pcm), got "
            f"{channels} channels of {width} bytes, {coding}. Convert it, with sph2pipe or sox."
        )
    rate, count = fields.get("sample_rate"), fields.get("sample_count")
    body = content[size:]
    if not isinstance(rate, int) or rate < 1 or not isinstance(count, int):
        raise DataError(f"{path}: a sphere file must name sample_rate and sample_count, got none.")
    if count < 1 or len(body) < 2 * count:
        raise DataError(
            f"{path}: the sphere file must be complete, got {len(body)} bytes of {2 * count}."
        )
    order = ">i2" if fields.get("sample_byte_format") == "10" else "<i2"
    samples = np.frombuffer(body[: 2 * count], order).astype(np.float32) / np.float32(32768)
    return Clip(samples, rate)


def _sphere_header(path: Path, content: bytes) -> tuple[dict[str, str | int | float], int]:
    """Fields of a header, and its bytes."""
    fields: dict[str, str | int | float] = {}
    try:
        size = int(content[8:16])
        if not 16 < size <= 64 * _HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        for line in content[16:size].decode("ascii").splitlines():
            if line.strip() == "end_head":
                return fields, size
            name, kind, value = line.split(" ", 2)
            fields[name] = _TYPES[kind](value) if kind in _TYPES else value.strip()
        raise ValueError("no end of the header")
    except ValueError as error:
        raise DataError(
            f"{path}: the file must begin with a NIST sphere header, got: {error}. Get it anew."
        ) from error


def read_phones(path: Path, inside: Path | None) -> tuple[np.ndarray, list[str]]:
    """Spans (phones, 2) of samples and names of the phones of a .phn file.

    Raises:
        DataError: a line is not two rising numbers and a phone of the 61, or spans overlap.
    """
    try:
        lines = read_bytes(path, inside=inside).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the data file must be readable text, got {error}.") from error
    spans, phones, end = [], [], 0
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if not cells:
            continue
        numbers = [int(cell) for cell in cells[:2] if cell.isdecimal()]
        if len(cells) != 3 or len(numbers) != 2 or not end <= numbers[0] < numbers[1]:
            raise DataError(
                f"{path}: a line must have the first sample of a phone, the one after its last and "
                f"its name, in order, got {line!r:.60} in line {number}."
            )
        if cells[2] not in PHONES_61:
            raise DataError(f"{path}: a phone must be one of TIMIT's 61, got {cells[2]!r:.60}.")
        spans.append(numbers)
        phones.append(cells[2])
        end = numbers[1]
    if not phones:
        raise DataError(f"{path}: the file must hold phones, got none.")
    return np.array(spans), phones
