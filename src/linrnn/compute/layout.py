"""The shapes backends agree on: how sequences lie in a batch or in one packed row."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.arguments import check_rising

_HALF = (torch.float16, torch.bfloat16)


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a recurrence accumulates in: float32 for half precision, otherwise itself."""
    return torch.float32 if dtype in _HALF else dtype


def accumulator_of(*tensors: Tensor | None) -> torch.dtype:
    """The dtype for a computation on real tensors: float64 where one is of it, else float32."""
    exact = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if exact else torch.float32


def like(mask: Tensor, x: Tensor) -> Tensor:
    """``mask``, of the first axes of ``x``, with as many axes as it."""
    return mask.view(*mask.shape, *[1] * (x.ndim - mask.ndim))


def gathered(x: Tensor, place: Tensor) -> Tensor:
    """Steps of ``x`` (B, S, ...) by number, (B, T): (B, T, ...)."""
    return x.gather(1, like(place, x).expand(*place.shape, *x.shape[2:]))


def stacked(steps: list[Tensor], one: Tensor) -> Tensor:
    """The steps (B, ...) of a loop along time, (B, T, ...); no step at all, where each is as one.

    Example:
        >>> stacked([], torch.zeros(2, 3)).shape
        torch.Size([2, 0, 3])
    """
    return torch.stack(steps, 1) if steps else one[:, None][:, :0]


def n_sequences(x: Tensor, cu_seqlens: Tensor | None) -> int:
    """How many independent sequences ``x`` (B, T, ...) holds."""
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def spans(x: Tensor, cu_seqlens: Tensor | None, reverse: bool) -> Iterator[range]:
    """The steps of each scan in order of processing: one for a batch, one a packed sequence."""
    offsets = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    for start, end in itertools.pairwise(offsets):
        yield range(end - 1, start - 1, -1) if reverse else range(start, end)


def checked_offsets(where: str, cu_seqlens: Tensor | None, time: int) -> Tensor | None:
    """Offsets as a CPU kernel reads them.

    A compiled graph comes here without a look at the values; the kernel would read beyond.
    """
    if cu_seqlens is None:
        return None
    offsets = dense(cu_seqlens.to(torch.int64))
    check_rising(where, offsets, time)
    return offsets


