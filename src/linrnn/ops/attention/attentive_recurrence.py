"""A recurrence whose input is what its own state looks for among the entries read so far."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.layout import stacked
from linrnn.ops.attention import softmax_read
from linrnn.ops.cell.dense_recurrence import CELLS, arguments


def _shapes(
    kind: str,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    state: list[Tensor],
    query: Tensor,
    weights: list[Tensor],
) -> tuple[Tensor, ...]:
    y = state[0].new_empty(position.shape[0], position.shape[1], state[0].shape[1])
    return y, *(h.new_empty(h.shape) for h in state)


@composed(
    "attentive_recurrence",
    "str kind, Tensor k, Tensor v, Tensor position, Tensor[] state, Tensor query, Tensor[] weights",
    _shapes,
    lead=1,
)
def attentive_recurrence(
    kind: str,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    state: list[Tensor],
    query: Tensor,
    weights: list[Tensor],
) -> tuple[Tensor, ...]:
    """``c_t`` = what ``h_{t-1}`` reads of the entries up to t, ``h_t = cell(h_{t-1}, c_t)``.

    What is out of sight cannot reach a result, not even as NaN; a step that sees an entry that is
    not finite is NaN, as all after it.

    Args:
        kind: a cell of `linrnn.ops.cell.dense_recurrence`.
        k, v: keys and values (B, S, H, K), those of the steps last.
        position: how many steps of the same sequence come before each step, (B, T).
        state: before the first step, (B, d_state) each; h first.
        query: the map of h to queries, (H K, d_state).
        weights: of the cell, in the order of PyTorch's kernels.

    Returns:
        Every h (B, T, d_state), then the state after the last step.
    """
    time, past = position.shape[1], k.shape[1] - position.shape[1]
    bad = ~(k.isfinite().flatten(2).all(-1) & v.isfinite().flatten(2).all(-1))  # (B, S)
    k, v = (torch.where(bad[..., None, None], 0, z) for z in (k, v))
    ys, cell = [], CELLS[kind]
    for t in range(time):
        age = torch.arange(past + t, -1, -1, device=k.device)
        visible = age <= position[:, t, None]
        state = [torch.where((position[:, t] == 0)[:, None], 0, h) for h in state]
        q = F.linear(state[0], query).unflatten(-1, k.shape[2:])[:, None]  # (B, 1, H, K)
        c = softmax_read(q, k[:, : past + t + 1], v[:, : past + t + 1], visible[:, None])
        spoilt = (bad[:, : past + t + 1] & visible).any(1)
        c = torch.where(spoilt[:, None, None], float("nan"), c.flatten(2))  # (B, 1, H V)
        cell_arguments: dict[str, Any] = dict(arguments(kind, c, weights))
        inputs = [cell_arguments[name][:, 0] for name in cell.inputs]
        constants = [cell_arguments[name] for name in (*cell.constants, *cell.matrices)]
        y, next_state = cell.function(*state, *inputs, *constants)
        state = list(next_state) if isinstance(next_state, tuple) else [next_state]
        ys.append(y)
    return stacked(ys, state[0]), *state
