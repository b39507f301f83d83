"""ListOps of Long Range Arena: nested operations on digits, written out as a sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.drawing import check_options
from linrnn.tasks._kinds.expressions import SYMBOLS, Grammar, roots, spell
from linrnn.tasks._kinds.generated import SPLITS, BatchDataset
from linrnn.tasks._kinds.long_range import long_range

_LRA = "Tay et al. 2021, arXiv:2011.04006, Table 1, as its public code"
_LRU = "Orvieto et al. 2023, arXiv:2303.06349, Table {}"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396"
_S4D = "public code of Gu et al. 2022, arXiv:2206.11893"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"


@dataclass(frozen=True, kw_only=True)
class ListOpsOptions:
    """Options of the task `listops`."""

    min_length: int = 500
    """An expression has more symbols than this."""
    max_length: int = 2000
    """An expression has fewer symbols than this; rows are padded to it."""
    max_depth: int = 10
    """Nodes from the root to the deepest digit, at most."""
    max_args: int = 10
    """Most arguments of an operator; the fewest are 2."""
    train_size: int = 96_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 2_000
    """Validation sequences."""
    test_size: int = 2_000
    """Test sequences."""
    data_seed: int = 0
    """Seed of the sequences; the seed of a run does not change them."""


class ListOps(Task):
    """Evaluate nested expressions such as ``[MAX 4 3 [MIN 2 3 ] 1 0 ]`` to one digit.

    Operators are MIN, MAX, MED (the median, rounded down) and SM (the sum modulo 10), of 2 to 10
    arguments. A node above the greatest depth is an operator with probability 1/4, else a digit;
    expressions of more than 500 and fewer than 2,000 symbols are kept, about one in twelve.
    Always answering 0 is right for 17 %.

    Grammar, lengths, sizes and the 18 symbols (15 occur, and one ends each sequence) are those of
    Long Range Arena's public code, written anew: the expressions are others than in its files. A
    batch carries the lengths, so padding is not read. Nothing removes what is drawn twice; below
    some 20 symbols that happens.

    Args:
        options: `ListOpsOptions`.

    Raises:
        ArgumentError: a size below 1, max_args below 2, a max_length below min_length + 2, a
            negative min_length or data_seed.
    """

    Options: ClassVar[type] = ListOpsOptions
    summary: ClassVar[str] = "nested list operations of up to 2,000 symbols, 10 classes"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Transformer", value=0.3637, source=_LRA),
        Published(model="Reformer", value=0.3727, source=_LRA),
        Published(model="Linear Transformer", value=0.1613, source=_LRA),
        Published(model="deep RNN, dense, ReLU", value=0.376, source=_LRU.format(1)),
        Published(model="deep RNN, dense, tanh", value=0.439, source=_LRU.format(1)),
        Published(model="deep RNN, dense, linear", value=0.504, source=_LRU.format(1)),
        Published(model="LRU", value=0.602, source=_LRU.format(8)),
        Published(model="S4, first release", value=0.5835, source=_S4),
        Published(model="S4-LegS, updated", value=0.5960, source=_S4),
        Published(model="S4D-LegS", value=0.6047, source=_S4D),
        Published(model="S4D-Lin", value=0.6052, source=_S4D),
        Published(model="S5", value=0.6215, source=_S5),
        *long_range(dss=0.582, liquid_s4=0.6275, sgconv=0.6145, mega=0.6314),
    )

    chance = 0.173
    d_input = len(SYMBOLS)
    d_output = 10
    class_names = tuple("0123456789")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("ListOps", options, "max_length", "max_depth", "max_args")
        rules = (
            ("min_length", "at least 0", options.min_length >= 0),
            ("max_args", "at least 2", options.max_args >= 2),
            ("max_length", "at least min_length + 2", options.max_length >= options.min_length + 2),
        )
        for name, rule, fits in rules:
            if not fits:
                raise ArgumentError(
                    f"ListOps: {name} must be {rule}, got {getattr(options, name)}."
                )
        self.sequence_length = options.max_length

    def datasets(self) -> Splits:
        """Splits of x (time,), target () and length (): see `Task.datasets`."""
        options = self.options
        sizes = (options.train_size, options.validation_size, options.test_size)
        return Splits(
            *(_Expressions(options, size, name) for size, name in zip(sizes, SPLITS, strict=True))
        )

    def at_length(self, length: int) -> "ListOps":
        """Expressions of up to ``length`` symbols; the shortest are shorter in proportion."""
        options = self.options
        shortest = options.min_length * length // options.max_length
        return ListOps(replace(options, min_length=shortest, max_length=length))

    def example(self) -> str:
        """A short expression."""
        options = replace(self.options, min_length=20, max_length=40)
        x, target, length = ListOps(options).datasets().train[0]
        words = " ".join(SYMBOLS[i] for i in x[: length - 1])
        return f"shortened to fewer than 40 symbols\ninput {words}\ntarget {target.item()}"


class _Expressions(BatchDataset):
    """One split; see `linrnn.tasks._kinds.generated.Generated` on what an example depends on."""

    def __init__(self, options: ListOpsOptions, size: int, split: str) -> None:
        self.size = size
        self.key = options.data_seed * len(SPLITS) + SPLITS[split]
        self.grammar = Grammar(
            options.max_depth, options.max_args, options.min_length, options.max_length
        )

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Symbols, value and length, which counts the symbol at the end."""
        x, value, length = spell(roots(self.key, indices, self.grammar), self.grammar)
        return torch.from_numpy(x), torch.from_numpy(value), torch.from_numpy(length + 1)


def evaluate(expression: str) -> int:
    """The value of an expression with blanks between its symbols; parentheses are ignored.

    Raises:
        DataError: the expression is not complete, or has a symbol that does not exist.

    Example:
        >>> evaluate("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]")
        5
    """
    open_lists: list[tuple[str, list[int]]] = [("", [])]
    for symbol in expression.replace("(", " ").replace(")", " ").split():
        if symbol in _OPERATIONS:
            open_lists.append((symbol, []))
        elif symbol.isdecimal() and symbol.isascii() and len(symbol) == 1:
            open_lists[-1][1].append(int(symbol))
        elif symbol == "]" and len(open_lists) > 1 and open_lists[-1][1]:
            name, arguments = open_lists.pop()
            open_lists[-1][1].append(_OPERATIONS[name](arguments))
        else:
            raise DataError(f"evaluate: the expression must be complete, got {symbol!r} too early.")
    values = open_lists[0][1]
    if len(open_lists) > 1 or len(values) != 1:
        raise DataError(f"evaluate: the expression must be complete, got {expression[-40:]!r}.")
    return values[0]


def _median(values: list[int]) -> int:
    ordered = sorted(values)
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) // 2


_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}
