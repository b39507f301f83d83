"""Matrix memories whose next step depends nonlinearly on what they hold: one step after another.

Where keys, values and rates are known before the memory is, `linrnn.ops.delta_scan` computes many
steps at once. Here a step needs what the last one has read.
"""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.layout import like, stacked

_SEQUENCE = "Tensor S, Tensor y, Tensor? reset"


def _fed_shapes(z: Tensor, R: Tensor, S: Tensor, y: Tensor, reset: Any) -> tuple[Tensor, ...]:
    return z.new_empty(*z.shape[:3], y.shape[-1]), S.new_empty(S.shape), y.new_empty(y.shape)


@composed("fed_back_delta", f"Tensor z, Tensor R, {_SEQUENCE}", _fed_shapes)
def fed_back_delta(
    z: Tensor, R: Tensor, S: Tensor, y: Tensor, reset: Tensor | None
) -> tuple[Tensor, ...]:
    """The delta rule on queries, keys, values and rates that also see the last read.

    Equation, in every head::

        q', k', v, b = z_t + tanh(y_{t-1}) R,   q, k, beta = softmax(q'), softmax(k'), sigmoid(b)
        S_t = S_{t-1} + beta k (v - S_{t-1}^T k)^T,   y_t = S_t^T q

    Args:
        z: of the inputs, side by side (batch, time, heads, 2 d_key + d_value + 1).
        R: of the last read, (heads, d_value, 2 d_key + d_value + 1).
        S, y: before the first step, (batch, heads, d_key, d_value) and (batch, heads, d_value).
        reset: boolean (batch, time); True clears both before that step.

    Returns:
        ``(reads, S, y)``: all y (batch, time, heads, d_value), and the last S and y.

    Example:
        >>> z, R, S = torch.zeros(1, 3, 1, 4), torch.zeros(1, 1, 4), torch.zeros(1, 1, 1, 1)
        >>> z[..., 2] = 1  # values
        >>> fed_back_delta(z, R, S, S[..., 0], None)[0].flatten()
        tensor([0.5000, 0.7500, 0.8750])
    """
    reads = []
    for t, z_t in enumerate(z.unbind(1)):
        if reset is not None:
            S, y = _cleared(reset[:, t], S, y)
        S, y = fed_back_step(z_t, R, S, y)
        reads.append(y)
    return stacked(reads, y), S, y


