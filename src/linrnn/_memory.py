"""How much memory there is, and building models that may not ask for more."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from linrnn.errors import ArgumentError, LinrnnError

_ITEM = 4  # bytes of a number, for a guess
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available() -> int:
    """Bytes that a process may hold: of the machine, or of the control group it runs in."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):  # not every system says
        found = [1 << 40]
    for name in _GROUPS:
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(found)


def check_memory(where: str, what: str, needed: int, fix: str) -> None:
    """Raise `ArgumentError` unless so many bytes fit into memory, before any is asked for.

    Args:
        where: the function or class that checks, for the message.
        what: what takes them.
        needed: bytes, a guess from below.
        fix: the usual remedy, one sentence.
    """
    most = available()
    if needed > most:
        raise ArgumentError(
            f"{where}: {what} must fit into {most:,} bytes of memory, got sizes that take at least "
            f"{needed:.3g}. {fix}"
        )


@contextmanager
def within(limit: int, error: type[LinrnnError], message: str) -> Iterator[None]:
    """Inside, tensors on the CPU may be made until they would take more than ``limit`` bytes.

    What they take is known before it is asked for. Of what is computed of other tensors each may
    take what is left, and is not counted further.

    Args:
        limit: bytes of all of them together.
        error: raised in place of what goes beyond, and of PyTorch's own about sizes and memory.
        message: its text.
    """
    try:
        with _Budget(limit):
            yield
    except LinrnnError:
        raise
    except (MemoryError, OverflowError, RuntimeError, TypeError) as reason:
        if not is_about_memory(reason):
            raise
        raise error(message) from reason


def is_about_memory(reason: BaseException) -> bool:
    """Whether an error says that there is too little memory, or none of such a size anywhere."""
    if isinstance(reason, (RuntimeError, TypeError)):  # a TypeError says that a size overflows
        text = str(reason).lower()
        return any(word in text for word in ("alloc", "overflow", "out of memory"))
    return isinstance(reason, (MemoryError, OverflowError))


class _Budget(TorchDispatchMode):
    """Sees every operator before it runs."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.left = limit

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing in here is compiled, and to keep it out PyTorch would import for 2 s."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_new(func):
            self._claim(func, args, kwargs)
        return func(*args, **kwargs)

    def _claim(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        sizes = _sizes(args, numbers=not tensors)
        largest = _ITEM * sizes * math.prod(max(1, x.numel()) for x in tensors)
        if largest > self.left and _bytes(func, args, kwargs) > self.left:
            raise MemoryError
        if not tensors:  # what is computed of other tensors is rarely kept
            self.left -= largest


def _is_new(func: Any) -> bool:
    """Whether the result of an operator is a tensor with memory of its own."""
    returns = func._schema.returns
    return any("Tensor" in str(r.type) for r in returns) and not any(r.alias_info for r in returns)


def _sizes(args: tuple[Any, ...], *, numbers: bool) -> int:
    """The product of the axes that are asked for, or else of the numbers, as of ``arange``."""
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    found = lists[0] if lists else args if numbers else ()
    sizes = [n for n in found if isinstance(n, (int, float)) and math.isfinite(n)]
    return math.prod(max(1, math.ceil(abs(n))) for n in sizes)


def _bytes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """What the results of an operator will take: PyTorch knows their shape without computing."""
    if any(a.name == "device" for a in func._schema.arguments):  # type: ignore[attr-defined]
        kwargs = kwargs | {"device": "meta"}
    try:
        made = func(*tree_map(_shape, args), **tree_map(_shape, kwargs))
    except (NotImplementedError, TypeError):  # of no shape known before
        return 0
    return sum(x.numel() * x.element_size() for x in tree_leaves(made) if isinstance(x, Tensor))


def _shape(x: Any) -> Any:
    """A tensor of the same shape that holds nothing, and anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
