"""Learning while reading: a memory that is a function, whose weights take gradient steps."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.derivatives import recomputed
from linrnn.compute.layout import like
from linrnn.compute.links import linked_sources, tied, without_inputs
from linrnn.compute.modes import eager, mapped
from linrnn.ops.inner._learning import Carry, Rows, learn
from linrnn.ops.inner._rules import ACTIVATIONS as ACTIVATIONS
from linrnn.ops.inner._rules import RULES as RULES
from linrnn.ops.inner._rules import PerceptronRule as PerceptronRule
from linrnn.ops.inner._rules import Rule as Rule
from linrnn.ops.inner._rules import Tensors


def _shapes(
    rule: str, mode: str, q: Tensor, k: Tensor, v: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    change, pending, velocity = arguments[5:8]
    return tuple(x.new_empty(x.shape) for x in (v, *change, *pending, *velocity))


def inner_scan(
    rule: str,
    mode: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    weights: Tensors,
    state: tuple[Tensors, Tensors, Tensors],
    position: Tensor,
    mini_batch: int,
    *,
    momentum: Tensor | None = None,
    decay: Tensor | None = None,
    gain: Tensor | None = None,
    constants: Tensors = (),
) -> tuple[Tensor, ...]:
    r"""Teach a function keys and values, row by row, and ask it after each.

    Equation, in every head, of the step t of a mini-batch that begins with weights W::

        velocity_t = momentum_t velocity_{t-1} - rate_t grad loss(W; k_t, v_t)
        W_t = (1 - decay_t) W_{t-1} + velocity_t,   W_0 = W
        o_t = read(W + gain_t (W_t - W); q_t)
        the next mini-batch begins with W + gain_n (W_n - W)

    Without momentum the velocity is the second term alone. All gradients of a mini-batch are at its
    first weights, so they are computed together. For a perceptron no row has its own weights in
    memory; of another function all rows of one mini-batch have. Where gradients are to flow, what
    is kept of a sequence are the weights before every few mini-batches, about as many times as the
    root of their number, and the rest is computed once more.

    Args:
        rule: of `RULES`; "regression" and "residual_regression" are there, of perceptrons.
        mode: handed to the rule: of perceptrons the activation, "gelu", "gelu_tanh" or "silu".
        q, k, v: (batch, time, heads, d) each.
        rate: the step of descent, (batch, time, heads).
        weights: before anything is read, (heads, ...) each.
        state: three lists of tensors (batch, heads, ...). ``change``: how far the weights at the
            start of the mini-batch are from the first ones. ``pending``: W_t - W of a mini-batch
            that has begun; empty where they have one step. ``velocity``: empty without momentum.
        position: how many steps of the same sequence come before each step, (batch, time): at 0
            it begins with ``weights``, and each multiple of ``mini_batch`` begins one.
        mini_batch: how many steps it has, n above.
        momentum, decay: (batch, time, heads), or None.
        gain: by place in a mini-batch, (n,), or None for 1.
        constants: handed to the rule, (heads, ...) each.

    Returns:
        ``(o, *change, *pending, *velocity)``: outputs (batch, time, heads, d), and what is carried.

    Example:
        >>> one, W = torch.ones(1, 3, 1, 1), torch.zeros(1, 1, 1)
        >>> rate, place = torch.full((1, 3, 1), 0.25), torch.arange(3)[None]
        >>> state = [torch.zeros(1, 1, 1, 1)], [], []  # each step halves the error
        >>> o, W = inner_scan("regression", "gelu", one, one, one, rate, [W], state, place, 1)
        >>> o.flatten()
        tensor([0.5000, 0.7500, 0.8750])
    """
    run = _operator
    if position.shape[1] == 1 and torch.compiler.is_compiling():  # a step is written down
        run = _read
    numbers = (rate, momentum, decay, gain)
    return run(rule, mode, q, k, v, *numbers, weights, *state, constants, position, mini_batch)


def _read(
    rule: str,
    mode: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    momentum: Tensor | None,
    decay: Tensor | None,
    gain: Tensor | None,
    weights: Tensors,
    change: Tensors,
    pending: Tensors,
    velocity: Tensors,
    constants: Tensors,
    position: Tensor,
    mini_batch: int,
) -> tuple[Tensor, ...]:
    by_place = None if gain is None else gain[position % mini_batch]  # (B, T)
    steps = [q, k, v, rate, momentum, decay, by_place]
    groups: list[Tensors] = [[x for x in steps if x is not None], weights, change, pending]
    groups += [velocity, constants]
    sources = [x for group in groups for x in group]
    linked = torch.is_grad_enabled() and eager(*sources)
    if linked:
        groups = [*linked_sources(*groups)]
    cut, weights, change, pending, velocity, constants = groups
    fill = iter(cut)
    rows = Rows(*(None if x is None else _by_head(next(fill)) for x in steps))  # type: ignore[arg-type]
    reader = _Reader(rule, mode, weights, constants, mini_batch)
    state = _State(list(change), list(pending), list(velocity))
    read = reader.step if position.shape[1] == 1 else reader.sequence
    o, state = read(rows, state, position)
    results = [o.transpose(1, 2), *state.change, *state.pending, *state.velocity]  # o: (B, T, H, V)
    return tuple(tied(results, sources, linked))


_operator = composed(
    "inner_scan",
    "str rule, str mode, Tensor q, Tensor k, Tensor v, Tensor rate, Tensor? momentum, "
    "Tensor? decay, Tensor? gain, Tensor[] weights, Tensor[] change, Tensor[] pending, "
    "Tensor[] velocity, Tensor[] constants, Tensor position, int mini_batch",
    _shapes,
    lead=2,
)(_read)


def _by_head(x: Tensor) -> Tensor:
    """Move time of (B, T, H, ...) behind heads; numbers that all heads share become (B, 1, T)."""
    return x[:, None] if x.ndim == 2 else x.transpose(1, 2)  # (B, H, T, ...) or (B, 1, T)


class _State(NamedTuple):
    change: list[Tensor]
    pending: list[Tensor]
    velocity: list[Tensor]


class _Piece(NamedTuple):
    """Steps of one mini-batch of each row: where they begin, and who begins or ends with them."""

    size: int
    fresh: Tensor | bool
    """Rows (B,) that begin a sequence; or all of them, or none."""
    begins: Tensor | bool
    """Rows that begin a mini-batch."""
    ends: Tensor | bool
    """Rows that end one."""


class _Reader:
    """Values that stay the same over a call."""

    def __init__(
        self, rule: str, mode: str, weights: Tensors, constants: Tensors, mini_batch: int
    ) -> None:
        self.rule, self.mode, self.mini_batch = RULES[rule], mode, mini_batch
        self.weights, self.constants = list(weights), list(constants)

    def step(self, rows: Rows, state: _State, position: Tensor) -> tuple[Tensor, _State]:
        """One step, without a look at where it stands."""
        position = position[:, 0]
        place = position % self.mini_batch
        piece = _Piece(1, position == 0, place == 0, place == self.mini_batch - 1)
        return self._piece(piece, rows, state, self.weights, self.constants)

    def sequence(self, rows: Rows, state: _State, position: Tensor) -> tuple[Tensor, _State]:
        """All steps, cut wherever a row begins a mini-batch."""
        if position.numel() == 0:
            return rows.v, state
        pieces = list(_pieces(position, self.mini_batch))
        size = max(1, round(len(pieces) ** 0.5))
        groups = [pieces[i : i + size] for i in range(0, len(pieces), size)]
        outputs = []
        for group, part in zip(
            groups, rows.split([sum(p.size for p in g) for g in groups]), strict=True
        ):
            o, state = self._group(group, part, state)
            outputs.append(o)
        return torch.cat(outputs, 2), state  # (B, H, T, V)

    def _group(self, pieces: list[_Piece], rows: Rows, state: _State) -> tuple[Tensor, _State]:
        """Pieces of which only the state before them is kept."""
        lists = [[x for x in rows if x is not None], *state, self.weights, self.constants]
        sizes = [len(part) for part in lists]

        def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
            cut, *state, weights, constants = _cut(tensors, sizes)
            fill = iter(cut)
            each = Rows(*(None if x is None else next(fill) for x in rows))  # type: ignore[arg-type]
            outputs, now = [], _State(*state)
            for piece, part in zip(pieces, each.split([p.size for p in pieces]), strict=True):
                o, now = self._piece(piece, part, now, weights, constants)
                outputs.append(o)
            after = (*now.change, *now.pending, *now.velocity)
            return torch.cat(outputs, 2), *without_inputs(after, tensors)  # (B, H, T, V)

        o, *results = recomputed(compute, *(x for part in lists for x in part))
        return o, _State(*_cut(results, sizes[1:4]))

    def _piece(
        self,
        piece: _Piece,
        rows: Rows,
        state: _State,
        weights: list[Tensor],
        constants: list[Tensor],
    ) -> tuple[Tensor, _State]:
        change, pending, velocity = state
        change, velocity = _cleared(piece.fresh, change), _cleared(piece.fresh, velocity)
        pending = _cleared(piece.begins, pending)
        start = [w + c for w, c in zip(weights, change, strict=True)]
        open_batch = self.mini_batch > 1 and piece.begins is not True
        carry = Carry(start, pending if open_batch else None, velocity or None)
        o, carry = learn(self.rule, self.mode, rows, carry, [w[:, None] for w in constants])
        assert carry.pending is not None
        moved = list(carry.pending)
        last = [m if rows.gain is None else like(rows.gain[:, 0, -1], m) * m for m in moved]
        ended = [c + m for c, m in zip(change, last, strict=True)]
        change = _where(piece.ends, ended, change)
        pending = _cleared(piece.ends, moved) if self.mini_batch > 1 else []
        return o, _State(change, pending, list(carry.velocity or []))


def _pieces(position: Tensor, mini_batch: int) -> Iterator[_Piece]:
    """The steps between one that begins a mini-batch of any row and the next such."""
    place = position % mini_batch
    fresh, begins, ends = position == 0, place == 0, place == mini_batch - 1
    if mapped(position):  # rows of which none may be looked at: each step by itself
        for t in range(position.shape[1]):
            yield _Piece(1, fresh[:, t], begins[:, t], ends[:, t])
        return
    masks = torch.stack([fresh, begins, ends])  # (3, B, T)
    # one look for the whole call: a device waits for each
    any_row, every_row = torch.stack([masks.any(1), masks.all(1)]).tolist()  # 3 T numbers each
    time = len(any_row[0])
    first = [t for t in range(time) if t == 0 or any_row[1][t]]
    for t, end in zip(first, [*first[1:], time], strict=True):
        places = ((fresh, 0, t), (begins, 1, t), (ends, 2, end - 1))
        rows = (every_row[i][s] or (any_row[i][s] and x[:, s]) for x, i, s in places)
        yield _Piece(end - t, *rows)


def _cleared(where: Tensor | bool, parts: list[Tensor]) -> list[Tensor]:
    if isinstance(where, bool):
        return [torch.zeros_like(x) for x in parts] if where else parts
    return [torch.where(like(where, x), 0, x) for x in parts]


def _where(mask: Tensor | bool, new: list[Tensor], old: list[Tensor]) -> list[Tensor]:
    if isinstance(mask, bool):
        return new if mask else old
    return [torch.where(like(mask, n), n, o) for n, o in zip(new, old, strict=True)]


def _cut(tensors: Any, sizes: list[int]) -> list[list[Tensor]]:
    every = iter(tensors)
    return [[next(every) for _ in range(size)] for size in sizes]