def fed_back_step(z: Tensor, R: Tensor, S: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One step of `fed_back_delta`: the next S and y."""
    K, V = S.shape[-2:]
    # (batch, heads, K), (batch, heads, K), (batch, heads, V), (batch, heads, 1)
    q, k, v, b = (z + _times(y.tanh(), R)).split([K, K, V, 1], -1)
    S = _written(S, k.softmax(-1), v, b.sigmoid())
    return S, _read(S, q.softmax(-1))


def _own_shapes(
    o: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor, y: Tensor, reset: Any
) -> tuple[Tensor, ...]:
    return o.new_empty(o.shape), S.new_empty(S.shape), y.new_empty(y.shape)


@composed("asked_by_itself", f"Tensor o, Tensor k, Tensor v, Tensor beta, {_SEQUENCE}", _own_shapes)
def asked_by_itself(
    o: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor, y: Tensor, reset: Tensor | None
) -> tuple[Tensor, ...]:
    """A memory of the delta rule whose query is its last answer.

    Equation, in every head::

        S_t = S_{t-1} + beta k (v - S_{t-1}^T k)^T,   y_t = o_t + S_t^T softmax(y_{t-1})

    Args:
        o: what is added, (batch, time, heads, d_value).
        k, v: keys and values, like o.
        beta: rates (batch, time, heads, 1).
        S, y: before the first step, (batch, heads, d_value, d_value) and (batch, heads, d_value).
        reset: boolean (batch, time); True clears both before that step.

    Returns:
        ``(y, S, y)``: all y (batch, time, heads, d_value), and the last S and y.

    Example:
        >>> one, S = torch.ones(1, 3, 1, 1), torch.zeros(1, 1, 1, 1)
        >>> asked_by_itself(one, one, one, one / 2, S, S[..., 0], None)[0].flatten()
        tensor([1.5000, 1.7500, 1.8750])
    """
    reads = []
    steps = (x.unbind(1) for x in (o, k, v, beta))  # time times (batch, heads, channels)
    for t, (o_t, k_t, v_t, beta_t) in enumerate(zip(*steps, strict=True)):
        if reset is not None:
            S, y = _cleared(reset[:, t], S, y)
        S, y = asked_step(o_t, k_t, v_t, beta_t, S, y)
        reads.append(y)
    return stacked(reads, y), S, y


def asked_step(
    o: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of `asked_by_itself`: the next S and y."""
    S = _written(S, k, v, beta)
    return S, o + _read(S, y.softmax(-1))


def _self_shapes(x: Tensor, W: Tensor, shift: Tensor, reset: Any) -> tuple[Tensor, ...]:
    return x.new_empty(x.shape), shift.new_empty(shift.shape)


@composed("self_referential", "Tensor x, Tensor W, Tensor shift, Tensor? reset", _self_shapes)
def self_referential(
    x: Tensor, W: Tensor, shift: Tensor, reset: Tensor | None
) -> tuple[Tensor, ...]:
    """A matrix that maps its input and says how it is to be changed itself.

    Equation, in every head::

        W_{t-1} = W + shift_{t-1},   y_t, q', k', b = W_{t-1}^T x_t
        q, k, beta = softmax(q'), softmax(k'), sigmoid(b)
        shift_t = shift_{t-1} + k (beta * W_{t-1}^T (q - k))^T

    with separate rates for the columns of y, of q, of k and of b.

    Args:
        x: inputs (batch, time, heads, d).
        W: the matrix before anything is read, (heads, d, 3 d + 4).
        shift: its change before the first step, (batch, heads, d, 3 d + 4).
        reset: boolean (batch, time); True clears the change before that step.

    Returns:
        ``(y, shift)``: outputs like x, and the last change.

    Example:
        >>> x, W = torch.ones(1, 2, 1, 2), torch.zeros(1, 2, 10)
        >>> W[..., 0], W[..., 6:] = torch.tensor([1.0, 2.0]), -50.0  # nothing is changed
        >>> self_referential(x, W, torch.zeros(1, 1, 2, 10), None)[0].flatten()
        tensor([3., 0., 3., 0.])
    """
    reads = []
    for t, x_t in enumerate(x.unbind(1)):
        if reset is not None:
            (shift,) = _cleared(reset[:, t], shift)
        y, shift = self_referential_step(x_t, W, shift)
        reads.append(y)
    # (batch, time, heads, d), (batch, heads, d, n)
    return (torch.stack(reads, 1) if reads else x), shift


def self_referential_step(x: Tensor, W: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """One step of `self_referential`: its output, and the next change."""
    d, now = x.shape[-1], W + shift
    y, q, k, b = _read(now, x).split([d, d, d, 4], -1)  # (batch, heads, d or 4) each
    q, k, beta = q.softmax(-1), k.softmax(-1), b.sigmoid()
    rates = [beta[..., i : i + 1].expand(x.shape) for i in range(3)]  # (batch, heads, d) each
    # (batch, heads, n)
    change = torch.cat([*rates, beta[..., 3:].expand(b.shape)], -1) * _read(now, q - k)
    return y, shift + k[..., None] * change[..., None, :]


def _cleared(now: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.where(like(now, x), 0, x) for x in state)


def _times(y: Tensor, R: Tensor) -> Tensor:
    """(batch, heads, a) times (heads, a, b)."""
    return (y.transpose(0, 1) @ R).transpose(0, 1)  # (batch, heads, n)


def _read(S: Tensor, q: Tensor) -> Tensor:
    """``S^T q`` of every head."""
    return (q[..., None, :] @ S).squeeze(-2)  # (batch, heads, n)


def _written(S: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    return S + k[..., None] * (beta * (v - _read(S, k)))[..., None, :]
