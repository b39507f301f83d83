"""Values that a ``with`` block sets for the calls inside it, and only for these.

Every context of the package (`linrnn.ops.use_backend`, `use_form`, `sequence_parallel`,
`linrnn.mixers.added_losses`, ...) is one `Ambient`. Three rules hold for all of them: a block
counts for its own thread and its own task of asyncio; the innermost block counts; and a block that
has ended counts nowhere, in whatever order blocks end.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(eq=False)  # two blocks that set the same value are two blocks
class _Block(Generic[T]):
    value: T
    active: bool = True


#: Held while a block is counted: adding to a number is no single step of a thread.
_COUNTING = threading.Lock()
_steering: ContextVar[tuple[_Block[Any], ...]] = ContextVar("steering", default=())


def steered() -> bool:
    """Whether a block around this call says how it is to be computed, or watches its ops.

    What was recorded of calls without such a block does not stand in their place then.
    """
    blocks = _steering.get()
    return bool(blocks) and any([block.active for block in blocks])


class _OfThread(threading.local):
    """The blocks that a thread has entered and not left, outermost first."""

    def __init__(self) -> None:
        self.blocks: list[_Block[Any]] = []


class Ambient(Generic[T]):
    """A value for the calls inside a ``with`` block of this thread and task.

    A thread that is started inside a block begins outside it, as with every `ContextVar`; run it
    by ``contextvars.copy_context().run`` to take the block along. A task of asyncio begins inside.
    A compiler cannot read a `ContextVar`, so a graph follows the innermost block of its thread,
    and is compiled again when that changes.

    Args:
        name: for debuggers.
        steers: whether a value says how the calls inside are to be computed, or watches the ops
            that compute them: see `steered`.

    Example:
        >>> scale = Ambient("scale")
        >>> with scale.set(2.0):
        ...     scale.get()
        2.0
        >>> scale.get() is None
        True
    """

    def __init__(self, name: str, steers: Callable[[T], bool] | None = None) -> None:
        self._steers = steers
        self._of_context: ContextVar[tuple[_Block[T], ...]] = ContextVar(name, default=())
        self._of_thread = _OfThread()
        self._n_open = 0
        #: Whether any thread is inside a block: nearly every call finds none, by one look.
        self._in_use = False

    @contextmanager
    def set(self, value: T) -> Iterator[T]:
        """Inside, `get` returns ``value``."""
        block, open_blocks = _Block(value), self._of_thread.blocks
        self._count(1)
        self._of_context.set((*self._of_context.get(), block))
        open_blocks.append(block)
        if self._steers is not None and self._steers(value):
            _steering.set((*_steering.get(), block))
        try:
            yield value
        finally:
            # a token would put back what stood there when this block began, which may have ended
            block.active = False
            self._of_context.set(tuple(x for x in self._of_context.get() if x is not block))
            if self._steers is not None:
                _steering.set(tuple(x for x in _steering.get() if x is not block))
            open_blocks.remove(block)
            self._count(-1)

    def _count(self, change: int) -> None:
        """Note that a block was entered or left, in whatever thread."""
        with _COUNTING:
            self._n_open += change
            self._in_use = self._n_open > 0

    def get(self) -> T | None:
        """The value of the innermost block around this call, or None outside of all."""
        if not self._in_use:
            return None
        if torch.compiler.is_compiling():
            blocks: Sequence[_Block[T]] = self._of_thread.blocks
        else:
            blocks = self._of_context.get()
        if not blocks:
            return None
        active = [block for block in blocks if block.active]
        return active[-1].value if active else None
