"""Lines with a target, for ``linrnn stream --learner``."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn._options.numbers import number, whole
from linrnn.backbone import SequenceModel
from linrnn.cli._verbs.watch import Answers, without_mark, words_of
from linrnn.errors import DataError
from linrnn.learn import LearningSession
from linrnn.tasks import IGNORE, Task
from linrnn.train.scales import output_scale

_UNKNOWN = b"?"
_FIELDS = ("x", "target")


@dataclass(frozen=True)
class Taught:
    """The inputs and targets in a line."""

    x: Tensor
    target: Tensor | None
    """As `LearningSession.feed` takes it; None where a line says nothing of it."""

    def __len__(self) -> int:
        return len(self.x)


class _Words(NamedTuple):
    x: list[bytes]
    target: list[bytes]


class Lessons:
    """Answers, each by the weights before the target of its line was learned from.

    A line is as `Answers` reads it, with the target after a bar: ``0.5 0.25 | 1.5``; or an object
    of JSON, ``{"x": [0.5, 0.25], "target": 1.5}``; or, with ``place``, cells of which the last or
    the first is the target. The target is the name of a class, or its number where classes have no
    names, or in regression numbers in the units in which answers are printed; one for each step, or
    for the line where a model pools over time. A line without one, or with ``?`` in its place, is
    only predicted.

    Args:
        model, task: of a run.
        learning: reads the steps and learns from each line.
        place: "last" or "first", where the target stands among the cells; None: after a bar.
        as_json: answer by lines of JSON.
    """

    def __init__(
        self,
        model: SequenceModel,
        task: Task,
        learning: LearningSession,
        *,
        place: str | None = None,
        as_json: bool = False,
    ) -> None:
        self._answers = Answers(model, task, as_json=as_json)
        self.at_once = 0  # what is learned from a line must not depend on how many have arrived
        self._learning, self._place = learning, place
        self._scale = output_scale(task, model)
        self._each = 1 if self._scale is None else model.d_output
        self._classes = model.d_output

    def parse(self, line: bytes, place: int) -> Any:
        """Steps, and their target where there is one; a blank line is passed over."""
        words = self._split(without_mark(line, place).strip(), place)
        if not words.x and not words.target:
            return None
        if not words.x:
            raise DataError(f"line {place}: a line must have input before its target, got none.")
        x = self._answers.steps(words.x, place)
        return Taught(x, self._target(words.target, len(x), place))

    def answer(self, lines: list[bytes], parsed: list[Any]) -> Iterator[bytes]:
        """Answer each line, then learn from it."""
        for taught in parsed:
            y = self._learning.feed(taught.x, taught.target)
            yield self._answers.said(y if self._answers.pools else y[-1])

    def _split(self, text: bytes, place: int) -> _Words:
        if text.startswith(b"{"):
            return _of_json(text, place)
        input_text, bar, target_text = text.partition(b"|")
        if bar:
            # a name may hold blanks
            one = self._answers.pools and bool(self._answers.task.class_names)
            target = [target_text.strip()] if one and target_text.strip() else _words(target_text)
            return _Words(words_of(input_text, place), target)
        if self._place is None or not text:
            return _Words(words_of(text, place), [])
        # an empty cell is a target that nobody knows yet
        cells = [w for cell in text.split(b",") for w in (cell.split() or [_UNKNOWN])]
        if self._place == "first":
            return _Words(cells[self._each :], cells[: self._each])
        return _Words(cells[: -self._each], cells[-self._each :])

    def _target(self, words: list[bytes], steps: int, place: int) -> Tensor | None:
        if all(word == _UNKNOWN for word in words):
            return None
        n_targets = 1 if self._answers.pools else steps
        if len(words) != n_targets * self._each:
            what = "classes" if self._scale is None else "numbers"
            of = "a line" if self._answers.pools else f"{steps} steps"
            raise DataError(
                f"line {place}: the target must be {n_targets * self._each} {what} for {of}, got "
                f"{len(words)}. Put it after a bar: 0.5 0.25 | 1.5, and ? where it is not known."
            )
        values = (
            self._class_numbers(words, place)
            if self._scale is None
            else self._target_numbers(words, place)
        )
        return values[0] if self._answers.pools else values

    def _class_numbers(self, words: list[bytes], place: int) -> Tensor:
        """(targets,) numbers of classes, and the task's mark at a step without a target."""
        names = [name.encode() for name in self._answers.task.class_names]
        numbers = []
        for word in words:
            value = names.index(word) if word in names else None if names else whole(word)
            if word == _UNKNOWN:
                value = IGNORE
            elif value is None or not 0 <= value < self._classes:
                allowed = b", ".join(names).decode() if names else f"0..{self._classes - 1}"
                raise DataError(
                    f"line {place}: the target must be one of {allowed:.200}, got "
                    f"{word.decode(errors='replace')!r:.60}."
                )
            numbers.append(value)
        return torch.tensor(numbers)

    def _target_numbers(self, words: list[bytes], place: int) -> Tensor:
        """(targets, numbers) as the model is to answer them."""
        assert self._scale is not None
        values = [number(word) for word in words]
        dtype = self._answers.dtype
        largest = torch.finfo(dtype).max
        for word, value in zip(words, values, strict=True):
            if value is None or not abs(value) <= largest:
                raise DataError(
                    f"line {place}: the target must be finite numbers that fit {dtype}, got "
                    f"{word.decode(errors='replace')!r:.60}."
                )
        numbers = torch.tensor(values, dtype=torch.float64).view(-1, self._each)
        scale, shift = (v.flatten() for v in self._scale)
        return (numbers - shift) / scale


def _words(text: bytes) -> list[bytes]:
    return text.replace(b",", b" ").split()


def _of_json(text: bytes, place: int) -> _Words:
    """The numbers and names of an object of JSON, as a line without JSON has them."""
    try:
        record = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"line {place}: a line with braces must be one object of JSON, got {error!s:.80}."
        ) from error
    if "x" not in record or not set(record) <= set(_FIELDS):
        names = ", ".join(map(repr, record))
        raise DataError(
            f"line {place}: the fields must be 'x' and, where it is known, 'target', got "
            f"{names or 'none':.80}."
        )
    target = record.get("target")
    return _Words(
        list(_leaves(record["x"], place)), [] if target is None else list(_leaves(target, place))
    )


def _leaves(value: Any, place: int) -> Iterator[bytes]:
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one, place)
    elif value is None:
        yield _UNKNOWN
    elif isinstance(value, str):
        yield value.encode(errors="replace")
    else:
        raise DataError(
            f"line {place}: the fields must hold numbers, names and lists of them, got "
            f"{value!r:.60}."
        )
