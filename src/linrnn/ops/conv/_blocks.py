"""Systems of one input and one output, in blocks of time: matrix products inside a block.

A state is carried over the blocks, and is held once a block: by a scan where the system is
diagonal, by a product with a matrix a block where it is not.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.modes import eager
from linrnn.compute.pairs import columns, pairs, products, rows
from linrnn.ops.conv._block_layout import finite, from_blocks, to_blocks
from linrnn.ops.conv._fused_blocks import FusedBlocks, toeplitz
from linrnn.ops.conv.past import recall
from linrnn.ops.linear.linear_scan import linear_scan


class Blocks(NamedTuple):
    """The matrices of one block of Q steps, all real: a complex mode is two columns of K.

    ``into`` and ``out`` are (1, ...) where the channels share them.
    """

    kernel: Tensor  # (H, Q): the response to an impulse
    into: Tensor  # (H, Q, K): what each input leaves in the state at the end
    out: Tensor  # (H, K, Q): what a state before the block adds to each output
    decay: Tensor  # (H, M), or a matrix (H, K, K)
    weights: Tensor | None = None  # (H, M): what a state is multiplied with before a shared `out`

    def scan(self, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """A whole number of blocks: ``u`` (B, T, H), ``h`` (B, H, M); ``(y, h)``."""
        matrices = (self.kernel, self.into, self.out, self.decay)
        fusible = self.weights is None and reset is None
        if fusible and eager(*matrices, u, h):
            y, h = FusedBlocks.apply(_fused_definition, u, h, *matrices)
            return y, h
        return self._scan(u, h, reset)

    def _scan(self, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        size = self.kernel.shape[1]
        shape = (u.shape[0], u.shape[1] // size, size)
        # cut (B, T/Q, Q), x (H, B * T/Q, Q)
        cut, x = None if reset is None else reset.view(shape), to_blocks(u, size)
        if cut is None:
            y, left = self._outputs_from_zero(x)
        else:
            later = cut.flip(-1).cumsum(-1).flip(-1) > cut  # a reset after it in the block
            # (H, B * T/Q, K)
            left = products(torch.where(later.reshape(-1, size), 0, x), self.into)
            y = self._inside(u, cut).permute(2, 0, 1)  # (H, B * T/Q, Q)
        entering, h = self._carry(left, h, shape, None if cut is None else cut.any(-1))
        if self.weights is not None:
            entering = columns(self.weights[:, None] * pairs(entering, h))
        if cut is not None:
            y = y + torch.where(
                (cut.cumsum(-1) > 0).reshape(-1, size), 0, products(entering, self.out)
            )  # (H, rows, Q)
        elif self.weights is None:
            y = torch.baddbmm(y, entering, self.out)  # (H, B * T/Q, Q)
        else:
            y = y + products(entering, self.out)
        return from_blocks(y, u.shape), h

    def last(self, u: Tensor, h: Tensor) -> Tensor:
        """The state after a whole number of blocks, without outputs."""
        size = self.kernel.shape[1]
        left = products(to_blocks(u, self.kernel.shape[1]), self.into)
        return self._carry(left, h, (u.shape[0], u.shape[1] // size, size), None)[1]

    def _outputs_from_zero(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (H, n, Q) and states left (H, n, K) of blocks that nothing cuts, from zero."""
        safe, mark = finite(x)
        y, left = safe @ toeplitz(self.kernel), products(safe, self.into)  # (H, n, Q), (H, n, K)
        return (y, left) if mark is None else (y + mark, left + mark[..., -1:])

    def _carry(
        self, left: Tensor, h: Tensor, shape: tuple[int, int, int], cut: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The states before every block, (H, B * T/Q, K), and the last one."""
        batch, count, _ = shape
        left = left.view(left.shape[0], batch, count, left.shape[-1])  # (H, B, T/Q, K)
        if self.decay.ndim == 3:
            return _dense_carry(self.decay, left, h, cut)
        steps = pairs(left.permute(1, 2, 0, 3), h)  # (B, T/Q, H, M)
        # (B, T/Q, H, M), (B, H, M)
        states, last = linear_scan(self.decay.expand(h.shape[1:]), steps, h, reset=cut)
        states = torch.cat(  # one copy for the shift and the new layout
            [rows(s).permute(2, 0, 1, 3) for s in (h[:, None], states[:, :-1])], 2
        )  # (H, B, n, K)
        return states.flatten(1, 2), last  # (H, B * T/Q, K), (B, H, M)

    def _inside(self, u: Tensor, cut: Tensor) -> Tensor:
        """Outputs (B * T/Q, Q, H) from the inputs of the same block and the same sequence."""
        size = cut.shape[-1]
        # (B * T/Q, Q, H), (B * T/Q, Q)
        u, cut = u.reshape(-1, size, u.shape[-1]), cut.reshape(-1, size)
        zero_past = u.new_zeros(()).expand(u.shape)  # (B * T/Q, Q, H)
        y = self.kernel[:, 0] * u
        for delay in range(1, size):
            y = y + self.kernel[:, delay] * recall(u, zero_past, delay, cut)
        return y


def _fused_definition(u: Tensor, h: Tensor, *matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `FusedBlocks` in operators that can be differentiated to any order."""
    return Blocks(*matrices)._scan(u, h, None)


def _dense_carry(
    decay: Tensor, left: Tensor, h: Tensor, cut: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute `Blocks._carry` for a dense transition, block after block."""
    state, entering = rows(h).transpose(0, 1), []  # (H, B, K)
    for i, added in enumerate(left.unbind(2)):
        entering.append(state)
        if cut is not None:
            state = torch.where(cut[:, i, None], 0, state)
        state = torch.baddbmm(added, state, decay)  # (H, B, K)
    # (H, B * T/Q, K), (B, H, M)
    return torch.stack(entering, 2).flatten(1, 2), pairs(state.transpose(0, 1), h)


def add_now(kernel: Tensor, d: Tensor) -> Tensor:
    """The skip as part of the response (H, T) to an impulse: no separate pass over the input."""
    return torch.cat([kernel[:, :1] + d.to(kernel.dtype)[:, None], kernel[:, 1:]], 1)  # (H, T)


def spans(time: int, size: int) -> list[tuple[int, int, int]]:
    """List ``(begin, end, steps per block)`` of the full blocks and of a shorter last one."""
    blocks_end = time - time % size
    candidates = (0, blocks_end, size), (blocks_end, time, time - blocks_end)
    return [(lo, hi, length) for lo, hi, length in candidates if lo < hi]


def scan_all(
    parts: Iterable[tuple[int, int, Blocks]], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One part of time after the other, each in its own blocks: ``(y, h)``."""
    ys = []
    for lo, hi, blocks in parts:
        y, h = blocks.scan(u[:, lo:hi], h, None if reset is None else reset[:, lo:hi])
        ys.append(y)
    return (torch.cat(ys, 1) if len(ys) > 1 else ys[0]), h  # (B, T, H), (B, H, M)


def scan_shapes(
    system: Sequence[Tensor], u: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return empty tensors like the outputs and the last state, for ``u`` (B, T, H) and a state."""
    return u.new_empty(u.shape), h.new_empty(h.shape)


def convolve_shapes(system: Sequence[Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The same of a form that cannot reset."""
    return scan_shapes(system, u, h, None)
