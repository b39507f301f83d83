"""Phonebook: find the number of a name among many lines."""

from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    distinct,
    integers,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

_FIRST = tuple(c + v for c in "bdfghjklmnpr" for v in "aeiou")
_LAST = tuple(c + v + "n" for c in "bdfghjklmnpr" for v in "aeiou")
_LEAST_DIGIT = 6  # of the first digit of a number
COLON, END, ASK, FIRST = 10, 11, 12, 13
"""Tokens after the ten digits; syllables that begin a name have ids from `FIRST`."""
LAST = FIRST + len(_FIRST)
"""Syllables that end a name have ids from here."""


@dataclass(frozen=True, kw_only=True)
class PhonebookOptions(GeneratedOptions):
    """Options of the task `phonebook`."""

    lines: int = 10
    """Lines of the book, each a name and its number."""
    digits: int = 10
    """Digits of a number."""
    shots: int = 2
    """Questions with their answers, about other lines of the book, before the question."""
    train_shots: bool = True
    """Train on the answers of the shots as well; scored is the last answer alone."""


class Phonebook(Task):
    """Give the number of a name, after a book of names and numbers and some examples.

    A book has ``lines`` lines ``name : number``. Its names differ. A name is one of 60 beginnings
    and one of 60 endings, a token each, so that often neither alone tells which line it is. The
    first digit of a number is 6 to 9, the others 0 to 9, each a token. After the book come
    ``shots`` question lines ``? name : number``, and then ``? name :``. Each asks about another
    line of the book. The target is the last number, digit by digit, with the digits before it
    given. The score is 1 where all digits are right: an exact match, as decoding the likeliest
    digits would give it.

    **Memory.** Before the questions any line may be the one in question. The numbers of a book hold
    ``lines * (2 + (digits - 1) * log2 10)`` bits (`bits`), 31.9 bits a line with 10 digits; the
    names hold 11.8 bits a line, less ``log2(lines!)`` in all because their order does not matter.
    A recurrent state of n float32 numbers has 32 n bits, and models use a small part of these. So
    exact match by the number of lines (``linrnn eval RUN --lengths 5,10,20``) shows where a fixed
    state is full, while attention keeps all lines.

    Guessing the digits is right with probability ``1 / (4 * 10^(digits - 1))``; naming the number
    of any line of the book, once in ``lines``, or once in ``lines - shots`` without the lines of
    the shots.

    The paper reads its books to pretrained language models and shows curves without a table, so
    there are no numbers to compare with. Its names are real ones; here they are made of syllables,
    and a model is trained from nothing.

    Args:
        options: `PhonebookOptions`.

    Raises:
        ArgumentError: lines below ``shots + 1`` or above 3,600, negative shots, digits or a size
            below 1, a negative data_seed.

    Reference:
        Jelassi et al., "Repeat After Me: Transformers are Better than State Space Models at
        Copying", ICML 2024, arXiv:2402.01032, section on phone-book lookup.
    """

    Options: ClassVar[type] = PhonebookOptions
    summary: ClassVar[str] = "look up the number of a name in a phonebook; exact match"
    metric: ClassVar[str] = "exact match"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    length_option: ClassVar[str] = "lines"

    d_input = d_output = LAST + len(_LAST)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("Phonebook", options, "digits")
        if options.shots < 0:
            raise ArgumentError(f"Phonebook: shots must be at least 0, got {options.shots}.")
        most = len(_FIRST) * len(_LAST)
        if not options.shots < options.lines <= most:
            raise ArgumentError(
                f"Phonebook: lines must be from shots + 1 = {options.shots + 1} to {most}, the "
                f"number of names, got {options.lines}."
            )
        line = options.digits + 4  # two syllables, colon, digits, end of the line
        self.sequence_length = options.lines * line + options.shots * (line + 1) + line - 1
        self.chance = 0.25 * 0.1 ** (options.digits - 1)

    @property
    def bits(self) -> float:
        """Information in the numbers of a book, in bits; names add 11.8 bits a line at most."""
        lines, digits = int(self.options.lines), int(self.options.digits)
        return lines * (2 + (digits - 1) * log2(10))

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,), integers: see `Task.datasets`."""
        return splits(self.options, self._draw)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """1 where every digit of the last answer is right, else 0."""
        answer = slice(-self.options.digits, None)
        return (y[:, answer].argmax(-1) == target[:, answer]).all(1).float()

    def example(self) -> str:
        """A book of three lines, and a question; lines are parted by slashes."""
        task = Phonebook(PhonebookOptions(lines=3, shots=1, digits=self.options.digits))
        x, target = task.datasets().train[0]
        answer = target[-self.options.digits :].tolist()
        return f"input {spell_book(x.tolist())}\ntarget {spell_book(answer)}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        names = distinct(uniform, options.lines, len(_FIRST) * len(_LAST))  # (B, lines)
        u = uniform(options.lines * options.digits).reshape(*names.shape, -1)
        numbers = integers(u, 0, 10)  # (B, lines, digits)
        numbers[..., 0] = integers(u[..., 0], _LEAST_DIGIT, 10)
        queries = distinct(uniform, options.shots + 1, options.lines)  # (B, shots + 1)
        book = lines_of(names, numbers)  # (B, lines, digits + 4)
        questions = np.take_along_axis(book, queries[..., None], 1)
        mark = np.full((*queries.shape, 1), ASK)
        questions = np.concatenate([mark, questions], -1)  # (B, shots + 1, digits + 5)
        flat = [part.reshape(len(names), -1) for part in (book, questions)]
        tokens = np.concatenate(flat, 1)[:, :-1]  # without the end of the last line
        scored = np.zeros(questions.shape, bool)
        scored[:, -1, 4:-1] = True
        scored[:, :, 4:-1] |= options.train_shots
        in_book = np.zeros(flat[0].shape, bool)
        is_answer = np.concatenate([in_book, scored.reshape(flat[1].shape)], 1)
        target = np.where(is_answer[:, :-1], tokens, IGNORE)
        return to_tensors(tokens[:, :-1], target[:, 1:])


def lines_of(names: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Lines (..., digits + 4) of names (...) and digits (..., digits), as tokens."""
    first, last = np.divmod(names, len(_LAST))
    head = np.stack([FIRST + first, LAST + last, np.full_like(names, COLON)], -1)
    end = np.full((*names.shape, 1), END)
    return np.concatenate([head, numbers, end], -1)


def spell_book(ids: list[int]) -> str:
    """Tokens as text; the end of a line is a slash.

    Example:
        >>> spell_book([13, 73, 10, 7, 0, 11])
        'baban: 70 / '
    """
    symbols = [*map(str, range(10)), ": ", " / ", "? ", *_FIRST, *_LAST]
    return "".join(symbols[i] for i in ids)
