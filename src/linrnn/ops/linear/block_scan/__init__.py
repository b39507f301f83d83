"""`block_scan`: check the arguments, pick a backend, compute, differentiate."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
    check_tensor,
)
from linrnn.compute.layout import accumulator_dtype, like
from linrnn.compute.modes import eager
from linrnn.errors import ArgumentError, DTypeError, ShapeError, check_shape
from linrnn.ops.linear.block_scan.op import blocks
from linrnn.ops.linear.block_scan.transition import Matrices, transition
from linrnn.typing import CuSeqlens, Inexact, ResetMask


def block_scan(
    A: Inexact[Tensor, "..."],
    b: Inexact[Tensor, "batch time *blocks"],
    initial_state: Inexact[Tensor, "seqs *blocks"] | None = None,
    *,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Inexact[Tensor, "batch time *blocks"], Inexact[Tensor, "seqs *blocks"]]:
    r"""Solve the linear recurrence along time whose transition is made of small blocks.

    Equation::

        h_t = A_t h_{t-1} + b_t          t = 0 .. T-1,  h_{-1} = initial_state (0 if None)

    for every block of n numbers, over any axes of blocks. A block of ``A`` is a matrix; or it has
    a single number in each column, in the row that ``rows`` names; or in each row, in the column
    that ``columns`` names::

        h_t[rows_t[j]] += A_t[j] h_{t-1}[j]      or      h_t[i] = A_t[i] h_{t-1}[columns_t[i]]

    Args:
        A: matrices (batch, time, *blocks, n, n), where axes of size 1 broadcast, or constant in
            time (*blocks, n, n). With ``rows`` or ``columns`` one number for each of the state's,
            (batch, time, *blocks, n) or (*blocks, n).
        b: input of shape (batch, time, *blocks, n); there may be no axis of blocks. float16,
            bfloat16, float32, float64, complex64 or complex128; ``A`` and ``b`` are promoted to a
            common dtype.
        initial_state: state before the first step, (batch, *blocks, n); one row for each packed
            sequence when ``cu_seqlens`` is given.
        rows: for each column of a block the row of its number, integers of the shapes of ``A``.
        columns: for each row of a block the column of its number, instead of ``rows``.
        reset: boolean (batch, time); True clears the state before that step, so ``h_t = b_t``.
        cu_seqlens: offsets ``[0, n_0, n_0 + n_1, ..., time]`` of sequences packed one after the
            other into a single row (batch must be 1); each starts from its own initial state.
        reverse: run from the last step to the first; the initial state enters at the last step
            and the final state is ``h_0``.
        backend: ``reference``, ``tree``, ``cpu``, ``triton``; None takes what `use_backend` or
            ``LINRNN_BACKEND`` asks for, else the fastest that supports the call.

    Returns:
        ``(h, final_state)``: every state, in the dtype and shape of ``b``; and the last one,
        (batch, *blocks, n), or (sequences, *blocks, n) when packed. float16 and bfloat16 inputs
        are accumulated, and the final state returned, in float32. Gradients flow to ``A``, ``b``
        and ``initial_state`` from both results, to any order.

    Raises:
        ShapeError: shapes that do not fit together.
        DTypeError: integers, booleans, or a complex state for a real recurrence.
        DeviceError: tensors on different devices.
        ArgumentError: ``cu_seqlens`` that do not rise from 0 to ``time``, an index outside of its
            block, or both ``rows`` and ``columns``.
        BackendError: the requested backend cannot compute this call.

    Example:
        >>> import torch
        >>> from linrnn.ops import block_scan
        >>> quarter_turn, start = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.eye(2)[:1]
        >>> h, final = block_scan(quarter_turn, torch.zeros(1, 3, 2), start)
        >>> h[0]
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.]])

    Reference:
        The parallel form: G. E. Blelloch, "Prefix sums and their applications", 1990. Products of
        blocks with one number a column: Terzić et al. 2025, arXiv:2509.22284.
    """
    where = "block_scan"
    check_flags(where, reverse=reverse)
    if rows is not None and columns is not None:
        raise ArgumentError(
            f"{where}: rows and columns must not both be given, got both. Leave one of them away."
        )
    index = columns if rows is None else rows
    A, b, initial_state = _checked(where, A, b, initial_state, index, reset, cu_seqlens)
    if b.shape[1] == 1 and cu_seqlens is None and initial_state is not None and backend is None:
        return _one_step(A, b, initial_state, index, columns is not None, reset)
    shape = b.shape
    A, b, initial_state, index = _one_axis(A, b, initial_state, index)
    gather = columns is not None
    h, final = blocks(
        A, b, initial_state, index, reset, cu_seqlens, gather, reverse, backend=backend
    )
    return h.reshape(shape), final.reshape(final.shape[0], *shape[2:])  # (B, T, ...), (B, ...)


def _one_step(
    A: Tensor,
    b: Tensor,
    initial_state: Tensor,
    index: Tensor | None,
    gather: bool,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """A single step needs no kernel: streaming one step at a time costs less without."""
    if reset is not None:
        initial_state = torch.where(like(reset[:, 0], initial_state), 0, initial_state)
    if index is not None:
        A, index = A.expand(b.shape)[:, 0], index.expand(b.shape)[:, 0]  # (B, *blocks, n)
        carried = transition(A, index, gather).times(initial_state)
    else:
        carried = _product(A[:, 0] if A.ndim > b.ndim else A, initial_state)
    state = b[:, 0].to(initial_state.dtype) + carried
    return state.unsqueeze(1).to(b.dtype, copy=True), state  # (B, 1, *blocks, n), (B, *blocks, n)


def _product(A: Tensor, h: Tensor) -> Tensor:
    """Matrices (..., n, n) times states (..., n)."""
    A = A.to(h.dtype)
    if A.ndim == 2:
        return h @ A.mT  # (..., n)
    # (..., n)
    return (A @ h.unsqueeze(-1)).squeeze(-1) if h.shape[-1] > 4 else Matrices(A).times(h)


def _one_axis(
    A: Tensor, b: Tensor, initial_state: Tensor | None, index: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Checked arguments with one axis of blocks, which is what the kernels know."""
    batch, time, *axes, side = b.shape
    count = prod(axes)
    b = b.reshape(batch, time, count, side)  # (B, T, C, n)
    if index is not None:
        # (B, T, blocks, n) each
        A, index = (x.expand(batch, time, *axes, side).reshape(b.shape) for x in (A, index))
    elif A.ndim == len(axes) + 2:
        A = A.reshape(count, side, side)  # (C, n, n)
    else:
        # (B, T, blocks, n, n)
        A = A.expand(batch, time, *axes, side, side).reshape(batch, time, count, side, side)
    if initial_state is not None:
        initial_state = initial_state.reshape(initial_state.shape[0], count, side)  # (S, C, n)
    return A, b, initial_state, index


