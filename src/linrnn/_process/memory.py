"""How much memory there is, and building models that may not ask for more."""

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from linrnn._process.turns import drawing
from linrnn.errors import ArgumentError, LinrnnError

_LARGE = 1 << 12  # of a number, with which another may make a matrix that fills a machine
_SMALL = 1 << 26  # bytes that are not worth asking how many there are
_ITEM = 16  # bytes of a number, at most
Init = TypeVar("Init", bound=Callable[..., None])
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available() -> int:
    """Bytes that a process may hold: of the machine, or of the control group it runs in."""
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):  # not every system says
        limits = [1 << 40]
    for name in _GROUPS:
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits)


def bounded(what: str, fix: str) -> Callable[[Init], Init]:
    """Have a constructor refuse sizes that do not fit into memory before it allocates any.

    One with a large number among its arguments is called without memory first, on the device
    "meta", so that what does not fit as a whole is not drawn in part.

    Args:
        what: is made, for the message.
        fix: the usual remedy, one sentence.
    """

    def decorate(init: Init) -> Init:
        @functools.wraps(init)
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            device = torch.device(kwargs.get("device") or torch.get_default_device())
            # counted already, or nothing is allocated here
            if torch._C._len_torch_dispatch_stack() or device.type != "cpu":
                return init(self, *args, **kwargs)
            limit = available()
            rule = f"{type(self).__name__}: {what} must fit into {limit:,} bytes of memory"
            with within(limit, ArgumentError, f"{rule}, got sizes that do not. {fix}"):
                if any(isinstance(x, int) and x > _LARGE for x in tree_leaves((args, kwargs))):
                    _rehearse(init, self, args, kwargs, limit)
                return init(self, *args, **kwargs)

        return cast(Init, made)

    return decorate


def _rehearse(init: Any, self: Any, args: Any, kwargs: Mapping[str, Any], limit: int) -> None:
    """Raise MemoryError where a constructor makes tensors of more than ``limit`` bytes."""
    if "device" not in inspect.signature(init).parameters:
        return
    cls: Any = type(self)
    twin = cls.__new__(cls)
    with drawing(), warnings.catch_warnings(), _Budget(limit, everywhere=True):
        warnings.simplefilter("ignore")
        try:
            init(twin, *args, **{**kwargs, "device": "meta"})
        except Exception as error:  # any other is raised again by the constructor
            if is_about_memory(error):
                raise


def check_fits(where: str, what: str, size: int, fix: str) -> None:
    """Raise `ArgumentError` unless ``size`` bytes fit into memory.

    Args:
        where: who asks, for the message.
        what: takes them.
        size: bytes.
        fix: the usual remedy, one sentence.
    """
    if size > _SMALL and size > (limit := available()):
        raise ArgumentError(
            f"{where}: {what} must fit into {limit:,} bytes of memory, got {size:,}. {fix}"
        )


@contextmanager
def within(limit: int, error: type[LinrnnError], message: str) -> Iterator[None]:
    """Inside, tensors on the CPU may be made until they would take more than ``limit`` bytes.

    Their size is known before memory is allocated, and free once nobody holds them. Each tensor
    computed from others may take the memory that remains, and is not counted further.

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
    """Sees every operator before it runs.

    Args:
        limit: bytes that tensors may take.
        everywhere: on any device, not on the CPU alone.
    """

    def __init__(self, limit: int, *, everywhere: bool = False) -> None:
        super().__init__()
        self.left, self._everywhere = limit, everywhere
        self._allocations: list[tuple[StorageWeakRef, int]] = []

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
        if not _is_new(func):
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        device = torch.device(kwargs.get("device") or "cpu")
        if self._everywhere or (device.type == "cpu" and all(x.is_cpu for x in tensors)):
            self._check(func, args, kwargs, tensors)
        output = func(*args, **kwargs)
        if not tensors and isinstance(output, Tensor) and (output.is_cpu or self._everywhere):
            # what is computed of other tensors is rarely kept
            storage = output.untyped_storage()
            self._allocations.append((StorageWeakRef(storage), storage.nbytes()))
            self.left -= storage.nbytes()
        return output

    def _check(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> None:
        sizes = _sizes(args, numbers=not tensors)
        largest = _ITEM * sizes * math.prod(max(1, x.numel()) for x in tensors)
        if largest <= self.left:
            return
        alive = [(storage, size) for storage, size in self._allocations if not storage.expired()]
        self.left += sum(size for _, size in self._allocations) - sum(size for _, size in alive)
        self._allocations = alive
        if largest > self.left and _bytes(func, args, kwargs) > self.left:
            raise MemoryError


def _is_new(func: Any) -> bool:
    """Whether the result of an operator is a tensor with new memory."""
    returns = func._schema.returns
    return any("Tensor" in str(r.type) for r in returns) and not any(r.alias_info for r in returns)


def _sizes(args: tuple[Any, ...], *, numbers: bool) -> int:
    """The product of the sizes in the arguments, or else of the numbers, as of ``arange``."""
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    entries = lists[0] if lists else args if numbers else ()
    sizes = [n for n in entries if isinstance(n, (int, float)) and math.isfinite(n)]
    return math.prod(max(1, math.ceil(abs(n))) for n in sizes)


def _bytes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The bytes that an operator's results will take; PyTorch infers shapes without computing."""
    if any(a.name == "device" for a in func._schema.arguments):  # type: ignore[attr-defined]
        kwargs = kwargs | {"device": "meta"}
    try:
        outputs = func(*tree_map(_shape, args), **tree_map(_shape, kwargs))
    except (NotImplementedError, TypeError):  # of no shape known before
        return 0
    return sum(x.numel() * x.element_size() for x in tree_leaves(outputs) if isinstance(x, Tensor))


def _shape(x: Any) -> Any:
    """A tensor of the same shape that holds nothing, and anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
