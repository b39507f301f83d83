"""One mini-batch of inner learning: its gradients, and what each of its rows reads."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.modes import seen_finite, transformed
from linrnn.ops.inner._rules import (
    ACTIVATIONS,
    PerceptronRule,
    Rule,
    Tensors,
    is_perceptron,
    layers_of,
)
from linrnn.ops.linear.linear_scan import linear_scan

_AUTOGRAD: Any = torch._C._parse_dispatch_key("AutogradFunctionality")


class Rows(NamedTuple):
    """Rows of a mini-batch: vectors (B, H, m, d), and numbers (B, H, m)."""

    q: Tensor
    k: Tensor
    v: Tensor
    rate: Tensor
    momentum: Tensor | None
    decay: Tensor | None
    gain: Tensor | None

    def split(self, sizes: list[int]) -> list["Rows"]:
        """Cut along time, each tensor once."""
        # (B, H, steps, ...) each
        parts = [[None] * len(sizes) if x is None else x.split(sizes, 2) for x in self]
        return [Rows(*cut) for cut in zip(*parts, strict=True)]


class Carry(NamedTuple):
    """The carry from one mini-batch, or a piece of one, to the next; lists of one length."""

    start: Tensors
    """Weights at the start of the mini-batch, (B, H, ...)."""
    pending: Tensors | None
    """How far they have been moved since; None where a mini-batch begins."""
    velocity: Tensors | None
    """The momentum."""


class Coefficients(NamedTuple):
    """Weights after each row, as sums: of start, pending, velocity and the gradients of rows.

    ``pending_t = retention_t pending - (1 - retention_t) start + pushed_t velocity``
    ``- sum_i writes_ti grad_i``
    """

    retention: Tensor | None
    """(B, H, m); None: all of it."""
    pushed: Tensor | None
    """(B, H, m)."""
    writes: Tensor
    """(B, H, m, m)."""
    velocity: Tensor | None
    """The remaining share of the velocity at the end, (B, H)."""
    last: Tensor | None
    """The share of each gradient in it by then, (B, H, m)."""


def coefficients(rows: Rows) -> Coefficients:
    """Compute them by scans of unit vectors; nothing is divided or subtracted."""
    rate, momentum, decay = rows.rate, rows.momentum, rows.decay
    size = rate.shape[-1]
    one = torch.eye(size, dtype=torch.bool, device=rate.device)
    if momentum is None and decay is None:
        below = one.new_ones(size, size).tril()
        return Coefficients(None, None, torch.where(below, rate[..., None, :], 0), None, None)
    # each step of a scan is a row of all coefficients: one for a gradient, velocity and pending
    written = torch.where(one, rate[..., None], 0)  # (B, H, m, m)
    zero = torch.zeros_like(rate)[..., None]
    speed = torch.cat([written, zero, zero], -1)  # (B, H, m, m + 2)
    begin = torch.eye(size + 2, dtype=rate.dtype, device=rate.device)
    if momentum is not None:
        speed = _scanned(momentum, speed, begin[size])
    retention = torch.ones_like(rate) if decay is None else 1 - decay
    total = _scanned(retention, speed, begin[size + 1])
    return Coefficients(
        None if decay is None else total[..., size + 1],
        None if momentum is None else total[..., size],
        total[..., :size],
        None if momentum is None else speed[..., -1, size],
        None if momentum is None else speed[..., -1, :size],
    )


def _scanned(a: Tensor, b: Tensor, begin: Tensor) -> Tensor:
    """``h_t = a_t h_{t-1} + b_t`` along the third axis, from ``begin``."""
    batch = a.shape[:2]
    a, b = (z.flatten(0, 1) for z in (a[..., None].expand_as(b), b))  # (B H, m, columns)
    h, _ = linear_scan(a, b, begin.expand(b.shape[0], -1))  # h: (B H, m, columns)
    return h.view(*batch, *h.shape[1:])  # (B, H, ...)


def learn(
    rule: Rule, mode: str, rows: Rows, carry: Carry, constants: Tensors
) -> tuple[Tensor, Carry]:
    """The read of each row after its update, (B, H, m, d), and pending and velocity then.

    All gradients are at ``carry.start``. Constants are (H, 1, ...).
    """
    if rows.rate.shape[-1] == 1:
        return _learn_one(rule, mode, rows, carry, constants)
    c = coefficients(rows)
    if is_perceptron(rule):
        return _learn_perceptron(rule, mode, rows, carry, constants, c)
    gradients, bad = _hidden(_row_gradients(rule, mode, rows, carry.start, constants))
    pending = [
        _moved(c, s, p, v, torch.einsum("bhti,bhi...->bht...", c.writes, g))
        for s, p, v, g in zip(carry.start, *_lists(carry), gradients, strict=True)
    ]  # (B, H, T, ...) each
    starts = [w[:, :, None] for w in carry.start]
    weights = [_gained(s, p, rows.gain) for s, p in zip(starts, pending, strict=True)]
    o = rule.read(mode, weights, rows.q, constants)
    o = _spoilt(bad.cumsum(-1) > 0, o)
    last = [_spoilt(bad.any(-1), p[:, :, -1]) for p in pending]
    velocity = None
    if carry.velocity is not None:
        velocity = [
            _spoilt(bad.any(-1), _speed(c, v, torch.einsum("bhi,bhi...->bh...", c.last, g)))
            for v, g in zip(carry.velocity, gradients, strict=True)
        ]  # (B, H, ...) each
    return o, Carry(carry.start, last, velocity)


def _lists(carry: Carry) -> tuple[list[Any], list[Any]]:
    """Pending and velocity, None for each weight where there is none."""
    absent = [None] * len(carry.start)
    pending = absent if carry.pending is None else list(carry.pending)
    return pending, absent if carry.velocity is None else list(carry.velocity)


def _moved(
    c: Coefficients, start: Tensor, pending: Tensor | None, velocity: Tensor | None, write: Tensor
) -> Tensor:
    """Pending after each row, (B, H, m, ...), of what gradients add."""
    total = -write
    if c.retention is not None:
        total = total - _wide_as(1 - c.retention, total) * start[:, :, None]
    if pending is not None:
        before = pending[:, :, None]
        total = total + (before if c.retention is None else _wide_as(c.retention, total) * before)
    if velocity is not None and c.pushed is not None:
        total = total + _wide_as(c.pushed, total) * velocity[:, :, None]
    return total


def _speed(c: Coefficients, velocity: Tensor, write: Tensor) -> Tensor:
    assert c.velocity is not None
    return _wide_as(c.velocity, velocity) * velocity - write


def _wide_as(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))  # (B, H, T, *ones)


def _gained(start: Tensor, pending: Tensor, gain: Tensor | None) -> Tensor:
    return start + (pending if gain is None else _wide_as(gain, pending) * pending)


def _row_gradients(
    rule: Rule, mode: str, rows: Rows, start: Tensors, constants: Tensors
) -> list[Tensor]:
    """The gradient of the loss of each row, (B, H, m, ...) for each of the weights."""
    count = rows.rate.shape[-1]

    def losses(*weights: Tensor) -> Tensor:
        return rule.loss(mode, weights, rows.k, rows.v, constants).sum()

    # (B, H, T, ...) each
    of_rows = [w[:, :, None].expand(-1, -1, count, *w.shape[2:]) for w in start]
    if transformed():
        return list(torch.func.grad(losses, argnums=tuple(range(len(start))))(*of_rows))
    create_graph = torch.is_grad_enabled()
    # inside of an operator PyTorch records nothing, whether gradients are enabled or not
    recorded = torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False)
    with recorded, torch.enable_grad():
        of_rows = [w if w.requires_grad else w.detach().requires_grad_() for w in of_rows]
        total = losses(*of_rows)
    options: Any = {"create_graph": create_graph, "materialize_grads": True}
    return list(torch.autograd.grad(total, of_rows, **options))


def _hidden(parts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Rows without numbers that are not finite, and where these were, (B, H, m).

    They must not reach the rows before, as a product with zero would let them.
    """
    flags = [~x.flatten(3).isfinite().all(-1) for x in parts]  # (B, H, T) each
    bad = torch.stack(flags).any(0)  # (B, H, T)
    return [torch.where(_wide_as(bad, x), 0, x) for x in parts], bad


