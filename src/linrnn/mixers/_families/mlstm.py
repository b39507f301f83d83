"""The memory of the matrix LSTM, which its layers share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell, spread
from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real

EPS = 1e-6  # added to what is divided by


@cell(state="m")
def stabiliser(m: Any, log_f: Any, i: Any) -> tuple[Any, Any]:
    """``m = max(log f + m, i)``; besides it the logarithms of forget and input gate beside it."""
    m_next = torch.maximum(log_f + m, i)
    # m - after first: in this order no rounding of a large m is lost from the decay
    return (log_f + (m - m_next), i - m_next, m_next), m_next


def check_gate(where: str, input_gate: str, normalize: bool) -> None:
    """Raise unless there is such a gate, and what it writes is divided where it has no bound."""
    check_in(where, "input_gate", input_gate, ("exp", "sigmoid"))
    if input_gate == "exp" and not normalize:
        raise ArgumentError(
            f"{where}: normalize must be True with input_gate='exp', which has no bound, got False."
        )


def memory_spec(
    n_heads: int, d_key: int, d_value: int, *, input_gate: str = "exp", normalize: bool = True
) -> dict[str, Part]:
    """S and n as one matrix, n its last column, both times exp(-m), and m.

    With a sigmoid gate there is no m; where nothing is divided, no n.
    """
    memory = real(n_heads=n_heads, d_key=d_key, columns=d_value + normalize)
    return {"memory": memory} | ({"m": real(n_heads=n_heads)} if input_gate == "exp" else {})


def read_memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: Any,
    reset: Tensor | None,
    *,
    input_gate: str = "exp",
    normalize: bool = True,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs of the heads, (B, T, H, V), and the state after the last step.

    Args:
        q, k, v: (B, T, H, K or V), at least float32.
        i, f: the gates' preactivations (B, T, H), at least float32.
        state: of `memory_spec`.
        reset: boolean (B, T).
        input_gate, normalize: as of `memory_spec`.
    """
    if input_gate == "sigmoid":
        return _read_bounded(q, k, v, i, f, state, reset, normalize)
    with without_autocast(q.device):
        (g, write, m), last = cell_scan(
            stabiliser, log_f=F.logsigmoid(f), i=i, state=state["m"], reset=reset
        )
        (k,) = _written(k.shape[-1])(k, write, heads=k.shape[2], width=k.shape[3])
        o, memory = outer_scan(
            q,
            k,
            v,
            g,
            state["memory"],
            normalizer=True,
            scale=k.shape[-1] ** -0.5,
            reset=reset,
        )
        heads, width = v.shape[2:]
        (h,) = _quotient(width)(o[..., :-1], o[..., -1], m, heads=heads, width=width)
    return h, {"memory": memory, "m": last}


@row_functions
def _written(width: int) -> RowFunction:
    """Keys of heads of that width, times the exponential of a gate."""
    return RowFunction(
        lambda k, gate: (k * spread(gate.exp(), width),),
        "mlstm_keys",
        rows="k gate",
        numbers="gate",
        definition=lambda k, gate: (k * gate.exp()[..., None],),
    )


@row_functions
def _quotient(width: int) -> RowFunction:
    """Reads over their normaliser, or over ``exp(-m)`` where that is larger."""

    def divisor(n: Any, m: Any) -> Any:
        # beyond exp(80) the quotient is 0 in float32, and the slope of an overflow is no number
        return torch.maximum(n.abs(), torch.exp((-m).clamp(max=80))) + EPS

    return RowFunction(
        lambda o, n, m: (o / spread(divisor(n, m), width),),
        "mlstm_reads",
        rows="o n m",
        numbers="n m",
        definition=lambda o, n, m: (o / divisor(n, m)[..., None],),
    )


def _read_bounded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: Any,
    reset: Tensor | None,
    normalize: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """`read_memory` where both gates are sigmoids: nothing overflows, and there is no m."""
    with without_autocast(q.device):
        options: Any = {"normalizer": normalize, "scale": k.shape[-1] ** -0.5, "reset": reset}
        g, k = F.logsigmoid(f), k * i.sigmoid()[..., None]
        h, memory = outer_scan(q, k, v, g, state["memory"], **options)
        if normalize:
            h = h[..., :-1] / (h[..., -1:].abs().clamp(min=1) + EPS)
    return h, {"memory": memory}


def forget_slowly(gate: nn.Linear) -> None:
    """Weights 0 and biases from 3 in the first head to 6 in the last: gates of 0.953 to 0.998."""
    nn.init.zeros_(gate.weight)
    gate.bias.copy_(torch.linspace(3, 6, len(gate.bias)))
