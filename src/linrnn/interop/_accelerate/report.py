"""The report of replaced functions, and how to restore them."""

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple


class Replaced(NamedTuple):
    """A function that a module calls, and what computes it now."""

    module: str
    function: str
    op: str


class Left(NamedTuple):
    """A function that stays, and why."""

    module: str
    function: str
    why: str


class Acceleration:
    """The changes by `linrnn.interop.accelerate`, until `detach`.

    Attributes:
        replaced: module, function and our op, of all that was replaced.
        left: module, function and reason, of what stays although its name is one of ours.
    """

    def __init__(
        self, replaced: list[Replaced], left: list[Left], undo: Callable[[], None]
    ) -> None:
        self.replaced = tuple(replaced)
        self.left = tuple(left)
        self._undo: Callable[[], None] | None = undo

    @property
    def attached(self) -> bool:
        """Whether `detach` was not called yet."""
        return self._undo is not None

    def detach(self) -> None:
        """Put back all that was replaced; a second call does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> "Acceleration":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def __reduce__(self) -> str:
        raise TypeError(
            "Acceleration: it must stay in its process, for it can undo there alone. "
            "Pickle the model, and call accelerate(model) where it arrives."
        )

    def __str__(self) -> str:
        rows = Counter((row.function, row.op) for row in self.replaced)
        lines = [f"{function}: {op}, {n} times" for (function, op), n in sorted(rows.items())]
        lines += sorted({f"{row.function}: left, {row.why}" for row in self.left})
        return "\n".join(lines) or "nothing to replace"

    def __repr__(self) -> str:
        state = "attached" if self.attached else "detached"
        return f"<Acceleration: {len(self.replaced)} functions, {state}>"
