"""The dense nonlinear recurrences: as cells where native kernels run these, else by PyTorch's."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell, block_linear
from linrnn.compute import modes
from linrnn.compute.composed import composed
from linrnn.compute.modes import eager, mapped
from linrnn.compute.op import reached
from linrnn.compute.parts import parts
from linrnn.compute.precision import wide
from linrnn.compute.product import Product
from linrnn.ops.cell.cell_scan import cell_scan, has_kernels, requested_form
from linrnn.ops.half_linear import available, rounded_as, rounded_linear

KERNELS: dict[str, Any] = {
    "gru": torch.gru,
    "lstm": torch.lstm,
    "tanh": torch.rnn_tanh,
    "relu": torch.rnn_relu,
}
"""Those of PyTorch, which `recurrence` falls back to: the others are cells alone."""

_CELLS: dict[str, Any] = {
    "gru": torch.gru_cell,
    "tanh": torch.rnn_tanh_cell,
    "relu": torch.rnn_relu_cell,
}


def _keep_and_write(f: Any, r: Any) -> tuple[Any, Any]:
    """``g = 2 r f + (1 - 2 r) f^2`` and ``1 - g`` of logits, written so that neither cancels."""
    stay, move, less = torch.sigmoid(f), torch.sigmoid(-f), torch.sigmoid(-r)
    return stay * (stay + 2 * torch.sigmoid(r) * move), move * (move + 2 * less * stay)


def _gru(
    product: Any, h: Any, xr: Any, xz: Any, xn: Any, bn: Any, Wr: Any, Wz: Any, Wn: Any
) -> tuple[Any, Any]:
    r, z = torch.sigmoid(xr + product(h, Wr)), torch.sigmoid(xz + product(h, Wz))
    n = torch.tanh(xn + r * (product(h, Wn) + bn))
    h = torch.lerp(n, h, z)
    return h, h


def _lstm(
    product: Any, h: Any, c: Any, xi: Any, xf: Any, xg: Any, xo: Any,
    Wi: Any, Wf: Any, Wg: Any, Wo: Any,
) -> tuple[Any, Any]:  # fmt: skip
    i, f = torch.sigmoid(xi + product(h, Wi)), torch.sigmoid(xf + product(h, Wf))
    g, o = torch.tanh(xg + product(h, Wg)), torch.sigmoid(xo + product(h, Wo))
    c = f * c + i * g
    h = o * torch.tanh(c)
    return h, (h, c)


def _gru_before(
    product: Any, h: Any, xr: Any, xz: Any, xn: Any, Wr: Any, Wz: Any, Wn: Any
) -> tuple[Any, Any]:
    r, z = torch.sigmoid(xr + product(h, Wr)), torch.sigmoid(xz + product(h, Wz))
    n = torch.tanh(xn + product(r * h, Wn))
    h = torch.lerp(n, h, z)
    return h, h


def _gru_refined(
    product: Any, h: Any, xr: Any, xz: Any, xn: Any, xs: Any, bn: Any,
    Wr: Any, Wz: Any, Wn: Any, Ws: Any,
) -> tuple[Any, Any]:  # fmt: skip
    keep, write = _keep_and_write(xz + product(h, Wz), xs + product(h, Ws))
    r = torch.sigmoid(xr + product(h, Wr))
    h = keep * h + write * torch.tanh(xn + r * (product(h, Wn) + bn))
    return h, h


def _gru_before_refined(
    product: Any, h: Any, xr: Any, xz: Any, xn: Any, xs: Any, Wr: Any, Wz: Any, Wn: Any, Ws: Any
) -> tuple[Any, Any]:
    keep, write = _keep_and_write(xz + product(h, Wz), xs + product(h, Ws))
    r = torch.sigmoid(xr + product(h, Wr))
    h = keep * h + write * torch.tanh(xn + product(r * h, Wn))
    return h, h


def _peephole(
    product: Any, h: Any, c: Any, xi: Any, xf: Any, xg: Any, xo: Any,
    pi: Any, pf: Any, po: Any, Wi: Any, Wf: Any, Wg: Any, Wo: Any,
) -> tuple[Any, Any]:  # fmt: skip
    i = torch.sigmoid(xi + product(h, Wi) + pi * c)
    f = torch.sigmoid(xf + product(h, Wf) + pf * c)
    c = f * c + i * torch.tanh(xg + product(h, Wg))
    h = torch.sigmoid(xo + product(h, Wo) + po * c) * torch.tanh(c)
    return h, (h, c)


def _coupled(
    product: Any, h: Any, c: Any, xf: Any, xg: Any, xo: Any, Wf: Any, Wg: Any, Wo: Any
) -> tuple[Any, Any]:
    f = torch.sigmoid(xf + product(h, Wf))
    c = torch.lerp(torch.tanh(xg + product(h, Wg)), c, f)
    h = torch.sigmoid(xo + product(h, Wo)) * torch.tanh(c)
    return h, (h, c)


def _coupled_peephole(
    product: Any, h: Any, c: Any, xf: Any, xg: Any, xo: Any,
    pf: Any, po: Any, Wf: Any, Wg: Any, Wo: Any,
) -> tuple[Any, Any]:  # fmt: skip
    f = torch.sigmoid(xf + product(h, Wf) + pf * c)
    c = torch.lerp(torch.tanh(xg + product(h, Wg)), c, f)
    h = torch.sigmoid(xo + product(h, Wo) + po * c) * torch.tanh(c)
    return h, (h, c)


def _refined(
    product: Any, h: Any, c: Any, xr: Any, xf: Any, xg: Any, xo: Any,
    Wr: Any, Wf: Any, Wg: Any, Wo: Any,
) -> tuple[Any, Any]:  # fmt: skip
    keep, write = _keep_and_write(xf + product(h, Wf), xr + product(h, Wr))
    c = keep * c + write * torch.tanh(xg + product(h, Wg))
    h = torch.sigmoid(xo + product(h, Wo)) * torch.tanh(c)
    return h, (h, c)


def _projected(
    product: Any, h: Any, c: Any, xi: Any, xf: Any, xg: Any, xo: Any,
    Wi: Any, Wf: Any, Wg: Any, Wo: Any, Wr: Any,
) -> tuple[Any, Any]:  # fmt: skip
    _, (h, c) = _lstm(product, h, c, xi, xf, xg, xo, Wi, Wf, Wg, Wo)
    h = product(h, Wr)
    return h, (h, c)


def _peephole_projected(
    product: Any, h: Any, c: Any, xi: Any, xf: Any, xg: Any, xo: Any,
    pi: Any, pf: Any, po: Any, Wi: Any, Wf: Any, Wg: Any, Wo: Any, Wr: Any,
) -> tuple[Any, Any]:  # fmt: skip
    _, (h, c) = _peephole(product, h, c, xi, xf, xg, xo, pi, pf, po, Wi, Wf, Wg, Wo)
    h = product(h, Wr)
    return h, (h, c)


def _coupled_projected(
    product: Any, h: Any, c: Any, xf: Any, xg: Any, xo: Any, Wf: Any, Wg: Any, Wo: Any, Wr: Any
) -> tuple[Any, Any]:
    _, (h, c) = _coupled(product, h, c, xf, xg, xo, Wf, Wg, Wo)
    h = product(h, Wr)
    return h, (h, c)


def _coupled_peephole_projected(
    product: Any, h: Any, c: Any, xf: Any, xg: Any, xo: Any,
    pf: Any, po: Any, Wf: Any, Wg: Any, Wo: Any, Wr: Any,
) -> tuple[Any, Any]:  # fmt: skip
    _, (h, c) = _coupled_peephole(product, h, c, xf, xg, xo, pf, po, Wf, Wg, Wo)
    h = product(h, Wr)
    return h, (h, c)


def _refined_projected(
    product: Any, h: Any, c: Any, xr: Any, xf: Any, xg: Any, xo: Any,
    Wr: Any, Wf: Any, Wg: Any, Wo: Any, Wp: Any,
) -> tuple[Any, Any]:  # fmt: skip
    _, (h, c) = _refined(product, h, c, xr, xf, xg, xo, Wr, Wf, Wg, Wo)
    h = product(h, Wp)
    return h, (h, c)


def _tanh(product: Any, h: Any, x: Any, W: Any) -> tuple[Any, Any]:
    h = torch.tanh(x + product(h, W))
    return h, h


def _relu(product: Any, h: Any, x: Any, W: Any) -> tuple[Any, Any]:
    h = torch.relu(x + product(h, W))
    return h, h


CELLS = {
    "gru": Cell(partial(_gru, F.linear), state="h", constant="bn", matrix="Wr Wz Wn", name="gru"),
    "lstm": Cell(partial(_lstm, F.linear), state="h c", matrix="Wi Wf Wg Wo", name="lstm"),
    "gru_before": Cell(
        partial(_gru_before, F.linear), state="h", matrix="Wr Wz Wn", name="gru_before"
    ),
    "lstm_peephole": Cell(
        partial(_peephole, F.linear),
        state="h c",
        constant="pi pf po",
        matrix="Wi Wf Wg Wo",
        name="lstm_peephole",
    ),
    "lstm_coupled": Cell(
        partial(_coupled, F.linear), state="h c", matrix="Wf Wg Wo", name="lstm_coupled"
    ),
    "lstm_coupled_peephole": Cell(
        partial(_coupled_peephole, F.linear),
        state="h c",
        constant="pf po",
        matrix="Wf Wg Wo",
        name="lstm_coupled_peephole",
    ),
    # where the LSTM has its input gate, which is tied to the other here, stands the refine gate
    "lstm_refined": Cell(
        partial(_refined, F.linear), state="h c", matrix="Wr Wf Wg Wo", name="lstm_refined"
    ),
    "lstm_projected": Cell(
        partial(_projected, F.linear), state="h c", matrix="Wi Wf Wg Wo Wr", name="lstm_projected"
    ),
    "lstm_peephole_projected": Cell(
        partial(_peephole_projected, F.linear),
        state="h c",
        constant="pi pf po",
        matrix="Wi Wf Wg Wo Wr",
        name="lstm_peephole_projected",
    ),
    "lstm_coupled_projected": Cell(
        partial(_coupled_projected, F.linear),
        state="h c",
        matrix="Wf Wg Wo Wr",
        name="lstm_coupled_projected",
    ),
    "lstm_coupled_peephole_projected": Cell(
        partial(_coupled_peephole_projected, F.linear),
        state="h c",
        constant="pf po",
        matrix="Wf Wg Wo Wr",
        name="lstm_coupled_peephole_projected",
    ),
    "lstm_refined_projected": Cell(
        partial(_refined_projected, F.linear),
        state="h c",
        matrix="Wr Wf Wg Wo Wp",
        name="lstm_refined_projected",
    ),
    # the refine gate of a GRU stands behind its others
    "gru_refined": Cell(
        partial(_gru_refined, F.linear),
        state="h",
        constant="bn",
        matrix="Wr Wz Wn Ws",
        name="gru_refined",
    ),
    "gru_before_refined": Cell(
        partial(_gru_before_refined, F.linear),
        state="h",
        matrix="Wr Wz Wn Ws",
        name="gru_before_refined",
    ),
    "tanh": Cell(partial(_tanh, F.linear), state="h", matrix="W", name="tanh"),
    "relu": Cell(partial(_relu, F.linear), state="h", matrix="W", name="relu"),
}
"""The recurrences of `recurrence` without the product with the input."""

HEADS = "_heads"
"""Suffix of the kind of a recurrence with block-diagonal matrices."""


def _in_heads(kind: str) -> Cell:
    dense = CELLS[kind]
    step: Any = dense.function
    return Cell(
        partial(step.func, block_linear),
        state=dense.states,
        constant=dense.constants,
        matrix=dense.matrices,
        name=kind + HEADS,
    )


CELLS |= {kind + HEADS: _in_heads(kind) for kind in CELLS if "projected" not in kind}


def _shapes(
    x: Tensor, state: list[Tensor], weights: list[Tensor], reset: Tensor | None, kind: str
) -> tuple[Tensor, ...]:
    y = x.new_empty(x.shape[0], x.shape[1], weights[1].shape[1])
    return y, *(h.new_empty(h.shape) for h in state)


def _explained(
    x: Tensor, state: list[Tensor], weights: list[Tensor], reset: Tensor | None, kind: str
) -> str:
    if _by_tiles(x, state, weights, kind):
        reasons: str = _STEPS.explain([x], None)
        return reasons
    if not _as_cell(x, state, weights, reset, kind):
        return f"PyTorch's operators: torch.{KERNELS[kind].__name__}, from reset to reset"
    scan_arguments: dict[str, Any] = dict(arguments(kind, x, weights))
    op, call, backend = reached(
        cell_scan, CELLS[kind], **scan_arguments, state=tuple(state), reset=reset
    )
    return str(op.explain(call, backend))


@composed(
    "recurrence",
    "Tensor x, Tensor[] state, Tensor[] weights, Tensor? reset, str kind",
    _shapes,
    explained=_explained,
)
def recurrence(
    x: Tensor, state: list[Tensor], weights: list[Tensor], reset: Tensor | None, kind: str
) -> tuple[Tensor, ...]:
    """``gru``, ``lstm``, ``tanh`` or ``relu`` along time.

    Args:
        x: (batch, time, d_model); in half precision so are the outputs, and matrices are rounded.
        state: before the first step, (batch, d_state) each: h, of the LSTM h and c.
        weights: in the order of PyTorch's kernels; biases are at least float32.
        reset: boolean (batch, time) or None.
        kind: which recurrence.

    Returns:
        The outputs (batch, time, d_state), then the state after the last step.
    """
    if _by_tiles(x, state, weights, kind):
        return _STEPS(x, *weights[:2], *(weights[2:] or (None, None)), *(*state, None)[:2], reset)
    if _as_cell(x, state, weights, reset, kind):
        scan_arguments: dict[str, Any] = dict(arguments(kind, x, weights))
        y, last = cell_scan(CELLS[kind], **scan_arguments, state=tuple(state), reset=reset)
        return y, *(last if isinstance(last, tuple) else [last])
    if x.shape[1] == 0:  # of which PyTorch's kernels know nothing
        return _shapes(x, state, weights, reset, kind)[0], *state
    ys = []
    for begin, end in stretches(reset, x.shape[1]):
        if reset is not None:
            # a choice and not a product, for what is forgotten may be NaN
            state = [torch.where(reset[:, begin, None], 0.0, h) for h in state]
        y, state = _stretch(x[:, begin:end], state, weights, kind)
        ys.append(y)
    return torch.cat(ys, 1) if len(ys) > 1 else ys[0], *state  # (B, T, D), (B, D) each


#: Channels from which tiles pay, and the multiple that they are of; numbers that repay a call.
_TILES_FROM, _TILE, _WORTH = 96, 32, 1 << 14


def _by_tiles(x: Tensor, state: list[Tensor], weights: list[Tensor], kind: str) -> bool:
    """Whether the kernel for bfloat16 steps, whose products are by tiles, computes a call."""
    if x.dtype is not torch.bfloat16 or kind not in ("gru", "lstm") or x.shape[1] < 2:
        return False
    channels = state[0].shape[1]
    fits = channels >= _TILES_FROM and channels % _TILE == 0
    plain = all([h.dtype is torch.float32 for h in state]) and requested_form(None)[0] is None
    large = x.shape[0] * x.shape[1] * channels >= _WORTH
    if not (fits and plain and large and x.is_cpu and eager(x, *state, *weights)):
        return False
    return available() and _STEPS.backend([x]) == "cpu"


def _of_steps(
    x: Tensor, W: Tensor, U: Tensor, b: Tensor | None, c: Tensor | None, *remaining: Any
) -> tuple[Tensor, ...]:
    """A GRU or LSTM in operators and `cell_scan`: differentiable to any order."""
    *state, reset = remaining
    weights = [W, U] if b is None or c is None else [W, U, b, c]
    kind = "gru" if state[1] is None else "lstm"
    start = tuple([h for h in state if h is not None])
    named: dict[str, Any] = dict(arguments(kind, x, weights))
    y, last = cell_scan(CELLS[kind], **named, state=start, reset=reset)
    return y, *(last if isinstance(last, tuple) else [last])


_STEPS = Product(
    "dense_steps",
    _of_steps,
    gradients=7,
    kernels={"cpu": "linrnn.ops.cell._dense_steps_cpu"},
    saved=(0,),
    keeps=2,
    selects=True,
)


def _as_cell(
    x: Tensor, state: list[Tensor], weights: list[Tensor], reset: Tensor | None, kind: str
) -> bool:
    """Whether the cell is requested, or is the fastest form that supports the call.

    PyTorch has an LSTM of float32 that is as fast.
    """
    if requested_form(None)[0] is not None:
        return x.shape[1] > 1 and x.numel() > 0
    if mapped(
        x, reset, *state, *weights
    ):  # what is here looks at resets, and PyTorch's has no rule
        return x.numel() > 0
    if kind == "lstm" and modes.forward_mode():  # of which PyTorch's fast LSTM knows nothing
        return x.shape[1] > 1 and x.numel() > 0
    if x.device.type != "cpu" or not eager(x, *state, *weights):
        return False
    if kind == "lstm" and reset is None and x.dtype == torch.float32:
        return False
    return x.shape[1] > 1 and x.numel() > 0 and has_kernels(x.device, x.dtype)


def arguments(
    kind: str, x: Tensor, weights: list[Tensor], constants: Sequence[Tensor] = ()
) -> dict[str, Tensor]:
    """Arguments of `cell_scan` beside the state: inputs, constants, matrices, a block of rows each.

    Args:
        kind: one of `CELLS`.
        x: (batch, time, d_model).
        weights: as `recurrence` takes them, and the projection of "..._projected" behind them. Of
            "..._heads" the second has the blocks' columns only, (rows, columns of a head).
        constants: those of the cell but the bias inside of the GRU, which is of the weights.
    """
    cell = CELLS[kind]
    gates, extra = len(cell.inputs), len(cell.matrices) - len(cell.inputs)
    weights = [weights[0], *rounded_as(x, weights[1:])]
    W, U, *bias = weights[: len(weights) - extra]
    D = U.shape[0] // gates
    b = None if not bias else bias[0] + bias[1]
    if "bn" in cell.constants:
        # the third gate multiplies its product with h together with its bias
        inner = slice(2 * D, 3 * D)
        constants = [bias[1][inner] if bias else U.new_zeros(D)]
        if b is not None:
            b = torch.cat([b[: 2 * D], bias[0][inner], b[3 * D :]])  # (gates * D,)
    named = dict(zip(cell.constants, constants, strict=True))
    named |= zip(cell.inputs, parts(rounded_linear(x, W, b), len(cell.inputs)), strict=True)
    # (D, D) each; without a state there is nothing to split
    matrices = [*(U.split(D) if D else [U] * gates), *weights[len(weights) - extra :]]
    if kind.endswith(HEADS):
        matrices = [m.unflatten(0, (-1, m.shape[1])) for m in matrices]  # (heads, rows, columns)
    named |= zip(cell.matrices, matrices, strict=True)
    return named


def _stretch(
    x: Tensor, state: list[Tensor], weights: list[Tensor], kind: str
) -> tuple[Tensor, list[Tensor]]:
    stored, x, weights = x.dtype, wide(x), [wide(w) for w in rounded_as(x, weights)]
    if x.shape[1] == 1 and kind in ("gru", "lstm"):
        state = cell(x[:, 0], state, weights, kind)
        return state[0].clone()[:, None].to(stored), state  # so that neither is part of the other
    start = [h[None] for h in state]
    train = torch.is_grad_enabled()  # cuDNN keeps what its backward needs only if told to
    with _weights_apart(x.device):
        y, *last = KERNELS[kind](
            x,
            tuple(start) if kind == "lstm" else start[0],
            weights,
            len(weights) > 2,
            1,
            0.0,
            train,
            False,
            True,
        )
    return y.to(stored), [h[0] for h in last]


@contextmanager
def _weights_apart(device: torch.device) -> Iterator[None]:
    """Says to cuDNN that weights need not lie side by side: it copies them, which is cheap."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
        yield


