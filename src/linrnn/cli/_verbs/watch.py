"""The answers of ``linrnn stream`` to lines: their surprise in bits, or the model's outputs."""

import codecs
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from linrnn._options.numbers import number, whole
from linrnn.backbone import Model, SequenceModel
from linrnn.cli._line.output import MANNER, joined, json_text
from linrnn.cli._line.streams import say
from linrnn.cli._verbs.drifting import Drifting
from linrnn.errors import ArgumentError, DataError, LinrnnError
from linrnn.generation import TokenStream, check_tokenizer
from linrnn.learn import LearningText
from linrnn.streaming import Session
from linrnn.streaming.input import vocabulary
from linrnn.tasks import Task
from linrnn.tasks.forecast import Forecast
from linrnn.train.suits import no_times, reads_dt

_WARM_UP = 100  # lines before a quantile of them says anything


class Threshold:
    """Whether a value is unusually large: above a bound, or above a quantile of those before it.

    The quantile is that of a histogram with bins of 0.01, so memory is constant; it says nothing
    before 100 values.

    Args:
        above: the bound; None has none.
        quantile: in (0, 1); None asks for none.

    Example:
        >>> flag = Threshold(above=3.0)
        >>> flag(2.0), flag(4.0)
        (False, True)
    """

    _BINS, _WIDTH = 6400, 0.01

    def __init__(self, above: float | None = None, quantile: float | None = None) -> None:
        if quantile is not None and not 0 < quantile < 1:
            raise ArgumentError(f"stream: --quantile must be in (0, 1), got {quantile}.")
        if above is not None and math.isnan(above):
            raise ArgumentError(f"stream: --above must be a number, got {above}.")
        self._above, self._quantile = above, quantile
        self._counts = np.zeros(self._BINS, np.int64)
        self._total = 0

    def __call__(self, value: float) -> bool:
        """Compare with what came before, then remember."""
        large = self._above is not None and value > self._above
        if self._quantile is None:
            return large
        place = min(int(value / self._WIDTH), self._BINS - 1)
        if self._total >= _WARM_UP:
            # all in lower bins, and in the same one none counts: a tie is not unusual
            large = large or self._counts[:place].sum() >= self._quantile * self._total
        self._counts[place] += 1
        self._total += 1
        return bool(large)


class Surprise:
    """A language model: bits of each line, bits per byte, a mark for the unusual, the line itself.

    Args:
        model, tokenizer: of a run.
        flag: which bits per byte are unusual.
        only_flagged: pass over the other lines.
        as_json: answer by lines of JSON.
        learning: reads the tokens and learns from each line; None: the weights stay as they are.
    """

    def __init__(
        self,
        model: SequenceModel,
        tokenizer: Any,
        flag: Threshold,
        only_flagged: bool,
        *,
        as_json: bool = False,
        learning: LearningText | None = None,
    ) -> None:
        self._json = as_json
        self.stream = TokenStream(model)
        check_tokenizer(self.stream, tokenizer)
        self._tokenizer, self._flag, self._only_flagged = tokenizer, flag, only_flagged
        self._surprise = (learning or self.stream).surprise
        # what is learned from a line must not depend on how many have arrived
        self.at_once = 0 if learning else self.stream.chunk

    def parse(self, line: bytes, place: int) -> Any:
        """Token ids."""
        return self._tokenizer.encode(line, where=f"line {place}")

    def answer(self, lines: list[bytes], parsed: list[Any]) -> Iterator[bytes]:
        """All tokens in one parallel pass, before the first answer."""
        ends = np.cumsum([len(ids) for ids in parsed])
        bits = self._surprise(torch.from_numpy(np.concatenate(parsed).astype(np.int64)))
        total = np.concatenate([[0.0], bits.double().cumsum(0).numpy()])[np.append(0, ends)]
        for line, of_line in zip(lines, np.diff(total), strict=True):
            per_byte = float(of_line) / len(line)
            flagged = self._flag(per_byte)
            if flagged or not self._only_flagged:
                yield self._said(line, float(of_line), per_byte, flagged)

    def _said(self, line: bytes, bits: float, per_byte: float, flagged: bool) -> bytes:
        if self._json:
            text = line.decode(errors="backslashreplace").removesuffix("\n")
            record = {"bits": bits, "bits_per_byte": per_byte, "flagged": flagged, "line": text}
            return json_line(record)
        ending = b"" if line.endswith(b"\n") else b"\n"
        return f"{'!' if flagged else ' '} {bits:9.1f} {per_byte:6.2f}  ".encode() + line + ending


