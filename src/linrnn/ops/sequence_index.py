"""Sequences that share rows, numbered step by step: as resets or as offsets."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import check_tensor
from linrnn.errors import DTypeError, check_shape
from linrnn.typing import CuSeqlens, Integer, ResetMask


def seq_idx_to_reset(seq_idx: Integer[Tensor, "batch time"]) -> ResetMask:
    """Resets of every op for rows that hold several sequences.

    Args:
        seq_idx: the number of the sequence that each step belongs to, as Mamba's kernels and
            padding-free collators have it. A sequence begins wherever the number changes.

    Returns:
        Boolean (batch, time). The first step of a row has no reset: it goes on from the initial
        state, which is zeros where none is given.

    Raises:
        DTypeError, ShapeError: no integers, or another shape.

    Example:
        >>> import torch
        >>> seq_idx_to_reset(torch.tensor([[0, 0, 1, 1, 1, 2]]))
        tensor([[False, False,  True, False, False,  True]])
    """
    _check("seq_idx_to_reset", seq_idx)
    return F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0))[:, : seq_idx.shape[1]]  # (1, T)


def seq_idx_to_cu_seqlens(seq_idx: Integer[Tensor, "batch time"]) -> CuSeqlens:
    """Offsets of the sequences in the rows of a batch, one row after the other.

    For tensors (batch, time, ...) that are packed by ``x.flatten(0, 1)[None]``. Each sequence then
    has its own initial and final state, which resets do not give.

    Args:
        seq_idx: as of `seq_idx_to_reset`; no sequence reaches over the end of a row.

    Returns:
        int64 offsets on the device of ``seq_idx``; reading them from a GPU waits for it.

    Raises:
        DTypeError, ShapeError: as `seq_idx_to_reset`.

    Example:
        >>> import torch
        >>> seq_idx_to_cu_seqlens(torch.tensor([[0, 0, 1], [0, 0, 0]]))
        tensor([0, 2, 3, 6])
    """
    _check("seq_idx_to_cu_seqlens", seq_idx)
    starts = seq_idx_to_reset(seq_idx)
    starts[:, :1] = True
    # (sequences + 1,)
    return F.pad(starts.flatten().nonzero().flatten(), (0, 1), value=seq_idx.numel())


def _check(where: str, seq_idx: Tensor) -> None:
    check_tensor(where, "seq_idx", seq_idx)
    if seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool:
        raise DTypeError(
            f"{where}: seq_idx must be integers, got {seq_idx.dtype}. Use seq_idx.long()."
        )
    check_shape(where, "seq_idx", seq_idx.shape, {"batch": None, "time": None})
