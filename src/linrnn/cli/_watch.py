"""What ``linrnn stream`` says to lines: how much they surprise, or what follows from them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, DataError, LinrnnError
from linrnn.generation import TokenStream, check_tokenizer
from linrnn.streaming import Session, vocabulary
from linrnn.tasks import Task

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
    """

    def __init__(
        self, model: SequenceModel, tokenizer: Any, flag: Threshold, only_flagged: bool
    ) -> None:
        self.stream = TokenStream(model)
        check_tokenizer(self.stream, tokenizer)
        self._tokenizer, self._flag, self._only_flagged = tokenizer, flag, only_flagged

    def parse(self, line: bytes, number: int) -> Any:
        """Token ids."""
        return self._tokenizer.encode(line, where=f"line {number}")

    def answer(self, lines: list[bytes], parsed: list[Any]) -> Iterator[bytes]:
        """All tokens in one parallel pass."""
        ends = np.cumsum([len(ids) for ids in parsed])
        bits = self.stream.surprise(torch.from_numpy(np.concatenate(parsed).astype(np.int64)))
        total = np.concatenate([[0.0], bits.double().cumsum(0).numpy()])[np.append(0, ends)]
        for line, of_line in zip(lines, np.diff(total), strict=True):
            per_byte = float(of_line) / len(line)
            flagged = self._flag(per_byte)
            if flagged or not self._only_flagged:
                ending = b"" if line.endswith(b"\n") else b"\n"
                head = f"{'!' if flagged else ' '} {of_line:9.1f} {per_byte:6.2f}  "
                yield head.encode() + line + ending


class Answers:
    """Any other model: what it says after each line of numbers, or of token ids.

    Args:
        model, task: of a run.
    """

    def __init__(self, model: SequenceModel, task: Task) -> None:
        self.stream = Session(model)
        self._model, self._task = model, task
        self._of_kind: Callable[[bytes], float] = int if vocabulary(model) else float

    def parse(self, line: bytes, number: int) -> Tensor | None:
        """One or more steps; a blank line is passed over."""
        words = line.replace(b",", b" ").split()
        width = 1 if vocabulary(self._model) else self._model.d_input
        try:
            values = [self._of_kind(word) for word in words]
        except ValueError as error:
            raise DataError(
                f"line {number}: the input must be {_numbers(self._of_kind)}, got {error}."
            ) from error
        if not all(map(math.isfinite, values)):
            raise DataError(f"line {number}: the numbers must be finite, got {line!r:.60}.")
        if len(values) % width:
            raise DataError(
                f"line {number}: there must be {width} numbers a step, or a multiple of that, "
                f"got {len(values)}."
            )
        size = vocabulary(self._model)
        if size and any(not 0 <= v < size for v in values):
            raise DataError(f"line {number}: token ids must be in 0..{size - 1}, got {line!r:.60}.")
        if not values:
            return None
        return torch.tensor(values) if size else torch.tensor(values).view(-1, width)

    def answer(self, lines: list[bytes], parsed: list[Any]) -> Iterator[bytes]:
        """A model with an output for each step reads all lines at once, another one by one."""
        if self._model.pool.kind == "none":
            ends = torch.tensor([len(x) for x in parsed]).cumsum(0) - 1
            ys = self.stream.feed(torch.cat(parsed))[ends.to(self._model.head.weight.device)]
        else:
            ys = torch.stack([self.stream.feed(x) for x in parsed])
        for y in ys:
            yield self._word(y).encode() + b"\n"

    def _word(self, y: Tensor) -> str:
        names = self._task.class_names
        if names:
            share = y.float().softmax(-1)
            best = int(share.argmax())
            return f"{names[best]}\t{float(share[best]):.4f}"
        values = y if self._task.kind != "regression" else self._task.numbers(y[None])[0]
        return "\t".join(f"{v:.6g}" for v in values.flatten().tolist())


def watch(
    watcher: Surprise | Answers, lines: list[bytes], first: int, skip: Callable[[str], None] | None
) -> Iterator[bytes]:
    """Answers for a block of lines; those before a line that cannot be read come in any case.

    Args:
        watcher: reads them.
        lines: each with its newline.
        first: number of the first.
        skip: told of a line that cannot be read, which is then passed over; None raises.

    Raises:
        LinrnnError: a line cannot be read.
    """
    good, parsed = [], []
    failure: LinrnnError | None = None
    for number, line in enumerate(lines, first):
        try:
            x = watcher.parse(line, number)
        except LinrnnError as error:
            if skip is None:
                failure = error
                break
            skip(str(error))
            continue
        if x is not None:
            good.append(line)
            parsed.append(x)
    if good:
        yield from watcher.answer(good, parsed)
    if failure is not None:
        raise failure


def _numbers(kind: Callable[[bytes], float]) -> str:
    return "token ids" if kind is int else "numbers"
