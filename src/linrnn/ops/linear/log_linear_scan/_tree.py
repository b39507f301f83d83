"""`log_linear_scan` as a balanced tree in plain PyTorch, of "plus" and "logaddexp"."""

from collections.abc import Iterator

import torch
from torch import Tensor

from linrnn.compute.layout import at_steps, clear_first, empty_results, ends, live_steps
from linrnn.ops.linear.log_linear_scan._cpu import backward as backward
from linrnn.ops.linear.tree import LOG, products, solve


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Never: it runs wherever PyTorch does."""
    return None


def forward(
    log_a: Tensor,
    log_b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``log h_t = logaddexp(log a_t + log h_{t-1}, log b_t)``."""
    _, final = empty_results(log_b, cu_seqlens)
    final = final.fill_(LOG.zero) if initial_state is None else final.copy_(initial_state)
    edge = ends(log_b, cu_seqlens, reverse)
    a, b = log_a.to(final.dtype), log_b.to(final.dtype)
    if initial_state is not None:
        entering = at_steps(a, edge.row, edge.first) + initial_state[edge.kept]
        entering = clear_first(entering, reset, edge, LOG.zero)
        entering = torch.logaddexp(entering, b[edge.row, edge.first])
        b = b.index_put((edge.row, edge.first), entering)
    live = live_steps(b, reset, cu_seqlens, edge)
    if reverse:
        a, b = a if a.ndim == 1 else a.flip(1), b.flip(1)
        live = None if live is None else live.flip(1)
    log_h = solve(LOG, _doubles(a) if a.ndim == 1 else products(LOG, a), b, live)
    log_h = log_h.flip(1) if reverse else log_h
    final[edge.kept] = log_h[edge.row, edge.last]
    return log_h.to(log_b.dtype), final


def _doubles(log_a: Tensor) -> Iterator[Tensor]:
    while True:
        yield log_a
        log_a = 2 * log_a  # exact: no error to keep small
