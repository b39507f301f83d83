"""`linear_scan` of one sequence whose pieces lie on several processes.

A piece turns the state that enters it into the one that leaves it by ``leaving = product *
entering + own``: the product of its decays, and its final state from zero. Every rank computes
these two of its piece, one exchange shows them to all, and the recurrence over the ranks, a few
steps long, gives every rank the state that enters its piece. The adjoint goes the other way.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from linrnn.compute.arguments import check_flags
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.sequence_parallel import IN_PIECES
from linrnn.errors import ArgumentError, BackendError, DTypeError, LinrnnError, ShapeError
from linrnn.ops.linear.linear_scan import (
    check_arguments,
    flat_channels,
    local_scan,
    unflat_channels,
)
from linrnn.ops.linear.linear_scan.op import linear
from linrnn.ops.linear.linear_scan.powers import squared_powers
from linrnn.typing import Inexact, ResetMask

_WHERE = "distributed_linear_scan"
# a dtype travels as its place in this list
_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
_AXES = 8  # channel axes compared one by one; of more, only their product


def distributed_linear_scan(
    a: Inexact[Tensor, "..."],
    b: Inexact[Tensor, "batch time *channels"],
    initial_state: Inexact[Tensor, "batch *channels"] | None = None,
    *,
    reset: ResetMask | None = None,
    reverse: bool = False,
    group: "dist.ProcessGroup | None" = None,
    backend: str | None = None,
) -> tuple[Inexact[Tensor, "batch time *channels"], Inexact[Tensor, "batch *channels"]]:
    r"""Solve the diagonal linear recurrence along a time axis cut into pieces, one a rank.

    Equation::

        h_t = a_t * h_{t-1} + b_t        t = 0 .. T-1,  h_{-1} = initial_state (0 if None)

    where rank r of the group holds the r-th consecutive piece of a, b and h. Pieces may differ in
    length and may be empty. The result is that of `linear_scan` on the whole, up to rounding.

    Every rank of the group has to make the call, and every rank has to call ``backward`` on
    something computed from the results when one does: both wait for all the others.

    Args:
        a: decay of this rank's piece: of the shape of ``b`` (axes of size 1 broadcast), or
            constant in time with the channel axes alone: ``b.shape[2:]``.
        b: this rank's piece of the input, (batch, time, *channels). Everything but ``time``
            must be equal on every rank, the common dtype of ``a`` and ``b`` included.
        initial_state: state before the first step of the whole sequence, (batch, *channels).
            Read on the rank that starts the sequence, which is the first (the last with
            ``reverse``); other ranks may give it, to run the same line everywhere, or leave it
            out. Its gradient arrives on that rank and is zero on the others.
        reset: boolean (batch, time); True clears the state before that step. None where a
            piece has no reset.
        reverse: run from the last step of the last rank to the first of the first rank.
        group: the process group, of any backend of `torch.distributed`; None is the default one.
        backend: computes the pieces, as in `linear_scan`.

    Returns:
        ``(h, final_state)``: the states of this rank's piece, and the last state of the whole
        sequence, (batch, *channels), the same bits on every rank. The loss is the sum of what
        the ranks call ``backward`` on, and its gradients reach every rank's ``a`` and ``b`` from
        every rank's two results. Each rank gets those of its tensors and no sum over ranks:
        of what ranks share, such as a constant decay, it has its own share, which must be added
        up (``all_reduce``). Gradients of gradients are an error, unless the group has one rank.

    Raises:
        ShapeError: shapes that do not fit together, or differ between ranks.
        DTypeError: a dtype that `linear_scan` refuses, or one that differs between ranks.
        ArgumentError: ``reverse`` or the gradient mode differ between ranks, the initial state is
            missing on the rank that starts, or this process is not in ``group``.
        BackendError: no process group, a backend that cannot compute the call, or another rank
            refused its own arguments.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from linrnn.ops import distributed_linear_scan
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> h, final = distributed_linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
        >>> h.flatten(), final
        (tensor([1.0000, 1.5000, 1.7500]), tensor([[1.7500]]))
        >>> dist.destroy_process_group()

    Reference:
        Scanning pieces, then the pieces' totals: G. E. Blelloch, "Prefix sums and their
        applications", 1990; for linear recurrent networks, Martin and Cundy 2018,
        arXiv:1709.04057.
    """
    device = b.device if isinstance(b, Tensor) else torch.device("cpu")
    chain = _join(group, reverse, device)
    if chain.ranks == 1:
        return local_scan(a, b, initial_state, reset=reset, reverse=reverse, backend=backend)
    try:
        check_flags(_WHERE, reverse=reverse)
        inputs = check_arguments(_WHERE, a, b, initial_state, reset, None)
        linear.explain(inputs, backend)  # raises where it cannot compute
        card = _Card.of(*inputs, reverse)
    except LinrnnError:
        _compare_cards(_Card.refusal(), chain)  # the others would wait for this rank for ever
        raise
    differentiable = _compare_cards(card, chain)
    if card.batch * card.width == 0:
        return local_scan(a, b, initial_state, reset=reset, reverse=reverse, backend=backend)
    anchor = torch.empty(0, requires_grad=differentiable)
    h, final = _ShardedScan.apply(*flat_channels(*inputs), anchor, reset, chain, backend)
    return unflat_channels(h, final, b.shape)


class _Chain(NamedTuple):
    """The place of a process among those that hold the pieces."""

    group: Any
    ranks: int
    rank: int
    reverse: bool
    device: torch.device  # where the group exchanges tensors

    @property
    def place(self) -> int:
        """How many pieces the recurrence has passed when it enters this one."""
        return self.ranks - 1 - self.rank if self.reverse else self.rank

    def gather(self, x: Tensor) -> Tensor:
        """``x`` of every rank, by rank, (ranks, *x.shape)."""
        # NCCL knows no complex numbers
        sent = torch.view_as_real(x) if x.is_complex() else x
        sent = sent.to(self.device).contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.ranks)]
        dist.all_gather(parts, sent, group=self.group)
        stacked = torch.stack(parts).to(x.device)  # (ranks, *sent.shape)
        return torch.view_as_complex(stacked) if x.is_complex() else stacked

    def gather_in_order(self, x: Tensor) -> Tensor:
        """``x`` of every rank, in the order in which the recurrence passes them."""
        parts = self.gather(x)
        return parts.flip(0) if self.reverse else parts


def _join(group: Any, reverse: bool, device: torch.device) -> _Chain:
    if not (dist.is_available() and dist.is_initialized()):
        raise BackendError(
            f"{_WHERE}: the process group must be initialised, got none. Start the program with "
            "torchrun and call torch.distributed.init_process_group() first."
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise ArgumentError(
            f"{_WHERE}: group must contain this process, got one without rank {dist.get_rank()}. "
            "Call it on the members of the group alone."
        )
    # "cpu:gloo,cuda:nccl"; Gloo and MPI gather in host memory, wherever the tensors are
    config = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    on_host = config.get(device.type) in ("gloo", "mpi")
    exchange = torch.device("cpu") if on_host else device
    return _Chain(group, dist.get_world_size(group), rank, reverse, exchange)


class _Card(NamedTuple):
    """Sizes that a rank tells the others before the exchange."""

    accepted: bool
    dtype: int
    reverse: bool
    grad_mode: bool
    differentiable: bool
    has_state: bool
    batch: int
    width: int
    n_axes: int
    axes: tuple[int, ...]

    @classmethod
    def refusal(cls) -> "_Card":
        return cls(False, 0, False, False, False, False, 0, 0, 0, ())

    @classmethod
    def of(cls, a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> "_Card":
        if b.dtype not in _DTYPES:
            raise DTypeError(f"{_WHERE}: b must be one of {_DTYPES}, got {b.dtype}. Use b.float().")
        grad_mode, channels = torch.is_grad_enabled(), b.shape[2:]
        inputs = (a, b) if state is None else (a, b, state)
        return cls(
            accepted=True,
            dtype=_DTYPES.index(b.dtype),
            reverse=reverse,
            grad_mode=grad_mode,
            differentiable=grad_mode and any(x.requires_grad for x in inputs),
            has_state=state is not None,
            batch=len(b),
            width=prod(channels),
            n_axes=len(channels),
            axes=tuple(channels[:_AXES]),
        )

    def encode(self) -> list[int]:
        """A list of integers, equally long for every card."""
        *scalars, axes = self
        return [*map(int, scalars), *axes, *[0] * (_AXES - len(axes))]

    @classmethod
    def decode(cls, numbers: list[int]) -> "_Card":
        scalars = numbers[: len(cls._fields) - 1]
        axes = numbers[len(scalars) :][: min(scalars[-1], _AXES)]
        return cls._make([*scalars, tuple(axes)])


def _compare_cards(card: _Card, chain: _Chain) -> bool:
    """Raise on every rank where ranks disagree; whether any rank asks for gradients."""
    numbers = chain.gather(torch.tensor(card.encode()))
    cards = [_Card.decode(row) for row in numbers.tolist()]
    refused = [rank for rank, peer in enumerate(cards) if not peer.accepted]
    if refused and card.accepted:
        raise BackendError(
            f"{_WHERE}: every rank must accept its arguments, got a refusal on rank {refused[0]}. "
            "Its own error says why."
        )
    if refused:
        return False
    _check_equal("the common dtype of a and b", [_DTYPES[c.dtype] for c in cards], DTypeError)
    _check_equal("batch", [c.batch for c in cards], ShapeError)
    _check_equal("the shape of the channels", [c.axes for c in cards], ShapeError)
    _check_equal("the number of channels", [c.width for c in cards], ShapeError)
    _check_equal("reverse", [bool(c.reverse) for c in cards], ArgumentError)
    _check_equal("torch.is_grad_enabled()", [bool(c.grad_mode) for c in cards], ArgumentError)
    starts = chain.ranks - 1 if chain.reverse else 0
    with_state = [rank for rank, peer in enumerate(cards) if peer.has_state]
    if with_state and starts not in with_state:
        raise ArgumentError(
            f"{_WHERE}: initial_state must be given on rank {starts}, which starts the sequence, "
            f"got it on rank {with_state[0]} only. Pass it on every rank."
        )
    return any(c.differentiable for c in cards)


def _check_equal(what: str, values: Sequence[object], error: type[LinrnnError]) -> None:
    mismatch = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if mismatch is not None:
        raise error(
            f"{_WHERE}: {what} must be equal on every rank, got {values[0]} on rank 0 and "
            f"{values[mismatch]} on rank {mismatch}."
        )


class _ShardedScan(torch.autograd.Function):
    """One exchange forward and one backward; all tensors have a single channel axis.

    ``anchor`` requires a gradient when an input of any rank does: without it, a rank that has
    nothing to differentiate would be missing from the exchange of the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        initial_state: Tensor | None,
        anchor: Tensor,
        reset: Tensor | None,
        chain: _Chain,
        backend: str | None,
    ) -> tuple[Tensor, Tensor]:
        options: Any = {"reset": reset, "reverse": chain.reverse, "backend": backend}
        batch, _, width = b.shape
        if chain.place == 0:  # nothing enters: its own states are already the result
            entering = initial_state
            h, local_state = local_scan(a, b, entering, **options)
            product = torch.zeros_like(local_state)
        else:
            product, local_state = _summary(a, b, reset, chain.reverse, backend)
        cleared = b.new_zeros(batch, dtype=torch.bool) if reset is None else reset.any(1)
        gather_dtype = _double_of(b.dtype)
        # (B, 2 width + 1)
        sent = torch.cat([x.to(gather_dtype) for x in (product, local_state, cleared[:, None])], 1)
        # (ranks, B, ...)
        products, local_states, flags = chain.gather_in_order(sent).split([width, width, 1], 2)
        cuts = flags.real != 0  # (ranks, B, 1)
        states = _carry(products, local_states, cuts, torch.zeros_like(local_states[0]))
        if chain.place > 0:
            entering = states[chain.place].to(local_state.dtype)
            h, _ = local_scan(a, b, entering, **options)
        ctx.save_for_backward(a, h, entering, reset, products, cuts)
        ctx.chain, ctx.backend, ctx.has_state = chain, backend, initial_state is not None
        return h, states[-1].to(local_state.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
        a, h, entering, reset, products, cuts = ctx.saved_tensors
        chain: _Chain = ctx.chain
        if chain.place == 0:  # what leaves it reaches the initial state alone
            local_grad = torch.zeros_like(grad_final)
        else:
            local_grad = _adjoint_summary(a, grad_h, reset, chain.reverse, ctx.backend)
        sent = torch.cat([local_grad, grad_final], 1).to(products.dtype)  # (B, 2 C)
        # (ranks, B, width) each
        local_grads, finals = chain.gather_in_order(sent).split(h.shape[2], 2)
        arriving = _carry(products.conj().flip(0), local_grads.flip(0), cuts.flip(0), finals.sum(0))
        arriving_here = arriving[chain.ranks - 1 - chain.place].to(grad_final.dtype)
        arguments = (a, None, entering, reset, None, chain.reverse)
        grad_a, grad_b, grad_state = linear.backward(
            arguments, (h,), (grad_h, arriving_here), backend=ctx.backend
        )
        if not ctx.has_state:
            grad_state = None
        elif chain.place > 0:
            grad_state = torch.zeros_like(grad_state)
        return grad_a, grad_b, grad_state, None, None, None, None


def _carry(products: Tensor, local_states: Tensor, cuts: Tensor, entering: Tensor) -> list[Tensor]:
    """The state that enters each piece in turn, and the one that leaves the last."""
    states = [entering]
    for product, local_state, cut in zip(products, local_states, cuts, strict=True):
        states.append(
            torch.where(cut, local_state, torch.addcmul(local_state, product, states[-1]))
        )
    return states


def _summary(
    a: Tensor, b: Tensor, reset: Tensor | None, reverse: bool, backend: str | None
) -> tuple[Tensor, Tensor]:
    """The product of a piece's decays and its final state from zero, both (B, C)."""
    batch, time, width = b.shape
    product_dtype = _double_of(b.dtype)
    product = b.new_ones(batch, width, dtype=product_dtype)
    state = b.new_zeros(batch, width, dtype=accumulator_dtype(b.dtype))
    for a_part, b_part, reset_part in _blocks(a, b, reset, reverse):
        options: Any = {"reset": reset_part, "reverse": reverse, "backend": backend}
        _, state = local_scan(a_part, b_part, state, **options)
        if a.ndim == 3:
            product = product * a_part.to(product_dtype).prod(1)
    # (B, width)
    return product if a.ndim == 3 else _power(a.to(product_dtype), time).expand(batch, width), state


def _adjoint_summary(
    a: Tensor, grad_h: Tensor, reset: Tensor | None, reverse: bool, backend: str | None
) -> Tensor:
    """The gradient of what enters a piece, (B, C), when nothing arrives at its other end.

    Step t hears from the step computed after it, with the decay and the reset of that step.
    """
    batch, time, width = grad_h.shape
    if time == 0:
        return grad_h.new_zeros(batch, width, dtype=accumulator_dtype(grad_h.dtype))
    hearing, heard = (slice(1, None), slice(-1)) if reverse else (slice(-1), slice(1, None))
    first, last = (-1, 0) if reverse else (0, -1)
    state = grad_h[:, last]
    a_heard = a if a.ndim == 1 else a[:, heard]
    reset_heard = None if reset is None else reset[:, heard]
    for a_part, grad_part, reset_part in _blocks(
        a_heard, grad_h[:, hearing], reset_heard, not reverse
    ):
        options: Any = {"reset": reset_part, "reverse": not reverse, "backend": backend}
        _, state = local_scan(a_part.conj(), grad_part, state, **options)
    state = state.to(accumulator_dtype(grad_h.dtype))
    leaving = (a if a.ndim == 1 else a[:, first]).conj() * state
    return leaving if reset is None else torch.where(reset[:, first, None], 0, leaving)


def _blocks(
    a: Tensor, b: Tensor, reset: Tensor | None, reverse: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Cut a piece along time, in order of processing.

    Only the last state of a summary is wanted: the states written on the way to it stay in the
    cache when they are few, and on a GPU there must be enough of them to keep it busy.
    """
    batch, time, width = b.shape
    size = 2**18 if b.device.type == "cpu" else 2**24
    steps = max(64, size // (batch * width))
    starts = range(0, time, steps)
    for start in reversed(starts) if reverse else starts:
        part = slice(start, start + steps)
        yield (
            a if a.ndim == 1 else a[:, part],
            b[:, part],
            None if reset is None else reset[:, part],
        )


def _power(a: Tensor, exponent: int) -> Tensor:
    """``a ** exponent`` of a double, wrong by at most one rounding a binary digit of it."""
    power = torch.ones_like(a)
    for digit, square in zip(reversed(f"{exponent:b}"), squared_powers(a), strict=False):
        if digit == "1":
            power = power * square
    return power


def _double_of(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


IN_PIECES["linear_scan"] = distributed_linear_scan
