"""Speech Commands: which of 35 words is spoken, from the raw waveform."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import check_in
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._reading.audio import AudioOptions, AudioTask
from linrnn.tasks._reading.files import Source, chosen, folder_of, obtain

_ARCHIVE = Source(
    "speech_commands_v0.02.tar.gz",
    "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
)
_ALL = (
    "backward bed bird cat dog down eight five follow forward four go happy house learn left "
    "marvin nine no off on one right seven sheila six stop three tree two up visual wow yes zero"
)
_TEN = "down go left no off on right stop up yes"
_LARGEST = 2**27 - 1
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396, notes of its public code"

Words = Literal["all", "ten"]


@dataclass(frozen=True, kw_only=True)
class SpeechCommandsOptions(AudioOptions):
    """Options of the task `speech_commands`."""

    data: str = ""
    """The archive, or its folder. Default: 2.4 GB are downloaded once, into `LINRNN_DATA`."""
    words: Words = "all"
    """All 35, or ten commands."""
    length: int = 16_000
    """Samples a clip is cut or padded to; 16,000 are one second."""


class SpeechCommands(AudioTask):
    """One of 35 words, spoken by many people into their own microphones: one second, 16 kHz.

    The archive is read as it was distributed (version 0.02, or the 30 words of 0.01). All 105,829
    clips are 3.4 GB of memory, and twice that while they are read. Splits are those of its lists,
    or, where it has none, of the rule they were made by: a hash of the speaker. With ten words the
    splits are the same; papers that call this SC10 mostly split anew. A batch carries the
    lengths, so the silence that short clips are padded with is not read.

    Args:
        options: `SpeechCommandsOptions`.

    Raises:
        UnknownNameError: no such words.
        ArgumentError: a length below 1.
    """

    Options: ClassVar[type] = SpeechCommandsOptions
    summary: ClassVar[str] = "one of 35 spoken words, 16,000 raw samples"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="S4, 6 layers of width 128, 35 words", value=0.965, source=_S4),
        Published(model="S5, 6 layers of width 96, 35 words", value=0.9652, source=_S5),
    )

    rate = 16_000

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_in("SpeechCommands", "words", self.options.words, get_args(Words))
        self.class_names = tuple((_ALL if self.options.words == "all" else _TEN).split())
        self.d_output = len(self.class_names)
        self.chance = 1 / self.d_output
        self._listed: dict[str, set[str]] = {}

    def archive(self, download: bool = True) -> Path:
        """The official archive, or any other in the folder."""
        place = folder_of("speech_commands", self.options.data)
        if place.is_file():
            return place
        archives = sorted(place.glob("speech_commands*.tar.?z"))
        if archives:
            return chosen("speech_commands", archives[-1], place)
        return obtain("speech_commands", _ARCHIVE, "speech_commands", self.options.data, download)

    def lists(self, name: str, content: bytes) -> None:
        """The files with the names of the validation and of the test clips."""
        for split in ("validation", "testing"):
            if name.endswith(f"{split}_list.txt"):
                self._listed[split] = set(content.decode("ascii", errors="replace").split())

    def place(self, name: str) -> tuple[str, str] | None:
        """By the lists, or by the rule behind them."""
        *_, word, clip = name.split("/") if "/" in name else ("", "", name)
        if word not in self.class_names:
            return None
        if len(self._listed) < 2:
            return split_of(clip), word
        if f"{word}/{clip}" in self._listed["validation"]:
            return "validation", word
        return ("test" if f"{word}/{clip}" in self._listed["testing"] else "train"), word

    def example(self) -> str:
        """The form of an example; none is read, as the archive is large."""
        return f"input 16,000 samples in [-1, 1)\ntarget {self.class_names[0]}"


def split_of(clip: str) -> str:
    """Split of a clip: all of one speaker's are in the same; a tenth each for the last two.

    Example:
        >>> split_of("0a7c2a8d_nohash_0.wav") == split_of("0a7c2a8d_nohash_1.wav")
        True
    """
    speaker = re.sub(r"_nohash_.*$", "", clip)
    digest = int(hashlib.sha1(speaker.encode(), usedforsecurity=False).hexdigest(), 16)
    percent = digest % (_LARGEST + 1) * (100 / _LARGEST)
    return "validation" if percent < 10 else "test" if percent < 20 else "train"