def _spoilt(where: Tensor, x: Tensor) -> Tensor:
    return torch.where(_wide_as(where, x), float("nan"), x)


def _backward(
    rule: PerceptronRule, mode: str, rows: Rows, start: Tensors, constants: Tensors
) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs of the layers, and what their outputs are to lose: (B, H, m, d) each."""
    layers = layers_of(start)
    x = rows.k
    inputs: list[Tensor] = []
    slopes: list[Tensor] = []
    for i, (W, b) in enumerate(layers):
        inputs.append(x)
        z = x @ W if b is None else x @ W + b[..., None, :]
        if i < len(layers) - 1:
            slopes.append(ACTIVATIONS[mode].slope(z))
            x = ACTIVATIONS[mode].value(z)
    errors = [rule.error(z, rows.k, rows.v, constants)]
    for (W, _), slope in zip(layers[:0:-1], slopes[::-1], strict=True):
        errors.append((errors[-1] @ W.mT) * slope)
    return inputs, errors[::-1]


def _learn_perceptron(
    rule: PerceptronRule,
    mode: str,
    rows: Rows,
    carry: Carry,
    constants: Tensors,
    c: Coefficients,
) -> tuple[Tensor, Carry]:
    """As `learn`, and weights are never written down for each row."""
    inputs, errors = _backward(rule, mode, rows, carry.start, constants)
    bad = None
    if not all(map(seen_finite, (*inputs, *errors))):
        hidden, bad = _hidden([*inputs, *errors])
        inputs, errors = hidden[: len(inputs)], hidden[len(inputs) :]
    pending, velocity = _lists(carry)
    x, index = rows.q, 0
    moved: list[Tensor] = []
    speeds: list[Tensor] = []
    layers = layers_of(carry.start)
    for i, ((_, bias), h, e) in enumerate(zip(layers, inputs, errors, strict=True)):
        size = 1 if bias is None else 2
        parts = [
            _Moves(c, s, p, v, rows.gain)
            for s, p, v in zip(carry.start, pending, velocity, strict=True)
        ][index : index + size]
        index += size
        x = _layer(parts, x, h, e)
        if i < len(layers) - 1:
            x = ACTIVATIONS[mode].value(x)
        moved += [part.moved(h, e) for part in parts]
        if carry.velocity is not None:
            speeds += [part.speed(h, e) for part in parts]
    o = rule.output(x, rows.q, constants)
    if bad is not None:
        o = _spoilt(bad.cumsum(-1) > 0, o)
        moved, speeds = ([_spoilt(bad.any(-1), z) for z in part] for part in (moved, speeds))
    return o, Carry(carry.start, moved, None if carry.velocity is None else speeds)


class _Moves(NamedTuple):
    """A weight (B, H, d_in, d_out) or bias (B, H, d_out), and how rows of a mini-batch move it."""

    c: Coefficients
    start: Tensor
    pending: Tensor | None
    velocity: Tensor | None
    gain: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        """Rows times the weight at each row, without what its own mini-batch has written."""
        c, y = self.c, self._times(x, self.start)
        if c.retention is not None:
            y = (1 - self._gained(1 - c.retention)) * y
        if self.pending is not None:
            no_decay = c.writes.new_ones(c.writes.shape[:3])
            retention = no_decay if c.retention is None else c.retention
            y = y + self._gained(retention) * self._times(x, self.pending)
        if self.velocity is not None and c.pushed is not None:
            y = y + self._gained(c.pushed) * self._times(x, self.velocity)
        return y

    def moved(self, h: Tensor, e: Tensor) -> Tensor:
        """Pending after the last row."""
        c = self.c
        total = -self._sum(h, e, c.writes[..., -1, :])
        if c.retention is not None:
            total = total - _wide_as(1 - c.retention[..., -1], total) * self.start
        if self.pending is not None:
            before = self.pending
            if c.retention is not None:
                before = _wide_as(c.retention[..., -1], before) * before
            total = total + before
        if self.velocity is not None and c.pushed is not None:
            total = total + _wide_as(c.pushed[..., -1], total) * self.velocity
        return total

    def speed(self, h: Tensor, e: Tensor) -> Tensor:
        """Velocity after the last row."""
        assert self.velocity is not None
        assert self.c.last is not None
        return _speed(self.c, self.velocity, self._sum(h, e, self.c.last))

    def _gained(self, x: Tensor) -> Tensor:
        return (x if self.gain is None else self.gain * x)[..., None]

    def _times(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight[..., None, :] if self.start.ndim == 3 else x @ weight

    def _sum(self, h: Tensor, e: Tensor, by: Tensor) -> Tensor:
        """The sum of the gradients of rows, each times a number."""
        e = by[..., None] * e
        return e.sum(-2) if self.start.ndim == 3 else h.mT @ e  # (B, H, ...)


def _layer(parts: list[_Moves], x: Tensor, h: Tensor, e: Tensor) -> Tensor:
    """Rows through a layer as it is at each row."""
    pairs = x @ h.mT  # (B, H, m, m)
    pairs = (pairs if len(parts) == 1 else pairs + 1) * parts[0].c.writes
    if parts[0].gain is not None:
        pairs = parts[0].gain[..., None] * pairs
    y = sum((part.of(x) for part in parts[1:]), parts[0].of(x))
    return y - pairs @ e


def _learn_one(
    rule: Rule, mode: str, rows: Rows, carry: Carry, constants: Tensors
) -> tuple[Tensor, Carry]:
    """As `learn` of a single row: what it reads is read with weights that are written down."""
    if is_perceptron(rule):
        inputs, errors = _backward(rule, mode, rows, carry.start, constants)
        gradients: list[Tensor] = []
        for (_, b), h, e in zip(layers_of(carry.start), inputs, errors, strict=True):
            # (B, H, ...) each
            gradients += [h.mT @ e] if b is None else [h.mT @ e, e.squeeze(-2)]
    else:
        gradients = _row_gradients(rule, mode, rows, carry.start, constants)
        gradients = [g.squeeze(2) for g in gradients]  # (B, H, ...) each
    pending: list[Tensor] = []
    speeds: list[Tensor] = []
    for start, before, velocity, g in zip(carry.start, *_lists(carry), gradients, strict=True):
        change = -_wide_as(rows.rate[..., 0], g) * g
        if velocity is not None and rows.momentum is not None:
            change = change + _wide_as(rows.momentum[..., 0], g) * velocity
            speeds.append(change)
        if rows.decay is not None:
            decay = _wide_as(rows.decay[..., 0], g)
            change = change - decay * start
            before = None if before is None else before - decay * before
        pending.append(change if before is None else before + change)
    gain = None if rows.gain is None else rows.gain[..., 0]
    weights = [_gained(s, p, gain) for s, p in zip(carry.start, pending, strict=True)]
    o = rule.read(mode, [w[:, :, None] for w in weights], rows.q, constants)
    return o, Carry(carry.start, pending, None if carry.velocity is None else speeds)