class Answers:
    """Any other model: what it says after each line of numbers, or of token ids.

    Numbers are in the units of the data, as of `linrnn.load(run).stream()`; where a task scales no
    step alone they are as the model reads them, and a remark says so.

    Args:
        model, task: of a run.
        as_json: answer by lines of JSON.

    Raises:
        ArgumentError: the model reads times, of which lines have none.
    """

    def __init__(self, model: Model, task: Task, *, as_json: bool = False) -> None:
        self.stream, self._json = Session(model), as_json
        self.task = task
        self._vocabulary = vocabulary(model)
        if reads_dt(task, model):
            raise no_times(
                "stream", "Lines hold no times: feed linrnn.load(run).stream() in Python, with dt."
            )
        self._scaled = _scaling(task)
        self._width = model.d_input if self._scaled is None else task.channels
        self._noted = False
        self._may_miss = getattr(task.options, "missing", "error") == "mask"
        self.dtype = model.head.weight.dtype
        self.pools = model.pool.kind != "none"
        # one that pools gives a single output a call: each line needs its own
        self.at_once = 0 if self.pools else self.stream.chunk
        self._drifting = (
            Drifting.of(model, task.known.names) if isinstance(task, Forecast) else None
        )

    def parse(self, line: bytes, place: int) -> Any:
        """One or more steps; a blank line is passed over."""
        line = without_mark(line, place)
        words = words_of(line, place)
        if self._vocabulary is None and self._width == 1:
            self._say_if_decimal(line, place)
        return self.steps(words, place) if words else None

    def _say_if_decimal(self, line: bytes, place: int) -> None:
        """Note once that ``1,5`` is two steps: nobody can tell from the line what was meant."""
        if self._noted or not _DECIMAL.fullmatch(line.strip()):
            return
        self._noted = True
        one, two = line.split(b",")
        remark(
            f"line {place}: a comma separates numbers, so {line.strip().decode():.40} is read as "
            f"two steps, {one.strip().decode():.20} and {two.strip().decode():.20}. Write a "
            "decimal number with a point"
        )

    def steps(self, words: list[bytes], place: int) -> Tensor:
        """The steps that the words of a line are, as the model reads them."""
        size = self._vocabulary
        return self._numbers(words, place) if size is None else _tokens(words, place, size)

    def _numbers(self, words: list[bytes], place: int) -> Tensor:
        """Steps as the model reads them, in its dtype, which must hold them."""
        values = _read(number, "numbers", words, place)
        if len(values) % self._width:
            raise DataError(
                f"line {place}: there must be {self._width} numbers a step, or a multiple of "
                f"that, got {len(values)}."
            )
        numbers = torch.tensor(values, dtype=torch.float64)
        steps = numbers.view(1, -1, self._width)
        read = (steps if self._scaled is None else self._scaled(steps))[0].to(self.dtype)
        fits = numbers.abs() <= torch.finfo(self.dtype).max
        if self._may_miss:
            fits |= numbers.isnan()
        if not bool(fits.all() & read.isfinite().all()):
            bad = b" ".join(words) if bool(fits.all()) else words[fits.tolist().index(False)]
            fix = "Scale them as in training." if self._scaled is None else _UNITS
            raise DataError(
                f"line {place}: the numbers must be finite and fit {self.dtype}, got "
                f"{bad.decode():.60}. {fix}"
            )
        return read

    def answer(self, lines: list[bytes], parsed: list[Any]) -> Iterator[bytes]:
        """All steps in one parallel pass, before the first answer; of one line where it pools."""
        ys = self.stream.feed(torch.cat(parsed))
        if self._drifting is not None:
            self._drifting.read(parsed[0], ys, self.stream.steps)
        if self.pools:
            ys = ys[None]
        else:
            ends = torch.tensor([len(x) for x in parsed]).cumsum(0) - 1
            ys = ys[ends.to(ys.device)]
        for y in ys:
            yield self.said(y)

    def said(self, y: Tensor) -> bytes:
        """The line that answers with one output."""
        names = self.task.class_names
        if names:
            share = y.double().softmax(-1)
            best = int(share.argmax())
            if self._json:
                return json_line({"class": names[best], "probability": float(share[best])})
            return f"{names[best]}\t{float(share[best]):.4f}\n".encode()
        values = y if self.task.kind != "regression" else self.task.numbers(y[None])[0]
        numbers = values.flatten().tolist()
        if self._json:
            drift = {} if self._drifting is None else {"drift": self._drifting.channels}
            return json_line(joined({"values": numbers}, drift))
        return ("\t".join(f"{v:.6g}" for v in numbers) + "\n").encode()


