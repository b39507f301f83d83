"""Whether the recurrences of this thread run over pieces of a sequence, one a process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from linrnn._process.ambient import Ambient
from linrnn.errors import BackendError

#: The process group, in a tuple: None is the default one.
_GROUP: Ambient[tuple[Any]] = Ambient("sequence_parallel", lambda group: True)

#: Sequence-parallel implementations by the op's name; the module of each one enters it.
IN_PIECES: dict[str, Callable[..., Any]] = {}


@contextmanager
def sequence_parallel(group: Any = None) -> Iterator[None]:
    """Inside, every process of a group holds a piece of each sequence, one after the other in time.

    `linear_scan` is `distributed_linear_scan` then: states cross the cuts, forward and backward,
    and the state that a layer returns is the one after the whole sequence, on every process. Call
    ``backward`` inside or outside. Each process gets its share of the gradient of parameters: add
    them up (``all_reduce``). Pieces may differ in length.

    Layers that mix along time by anything else raise: what is split is `linrnn.mixers.LRU`, `S5`
    and others whose ``sequence_parallel`` names the form, alone or in a `linrnn.SequenceModel`
    with ``pool="none"``, a norm of each step and no convolution.

    Args:
        group: of `torch.distributed`, of any backend; None is the default one.

    Raises:
        BackendError: a layer, form or op inside whose sequences cannot be split.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from linrnn.mixers import LRU
        >>> from linrnn.ops import sequence_parallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> with sequence_parallel():
        ...     y, state = LRU(4)(torch.randn(2, 100, 4))
        >>> y.shape
        torch.Size([2, 100, 4])
        >>> dist.destroy_process_group()

    Reference:
        The recurrence over the pieces: Blelloch 1990; Martin and Cundy 2018, arXiv:1709.04057.
    """
    with _GROUP.set((group,)):
        yield


def current() -> tuple[Any] | None:
    """The group of the innermost `sequence_parallel` around this call, in a tuple, or None."""
    return _GROUP.get()


def refuse(where: str, what: str, fix: str) -> None:
    """Raise inside of `sequence_parallel`, where ``what`` cannot be done with pieces."""
    if current() is not None:
        raise BackendError(
            f"{where}: inside sequence_parallel {what}, for a process holds a piece of the "
            f"sequence alone. {fix}"
        )
