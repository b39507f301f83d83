"""Learning while reading: a memory that is a function, whose weights take gradient steps."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.composed import composed
from linrnn.compute.derivatives import recomputed
from linrnn.compute.layout import like
from linrnn.compute.links import linked_sources, tied
from linrnn.compute.modes import eager
from linrnn.ops.inner._learning import Carry, Rows, learn
from linrnn.ops.inner._rules import ACTIVATIONS as ACTIVATIONS
from linrnn.ops.inner._rules import RULES as RULES
from linrnn.ops.inner._rules import PerceptronRule as PerceptronRule
from linrnn.ops.inner._rules import Rule as Rule
from linrnn.ops.inner._rules import Tensors


def _shapes(
    rule: str, mode: str, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    change, pending, velocity = others[5:8]
    return tuple(x.new_empty(x.shape) for x in (v, *change, *pending, *velocity))


def inner_scan(
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
    batch: int,
) -> tuple[Tensor, ...]:
    r"""Teach a function keys and values, row by row, and ask it after each.

    Equation, in every head, of the step t of a mini-batch that begins with weights W::

        velocity_t = momentum_t velocity_{t-1} - rate_t grad loss(W; k_t, v_t)
        W_t = (1 - decay_t) W_{t-1} + velocity_t,   W_0 = W
        o_t = read(W + gain_t (W_t - W); q_t)
        the next mini-batch begins with W + gain_n (W_n - W)

    Without momentum the velocity is the second term alone. All gradients of a mini-batch are at its
    first weights, so they are computed together. Of a perceptron no row has weights of its own in
    memory; of another function all rows of one mini-batch have. Where gradients are to flow, what
    is kept of a sequence are the weights before every few mini-batches, about as many times as the
    root of their number, and the rest is computed once more.

    Args:
        rule: of `RULES`; "regression" and "residual_regression" are there, of perceptrons.
        mode: handed to the rule: of perceptrons the activation, "gelu", "gelu_tanh" or "silu".
        q, k, v: (batch, time, heads, d) each.
        rate: the step of descent, (batch, time, heads).
        momentum, decay: (batch, time, heads), or None.
        gain: by place in a mini-batch, (n,), or None for 1.
        weights: before anything is read, (heads, ...) each.
        change: how far those at the start of the mini-batch are from them, (batch, heads, ...).
        pending: W_t - W of a mini-batch that has begun, like ``change``; empty where ``batch`` is 1.
        velocity: like ``change``; empty without momentum.
        constants: handed to the rule, (heads, ...) each.
        position: how many steps of its own sequence each step has before it, (batch, time): at 0
            it begins with ``weights``, and each multiple of ``batch`` begins a mini-batch.
        batch: steps of a mini-batch, n above.

    Returns:
        ``(o, *change, *pending, *velocity)``: outputs (batch, time, heads, d), and what is carried.

    Example:
        >>> one, W = torch.ones(1, 3, 1, 1), torch.zeros(1, 1, 1)
        >>> rate, place = torch.full((1, 3, 1), 0.25), torch.arange(3)[None]
        >>> state = [torch.zeros(1, 1, 1, 1)], [], []
        >>> options = "regression", "gelu", one, one, one, rate, None, None, None, [W]
        >>> inner_scan(*options, *state, [], place, 1)[0].flatten()  # halves the error each time
        tensor([0.5000, 0.7500, 0.8750])
    """
    arguments = (rule, mode, q, k, v, rate, momentum, decay, gain, weights, change, pending)
    arguments += (velocity, constants, position, batch)
    if position.shape[1] == 1 and torch.compiler.is_compiling():  # a step is written down
        return _read(*arguments)
    return _operator(*arguments)


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
    batch: int,
) -> tuple[Tensor, ...]:
    optional = [x for x in (momentum, decay, gain) if x is not None]
    groups = [[q, k, v, rate], optional, weights, change, pending, velocity, constants]
    sources = [x for group in groups for x in group]
    linked = torch.is_grad_enabled() and eager(*sources)
    if linked:
        groups = linked_sources(*groups)
    (q, k, v, rate), optional, weights, change, pending, velocity, constants = groups
    fill = iter(optional)
    momentum, decay, gain = (None if x is None else next(fill) for x in (momentum, decay, gain))
    by_place = None if gain is None else gain[position % batch][:, None]  # (B, 1, T)
    by_head = (None if x is None else x.transpose(1, 2) for x in (q, k, v, rate, momentum, decay))
    rows = Rows(*by_head, by_place)  # type: ignore[arg-type]
    reader = _Reader(rule, mode, weights, constants, batch)
    state = _State(list(change), list(pending), list(velocity))
    read = reader.step if position.shape[1] == 1 else reader.sequence
    o, state = read(rows, state, position)
    results = [o.transpose(1, 2), *state.change, *state.pending, *state.velocity]
    return tuple(tied(results, sources, linked))


_operator = composed(
    "inner_scan",
    "str rule, str mode, Tensor q, Tensor k, Tensor v, Tensor rate, Tensor? momentum, "
    "Tensor? decay, Tensor? gain, Tensor[] weights, Tensor[] change, Tensor[] pending, "
    "Tensor[] velocity, Tensor[] constants, Tensor position, int batch",
    _shapes,
    lead=2,
)(_read)


class _State(NamedTuple):
    change: list[Tensor]
    pending: list[Tensor]
    velocity: list[Tensor]


class _Piece(NamedTuple):
    """Steps of one mini-batch of each row: where they begin, and who begins or ends with them."""

    size: int
    fresh: Tensor | None
    """Rows (B,) that begin a sequence; None: none does."""
    begins: Tensor | bool
    """Rows that begin a mini-batch, all or none."""
    ends: Tensor | bool


class _Reader:
    """What stays the same over a call."""

    def __init__(
        self, rule: str, mode: str, weights: Tensors, constants: Tensors, batch: int
    ) -> None:
        self.rule, self.mode, self.batch = RULES[rule], mode, batch
        self.weights, self.constants = list(weights), list(constants)

    def step(self, rows: Rows, state: _State, position: Tensor) -> tuple[Tensor, _State]:
        """One step, without a look at where it stands."""
        position = position[:, 0]
        place = position % self.batch
        piece = _Piece(1, position == 0, place == 0, place == self.batch - 1)
        return self._piece(piece, rows, state, self.weights, self.constants)

    def sequence(self, rows: Rows, state: _State, position: Tensor) -> tuple[Tensor, _State]:
        """All steps, cut wherever a row begins a mini-batch."""
        if position.numel() == 0:
            return rows.v, state
        pieces = list(_pieces(position, self.batch))
        size = max(1, round(len(pieces) ** 0.5))
        groups = [pieces[i : i + size] for i in range(0, len(pieces), size)]
        outputs = []
        for group, part in zip(
            groups, rows.split([sum(p.size for p in g) for g in groups]), strict=True
        ):
            o, state = self._group(group, part, state)
            outputs.append(o)
        return torch.cat(outputs, 2), state

    def _group(self, pieces: list[_Piece], rows: Rows, state: _State) -> tuple[Tensor, _State]:
        """Pieces of which nothing is kept but what stands before them."""
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
            return torch.cat(outputs, 2), *now.change, *now.pending, *now.velocity

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
        if piece.fresh is not None:
            change, velocity = _cleared(piece.fresh, change), _cleared(piece.fresh, velocity)
        pending = _cleared(piece.begins, pending)
        start = [w + c for w, c in zip(weights, change, strict=True)]
        open_batch = self.batch > 1 and piece.begins is not True
        carry = Carry(start, pending if open_batch else None, velocity or None)
        o, carry = learn(self.rule, self.mode, rows, carry, [w[:, None] for w in constants])
        assert carry.pending is not None
        moved = list(carry.pending)
        last = [m if rows.gain is None else like(rows.gain[:, 0, -1], m) * m for m in moved]
        ended = [c + m for c, m in zip(change, last, strict=True)]
        change = _where(piece.ends, ended, change)
        pending = _cleared(piece.ends, moved) if self.batch > 1 else []
        return o, _State(change, pending, list(carry.velocity or []))


def _pieces(position: Tensor, batch: int) -> Iterator[_Piece]:
    """The steps between one that begins a mini-batch of any row and the next such."""
    place = position % batch
    begins, ends, fresh = place == 0, place == batch - 1, position == 0
    cuts = begins.any(0).tolist()
    first = [t for t, cut in enumerate(cuts) if cut or t == 0]
    for t, end in zip(first, [*first[1:], len(cuts)], strict=True):
        begun = fresh[:, t]
        yield _Piece(
            end - t, begun if bool(begun.any()) else None, _rows(begins[:, t]), _rows(ends[:, end - 1])
        )


def _rows(mask: Tensor) -> Tensor | bool:
    if bool(mask.all()):
        return True
    return mask if bool(mask.any()) else False


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
