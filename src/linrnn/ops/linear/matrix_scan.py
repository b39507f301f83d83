"""Linear recurrences whose constant transition is a matrix: ``h_t = A h_{t-1} + b_t``.

Cases of `linrnn.ops.block_scan` in the shapes that layers hold them in, without its checks.
"""

import torch
from torch import Tensor

from linrnn.ops.linear.block_scan.op import blocks


def block_scan(
    re: Tensor, im: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A complex diagonal in real arithmetic: a block ``[[re, -im], [im, re]]`` for every mode.

    Args:
        re, im: real and imaginary part of the diagonal, (channels,) each.
        b: inputs (batch, time, channels, 2); the last axis holds real and imaginary part.
        initial: state before the first step, (batch, channels, 2).
        reset: boolean (batch, time); True clears the state before that step.

    Returns:
        ``(h, final)``: all states (batch, time, channels, 2), and the last.

    Example:
        >>> zero, one, start = torch.zeros(1), torch.ones(1), torch.tensor([[[1.0, 0.0]]])
        >>> quarter_turns, _ = block_scan(zero, one, torch.zeros(1, 3, 1, 2), start, None)
        >>> quarter_turns.flatten(0, 2)
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.]])
    """
    A = torch.stack([re, -im, im, re], -1).unflatten(-1, (2, 2))  # (..., C, 2, 2)
    return many_dense_scan(A, b, initial, reset)


def dense_scan(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The recurrence with any square matrix.

    Args:
        A: the transition (d_state, d_state).
        b: inputs (batch, time, d_state).
        initial: state before the first step, (batch, d_state).
        reset: boolean (batch, time); True clears the state before that step.

    Returns:
        ``(h, final)``: all states (batch, time, d_state), and the last.

    Example:
        >>> quarter_turn, start = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.eye(2)[:1]
        >>> dense_scan(quarter_turn, torch.zeros(1, 3, 2), start, None)[0][0]
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.]])
    """
    return _one_matrix(A, b, initial, reset)


def dense_loop(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`dense_scan` step by step: the definition."""
    return _one_matrix(A, b, initial, reset, "reference")


def many_dense_scan(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`dense_scan` of many systems, each with its own matrix.

    Args:
        A: the transitions (channels, d_state, d_state), of any precision.
        b: inputs (batch, time, channels, d_state).
        initial: state before the first step, (batch, channels, d_state).
        reset: boolean (batch, time); True clears the state before that step.

    Returns:
        ``(h, final)``: all states (batch, time, channels, d_state), and the last.

    Example:
        >>> A, start = torch.tensor([[[1.0]], [[2.0]]]), torch.ones(1, 2, 1)
        >>> many_dense_scan(A, torch.zeros(1, 3, 2, 1), start, None)[0].flatten(2)
        tensor([[[1., 2.],
                 [1., 4.],
                 [1., 8.]]])
    """
    h, final = blocks(A, b, initial, None, reset, None, False, False)
    return h, final


def turn(re: Tensor, im: Tensor, h: Tensor) -> Tensor:
    """The blocks ``[[re, -im], [im, re]]`` times ``h`` (..., channels, 2)."""
    p, q = h.unbind(-1)  # (B, T, N) each
    return torch.stack([re * p - im * q, im * p + re * q], -1)  # (..., C, 2)


def _one_matrix(
    A: Tensor, b: Tensor, initial: Tensor, reset: Tensor | None, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    arguments = A[None], b.unsqueeze(2), initial.unsqueeze(1)  # (1, N, N), (B, T, 1, N), (B, 1, N)
    h, final = blocks(*arguments, None, reset, None, False, False, backend=backend)
    return h.squeeze(2), final.squeeze(1)  # (B, T, N), (B, N)