def _checked(
    where: str,
    A: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    index: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check every argument against ``b``; promote ``A``, ``b`` and the state to one dtype."""
    check_numbers(where, {"A": A, "b": b}, initial_state=initial_state)
    if b.ndim < 3:
        raise ShapeError(
            f"{where}: b must have shape (batch, time, *blocks, n), got {tuple(b.shape)}. "
            "Add the batch axis with b[None]."
        )
    batch, time, *axes = b.shape
    _check_index(where, index, b)
    more = () if index is not None else (b.shape[-1],)
    _check_fits(where, "A", A, b, more)
    seqs = check_packed(where, "b", b, cu_seqlens)
    if initial_state is not None:
        expected = {"sequences" if cu_seqlens is not None else "batch": seqs}
        expected |= {f"blocks{i}": n for i, n in enumerate(axes[:-1])} | {"n": axes[-1]}
        check_shape(where, "initial_state", initial_state.shape, expected)
    check_reset(where, reset, batch, time)
    named: Any = {"A": A, "initial_state": initial_state, "reset": reset, "index": index}
    check_device(where, "b", b.device, **named)
    dtype = torch.promote_types(A.dtype, b.dtype)
    if initial_state is not None:
        if initial_state.is_complex() and not dtype.is_complex:
            raise DTypeError(
                f"{where}: initial_state must be real like A and b, got {initial_state.dtype}. "
                "Make b complex, or pass initial_state.real."
            )
        initial_state = initial_state.to(accumulator_dtype(dtype))
    return A.to(dtype), b.to(dtype), initial_state


def _check_fits(where: str, name: str, x: Tensor, b: Tensor, more: tuple[int, ...]) -> None:
    constant, varying = (*b.shape[2:], *more), (*b.shape, *more)
    # by the number of axes first: a graph of any size compares no more than it has to
    if x.ndim == len(constant):
        fits = x.shape == constant
    else:
        fits = x.ndim == len(varying) and all(
            m in (1, n) for m, n in zip(x.shape, varying, strict=True)
        )
    if not fits:
        raise ShapeError(
            f"{where}: {name} must have shape {varying}, or, constant in time, {constant}, "
            f"got {tuple(x.shape)}."
        )


def _check_index(where: str, index: Tensor | None, b: Tensor) -> None:
    if index is None:
        return
    check_tensor(where, "the index", index)
    if index.dtype != torch.int64:
        raise DTypeError(
            f"{where}: rows and columns must be torch.int64, got {index.dtype}. "
            "Convert them with .long()."
        )
    _check_fits(where, "an index", index, b, ())
    # reading the values of a GPU tensor would wait for the GPU; in graphs and maps there are none
    if index.device.type == "cpu" and index.numel() and eager(index):
        low, high = (int(x) for x in index.aminmax())
        if low < 0 or high >= b.shape[-1]:
            raise ArgumentError(
                f"{where}: rows and columns must be from 0 to {b.shape[-1] - 1}, the places of a "
                f"block, got {low if low < 0 else high}."
            )