_DECIMAL = re.compile(rb"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
"""A text that may be a number with a decimal comma, or two whole numbers."""


def words_of(line: bytes, place: int) -> list[bytes]:
    """The words of a line between commas or blanks.

    Raises:
        DataError: a cell between commas is empty; or all words look like numbers with a decimal
            comma.

    Example:
        >>> words_of(b"0.5, 0.25 1", 1)
        [b'0.5', b'0.25', b'1']
    """
    words = line.split()
    if len(words) > 1 and all(map(_DECIMAL.fullmatch, words)):
        raise DataError(
            f"line {place}: numbers must have a decimal point, and commas or blanks between them, "
            f"got {line.strip().decode()!r:.60}. Write 1.5 for 1,5, or use commas alone."
        )
    cells = line.split(b",")
    if len(cells) > 1 and not all(map(bytes.strip, cells)):
        raise DataError(
            f"line {place}: every cell between commas must hold a number, got "
            f"{line.strip().decode(errors='replace')!r:.60}. Leave such lines out: --skip-invalid."
        )
    return line.replace(b",", b" ").split()


def without_mark(line: bytes, place: int) -> bytes:
    """A line of numbers without the mark of UTF-8, with which some programs begin a text."""
    return line.removeprefix(codecs.BOM_UTF8) if place == 1 else line


def remark(text: str) -> None:
    """Say something on standard error: standard output has an answer a line and nothing else."""
    if not MANNER.quiet:
        say(text)


_UNITS = "Are they in the units of the training data?"


def _scaling(task: Task) -> Callable[[Tensor], Tensor] | None:
    """The function that scales steps from the data's units to the model's; None without one."""
    if task.encoder == "tokens":
        return None
    try:
        task.scaled(torch.zeros(1, 1, task.channels))
    except ArgumentError:
        remark(
            "numbers are taken as the model reads them, scaled as in training: the task "
            f"{type(task).__name__} brings whole sequences to that scale, and no single step"
        )
        return None
    return task.scaled


def check_flags(args: Any, task: str) -> None:
    """Raise where marks for the unusual are asked of a model that is not surprised."""
    if args.above is not None or args.quantile is not None or args.only_flagged:
        raise ArgumentError(
            "stream: --above, --quantile and --only-flagged must come with a language model, got "
            f"one of the task {task}."
        )


def json_line(value: Any) -> bytes:
    """A value as one line of JSON."""
    return json_text(value, indent=None).encode() + b"\n"


@runtime_checkable  # as the shape checker of the test run needs it to be
class Watcher(Protocol):
    """Reads lines and answers them: `Surprise`, `Answers`, or `Lessons` of a model that learns."""

    at_once: int
    """Steps that are read in one pass at most; 0: line by line."""

    def parse(self, line: bytes, place: int) -> Any:
        """Read a line; None where it is passed over."""

    def answer(self, lines: list[bytes], parsed: list[Any]) -> Iterator[bytes]:
        """The answers to some lines."""


class Line(NamedTuple):
    """A line that could be read."""

    place: int
    """From 1."""
    text: bytes
    steps: Any
    """As `parse` gives them."""


def watch(
    watcher: Watcher, lines: list[bytes], first: int, skip: Callable[[str], None] | None
) -> Iterator[bytes]:
    """Answers to a block of lines, as soon as there are some; those before a bad line come first.

    As many lines are read at once as their steps fill a chunk of the model; of a model that pools
    over time, one. The stream has read just the lines with an answer.

    Args:
        watcher: reads them.
        lines: each with its newline.
        first: number of the first.
        skip: told of a line that cannot be read or followed, which is then passed over; None
            raises.

    Raises:
        LinrnnError: a line cannot be read, or the model's outputs or state are not finite after it.
    """
    good: list[Line] = []
    steps = 0
    for place, text in enumerate(lines, first):
        try:
            x = watcher.parse(text, place)
        except LinrnnError as error:
            yield from _answers(watcher, good, skip)
            good, steps = [], 0
            if skip is None:
                raise
            skip(str(error))
            continue
        if x is None:
            continue
        if steps + len(x) > watcher.at_once:
            yield from _answers(watcher, good, skip)
            good, steps = [], 0
        good.append(Line(place, text, x))
        steps += len(x)
    yield from _answers(watcher, good, skip)


def _answers(
    watcher: Watcher, good: Sequence[Line], skip: Callable[[str], None] | None
) -> Iterator[bytes]:
    """Answers to lines that are read at once, or in halves until the bad one is alone."""
    if not good:
        return
    try:
        yield b"".join(watcher.answer([line.text for line in good], [line.steps for line in good]))
        return
    except LinrnnError as error:  # not finite, or beyond a limit of the model's form
        failed = error
    if len(good) > 1:
        yield from _answers(watcher, good[: len(good) // 2], skip)
        yield from _answers(watcher, good[len(good) // 2 :], skip)
        return
    why = f"line {good[0].place}: {str(failed).partition(': ')[2]}"
    if skip is None:
        raise DataError(f"{why} To pass over such lines: --skip-invalid.") from failed
    skip(why)


def _tokens(words: list[bytes], place: int, size: int) -> Tensor:
    """Ids of the model's vocabulary."""
    values = _read(whole, "token ids", words, place)
    if not all(0 <= value < size for value in values):
        line = b" ".join(words)
        raise DataError(f"line {place}: token ids must be in 0..{size - 1}, got {line!r:.60}.")
    return torch.tensor(values)


def _read(kind: Callable[[bytes], Any], what: str, words: list[bytes], place: int) -> list[Any]:
    values = [kind(word) for word in words]
    if None in values:
        bad = words[values.index(None)].decode(errors="replace")
        raise DataError(
            f"line {place}: the input must be {what}, got {bad!r:.60}. Leave out a header and "
            "columns of ids or times."
        )
    return values