def mirrored(
    x: Tensor, state: Tensor, reset: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The same read from the other end: ``reverse`` of what is written for one direction."""
    if cu_seqlens is not None:  # the last sequence comes first
        state, cu_seqlens = state.flip(0), x.shape[1] - cu_seqlens.long().flip(0)
    return x.flip(1), state, None if reset is None else reset.flip(1), cu_seqlens


def empty_results(x: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Uninitialised ``(h, final_state)`` of a scan over ``x`` (B, T, C)."""
    shape = (n_sequences(x, cu_seqlens), x.shape[-1])
    final = x.new_empty(shape, dtype=accumulator_dtype(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), final


class Ends(NamedTuple):
    """Where the sequences with at least one step begin and end in a (B, T, ...) tensor."""

    kept: Tensor  # which sequences have a step, indices into (S,)
    row: Tensor
    first: Tensor  # in order of processing
    last: Tensor


def ends(x: Tensor, cu_seqlens: Tensor | None, reverse: bool = False) -> Ends:
    """Locate the first and last step of every non-empty sequence."""
    if cu_seqlens is None:
        nonempty = row = torch.arange(x.shape[0], device=x.device)
        first, last = torch.zeros_like(row), torch.full_like(row, x.shape[1] - 1)
    else:
        offsets = cu_seqlens.to(x.device, torch.long)
        nonempty = (offsets.diff() > 0).nonzero().squeeze(1)
        row, first, last = torch.zeros_like(nonempty), offsets[nonempty], offsets[nonempty + 1] - 1
    return Ends(nonempty, row, last, first) if reverse else Ends(nonempty, row, first, last)


def shift_time(x: Tensor, by: int) -> Tensor:
    """Move ``x`` (B, T, ...) one step later (``by=1``) or earlier (``by=-1``), zeros moving in."""
    zero = torch.zeros_like(x[:, :1])
    return torch.cat([zero, x[:, :-1]] if by > 0 else [x[:, 1:], zero], 1)


def previous_state(
    h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
    empty: float = 0.0,
) -> Tensor:
    """The state each step of a scan started from, given all its states; ``empty`` after a reset."""
    if cu_seqlens is None and h.shape[1]:
        first = initial_state
        if first is None:
            first = h.new_full((h.shape[0], *h.shape[2:]), empty)  # (B, ...)
        first = first.to(h.dtype).unsqueeze(1)  # (B, 1, ...)
        previous = torch.cat([h[:, 1:], first] if reverse else [first, h[:, :-1]], 1)  # (B, T, ...)
    else:
        edge = ends(h, cu_seqlens, reverse)
        start = h.new_full((), empty) if initial_state is None else initial_state[edge.kept]
        places = (edge.row, edge.first)
        previous = shift_time(h, -1 if reverse else 1).index_put(places, start.to(h.dtype))
    return previous if reset is None else torch.where(reset[..., None], empty, previous)


def live_steps(
    x: Tensor, reset: Tensor | None, cu_seqlens: Tensor | None, edge: Ends
) -> Tensor | None:
    """(B, T) mask of steps that take over the state of the step before, or None for all."""
    if reset is None and cu_seqlens is None:
        return None
    live = x.new_ones(x.shape[:2], dtype=torch.bool) if reset is None else ~reset
    return live.index_put((edge.row, edge.first), live.new_zeros(()))


def aligned(x: Tensor) -> bool:
    """Whether the numbers of ``x`` lie where a kernel may read them: at multiples of their size.

    They do not where memory was cut at any byte, as `torch.frombuffer` and mapped files allow. The
    parts of a complex number count as two.
    """
    address = x.data_ptr()
    return address % 16 == 0 or address % (x.element_size() >> x.is_complex()) == 0


def unit_channels(x: Tensor) -> Tensor:
    """``x`` as a kernel reads it: any other strides, but channels side by side and aligned."""
    as_it_is = x.stride(-1) == 1 and not x.is_conj() and not x.is_neg()
    return x if as_it_is and (x.data_ptr() % 16 == 0 or aligned(x)) else dense(x)


def with_strides(x: Tensor | None) -> tuple[Tensor | None, int, int]:
    """``x`` (B, T, ...) with its strides of batch and time, as kernels on a GPU are handed it."""
    return (None, 0, 0) if x is None else (x, x.stride(0), x.stride(1))


def dense(x: Tensor) -> Tensor:
    """``x`` in contiguous, aligned memory, with lazy conjugation and negation carried out."""
    x = _moved(x) if x.data_ptr() % 16 and not aligned(x) else x
    return x.resolve_conj().resolve_neg().contiguous()


def all_unit_channels(tensors: Iterable[Tensor]) -> list[Tensor]:
    """`unit_channels` of each; most are read as they are, which is seen without a call for each."""
    readable: list[Tensor] = []
    for x in tensors:
        as_it_is = x.stride(-1) == 1 and not (x.data_ptr() % 16 or x.is_conj() or x.is_neg())
        readable.append(x if as_it_is else unit_channels(x))
    return readable


def all_dense(tensors: Iterable[Tensor]) -> list[Tensor]:
    """`dense` of each; most are so already, which is seen without a call for each."""
    readable: list[Tensor] = []
    for x in tensors:
        as_it_is = x.is_contiguous() and not (x.data_ptr() % 16 or x.is_conj() or x.is_neg())
        readable.append(x if as_it_is else dense(x))
    return readable


def _moved(x: Tensor) -> Tensor:
    """A copy in new memory; PyTorch's copy of complex numbers needs them aligned itself."""
    if not x.is_complex():
        return x.clone()
    lazy = x.is_conj()
    parts = torch.view_as_real(x.conj() if lazy else x).clone()
    return torch.view_as_complex(parts).conj() if lazy else torch.view_as_complex(parts)


def clear_first(x: Tensor, reset: Tensor | None, edge: Ends, empty: float = 0.0) -> Tensor:
    """Put ``empty`` into the rows of ``x``, one a sequence, whose first step resets."""
    return x if reset is None else torch.where(reset[edge.row, edge.first, None], empty, x)


def at_steps(a: Tensor, row: Tensor, step: Tensor) -> Tensor:
    """Decays, constant (C,) or varying (B, T, C), at some steps."""
    return a if a.ndim == 1 else a[row, step]
