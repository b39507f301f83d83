"""Calls of a kernel that come again: a decoder makes the same one at every step.

What is checked and chosen depends on shapes, strides, dtypes, devices and flags, and on no number.
So a call like one that a kernel has computed needs no more than the addresses of its tensors.
A call that was refused, or computed in another way, goes the whole way again.
"""

import functools
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from linrnn.compute import native

_DENSE = torch.contiguous_format  # left out, an axis of one number has no stride


def kinds(tensors: Iterable[Any], gradient: bool = True) -> list[Any] | None:
    """All of tensors but their numbers and where they lie; of None it is None.

    Args:
        tensors: of a call.
        gradient: whether one of them may need its gradient.

    Returns:
        None unless all are plain ones on a CPU, with strides.
    """
    shapes: list[Any] = []
    without = not gradient and torch.is_grad_enabled()
    try:
        for x in tensors:
            if x is None:
                shapes.append(None)
                continue
            if (type(x) is not Tensor and type(x) is not Parameter) or not x.is_cpu:
                return None
            if without and x.requires_grad:
                return None
            shapes.append((x.shape, x.stride(), x.dtype, x.is_conj(), x.is_neg()))
    except RuntimeError:  # without strides
        return None
    return shapes


def outline(x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """A tensor like ``x`` of one number, seen everywhere."""
    return x.new_empty(()).expand(x.shape if shape is None else shape)


def empty(like: Tensor) -> Tensor:
    """Memory for a result of which ``like`` is the `outline`."""
    return torch.empty_like(like, memory_format=_DENSE)


class Read(NamedTuple):
    """An address of a record that belongs to a tensor of the call, or to a part of one."""

    word: int
    tensor: int
    offset: int  # bytes
    beside: int  # bits of the address that must be 0


#: A `Read` of its fields in one call of C.
read_of: Callable[[tuple[int, ...]], Read] = functools.partial(tuple.__new__, Read)


class Replay:
    """A kernel's record, written but for addresses.

    Args:
        kernel: its name.
        record: of an example.
        reads: which addresses are those of tensors of the call.
        writes: which are those of results, and of which.
    """

    def __init__(
        self,
        kernel: str,
        record: bytes | Sequence[int],
        reads: Sequence[Read],
        writes: Sequence[tuple[int, int]],
    ) -> None:
        self.kernel, self.reads, self.writes = kernel, tuple(reads), tuple(writes)
        self._record = array("q", record)

    def readable(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the kernel can read all tensors where they lie."""
        return not any([tensors[x.tensor].data_ptr() & x.beside for x in self.reads])

    def run(
        self,
        tensors: Sequence[Tensor | None],
        results: Sequence[Tensor],
        marks: Mapping[int, Tensor] | None = None,
    ) -> bool:
        """Compute; False, and nothing is done, where a tensor lies where it cannot be read.

        Args:
            tensors: of the call; None where it has none, which the record does not read.
            results: memory for them.
            marks: more tensors, by the word that their address belongs to.
        """
        record, wrong = self._record[:], 0
        for word, tensor, offset, alignment_mask in self.reads:
            x: Any = tensors[tensor]
            record[word] = address = x.data_ptr() + offset
            wrong |= address & alignment_mask
        if marks:
            for word, x in marks.items():
                record[word] = address = x.data_ptr()
                wrong |= address & (x.element_size() - 1)
        if wrong:
            return False
        for word, i in self.writes:
            record[word] = results[i].data_ptr()
        native.run(self.kernel, record.tobytes())
        return True


class Replays(dict[Any, Any]):
    """A cache of replays by kind of call; None where a kind cannot be replayed."""

    MOST = 64

    def __init__(self) -> None:
        super().__init__()
        self.replaced = 0
        """The number of kinds that were forgotten for others."""

    def store(self, key: Any, replay: Any) -> None:
        """Remember a kind; it replaces the oldest if there are too many."""
        if len(self) >= self.MOST and key not in self:
            # the last ones may be called again at once; another thread may do this too
            self.replaced += 1
            self.pop(next(iter(list(self)), None), None)
        self[key] = replay