def cell(x_t: Tensor, state: list[Tensor], weights: list[Tensor], kind: str) -> list[Tensor]:
    """The state after one step (batch, d_model) of which the first part is the output."""
    if mapped(x_t, *state, *weights):  # PyTorch's cells have no rule for vmap
        inputs: dict[str, Any] = dict(arguments(kind, x_t[:, None], weights))
        _, last = cell_scan(CELLS[kind], **inputs, state=tuple(state))
        return list(last) if isinstance(last, tuple) else [last]
    if kind == "lstm":
        return list(torch.lstm_cell(x_t, (state[0], state[1]), *weights))
    return [_CELLS[kind](x_t, state[0], *weights)]


def stretches(reset: Tensor | None, time: int) -> list[tuple[int, int]]:
    """The spans (begin, end) of time inside which no row of a batch starts anew.

    In a CUDA graph, which is for any resets, every step is one.

    Example:
        >>> stretches(torch.tensor([[False, False, True], [False, False, False]]), 3)
        [(0, 2), (2, 3)]
    """
    cuts = [0]
    if reset is not None and modes.captured(reset):
        cuts += range(1, time)
    elif reset is not None:
        cuts += [t for t in reset.any(0).nonzero().flatten().tolist() if t]
    return list(pairwise([*cuts, time]))
