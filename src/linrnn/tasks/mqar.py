"""Multi-query associative recall."""

from dataclasses import dataclass
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
    spell,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform


@dataclass(frozen=True, kw_only=True)
class MQAROptions(GeneratedOptions):
    """Options of the task `mqar`."""

    length: int = 64
    """Steps of a sequence."""
    n_pairs: int = 4
    """Pairs of a key and a value; each key is queried once."""
    vocabulary: int = 8192
    """Symbols: 0 is a blank, the rest of the first half are keys, the second half values."""
    power: float = 0.01
    """Likely gaps before a question: the k-th has the weight k ** (power - 1).
    Small numbers ask soon, 1 asks anywhere."""
    random_fill: bool = False
    """Fill the blanks with random symbols."""
    train_size: int = 100_000
    """Training sequences; an epoch is one pass through them."""
    test_size: int = 3_000
    """Test sequences."""


class MQAR(Task):
    """Say for several keys, at places spread over the sequence, which value came with each.

    First come pairs of different keys and different values. Then every key comes again, at an
    even distance from the end of the pairs, among blanks; at that step its value is the target.
    Guessing among the values has 2 / vocabulary right, guessing among those of the sequence
    1 / n_pairs.

    Defaults are the first of the four settings of Figure 2 in the paper; the others have
    (length, n_pairs) = (128, 8), (256, 16) and (512, 64). The library it comes with fills the
    blanks by default, the figure did not.

    Args:
        options: `MQAROptions`.

    Raises:
        ArgumentError: an odd length, one below 4 n_pairs, a vocabulary that is odd or has too few
            keys, a power outside (0, 1], a size below 1, a negative data_seed.

    Reference:
        Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models",
        ICLR 2024, arXiv:2312.04927.
    """

    Options: ClassVar[type] = MQAROptions
    summary: ClassVar[str] = "recall the values of many keys, asked at many places"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("MQAR", options, "n_pairs")
        if options.length % 2 or options.length < 4 * options.n_pairs:
            raise ArgumentError(
                f"MQAR: length must be even and at least 4 * n_pairs = {4 * options.n_pairs}, "
                f"got {options.length}."
            )
        if options.vocabulary % 2 or options.vocabulary < 2 * options.n_pairs + 2:
            raise ArgumentError(
                "MQAR: vocabulary must be even and at least 2 * n_pairs + 2 = "
                f"{2 * options.n_pairs + 2}, got {options.vocabulary}."
            )
        if not 0 < options.power <= 1:
            raise ArgumentError(f"MQAR: power must be in (0, 1], got {options.power}.")
        self.sequence_length = options.length
        self.d_input = self.d_output = options.vocabulary
        self.chance = 2 / options.vocabulary

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Blanks are dots, steps that are not scored dashes."""
        x, target = self.datasets().train[0]
        symbols = {0: "·", IGNORE: "-"}
        lines = (spell(v.tolist(), lambda i: symbols.get(i, str(i))) for v in (x, target))
        return "input {}\ntarget {}".format(*lines)

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        half = options.vocabulary // 2
        keys = 1 + distinct(uniform, options.n_pairs, half - 1)
        values = half + distinct(uniform, options.n_pairs, half)
        x, target = assemble(keys, values, self._gaps(uniform), options.length)
        if options.random_fill:
            fill = integers(uniform(options.length), 0, options.vocabulary)
            x = np.where(x == 0, fill, x)
        return to_tensors(x, target)

    def _gaps(self, uniform: Uniform) -> np.ndarray:
        """(B, n_pairs) of the gaps, drawn one after the other without replacement."""
        n_gaps = self.options.length // 2 - self.options.n_pairs
        weights = np.arange(1, n_gaps + 1) ** (self.options.power - 1.0)
        # the order in which exponential clocks of these rates ring has the required law
        rings = -np.log1p(-uniform(n_gaps)) / weights
        order: np.ndarray = rings.argsort(1, kind="stable")
        return order[:, : self.options.n_pairs]


def assemble(
    keys: np.ndarray, values: np.ndarray, gaps: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Input and target (examples, length) from keys, values and gaps (examples, n_pairs)."""
    examples, n_pairs = keys.shape
    x = np.zeros((examples, length), np.int64)
    x[:, 0 : 2 * n_pairs : 2], x[:, 1 : 2 * n_pairs : 2] = keys, values
    target = np.full_like(x, IGNORE)
    places = 2 * n_pairs + 2 * gaps
    np.put_along_axis(x, places, keys, 1)
    np.put_along_axis(target, places, values, 1)
    return x, target
