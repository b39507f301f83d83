"""Free Spoken Digits: which digit is spoken, from the raw waveform."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from linrnn.tasks._reading.audio import AudioOptions, AudioTask
from linrnn.tasks._reading.files import Source, chosen, folder_of, missing

_SOURCE = Source(
    "fsdd.tar.gz",
    "https://github.com/Jakobovski/free-spoken-digit-dataset (as a .tar.gz of its recordings)",
    "",
)
_CLIP = re.compile(r"(?:.*/)?recordings/(\d)_\w+_(\d+)\.wav", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SpokenDigitsOptions(AudioOptions):
    """Options of the task `spoken_digits`."""

    data: str = ""
    """The archive, or its folder. Default: the one in `LINRNN_DATA`; nothing is downloaded."""
    length: int = 8_000
    """Samples a clip is cut or padded to; 8,000 are one second."""


class SpokenDigits(AudioTask):
    """English digits spoken by six people: 8 kHz, 0.14 to 2.3 seconds, cut to one; 10 classes.

    The Free Spoken Digit Dataset, read from an archive of its ``recordings``. As it says, the
    recordings 0 to 4 of each digit and speaker are for testing; of the others, those whose number
    ends in 9 are for validation. A batch carries the lengths. There is no download, since no
    checksum of the archive was published.

    Args:
        options: `SpokenDigitsOptions`.

    Raises:
        ArgumentError: a length below 1.
    """

    Options: ClassVar[type] = SpokenDigitsOptions
    summary: ClassVar[str] = "one of 10 spoken digits, up to 8,000 raw samples"

    rate = 8_000
    chance = 0.1
    d_output = 10
    class_names = tuple("0123456789")

    def archive(self, download: bool = True) -> Path:
        """Any archive in the folder."""
        return archive_of("spoken_digits", self.options.data)

    def place(self, name: str) -> tuple[str, str] | None:
        """By the number of the recording."""
        return place_of(name)


def archive_of(task: str, data: str) -> Path:
    """The archive of recordings.

    Args:
        task: who asks, for the message.
        data: the user's own folder or archive, if one was given.

    Raises:
        DataError: there is none.
    """
    folder = folder_of("fsdd", data)
    if folder.is_file():
        return folder
    archives = sorted(folder.glob("*.tar.?z"))
    if not archives:
        raise missing(task, folder / _SOURCE.name, "no such file", [_SOURCE])
    return chosen(task, archives[0], folder)


def place_of(name: str) -> tuple[str, str] | None:
    """Split and digit of a recording by the name of its file, None for another file.

    Example:
        >>> place_of("recordings/7_jackson_12.wav"), place_of("7.wav")
        (('train', '7'), None)
    """
    match = _CLIP.fullmatch(name)
    if match is None:
        return None
    digit, number = match[1], int(match[2])
    if number < 5:
        return "test", digit
    return ("validation" if number % 10 == 9 else "train"), digit
