"""A long causal convolution read on and on: a step costs a power of the logarithm of its length.

The inputs read so far lie in blocks, as the digits of a binary number: NEAR of them, then twice as
many, and so on, at most one of each size, the oldest the largest. What a block of S inputs adds to
the S steps that follow it is computed once, by one FFT of 2 S, when the first of these asks. A step
then is a product with the few inputs that are in no block yet, and a sum of one number a block;
every S steps a block of S is made, so that each costs O(log^2 L) in the mean and not O(L). For a
step nothing but the newest blocks is copied.

The largest block is as long as the kernel reaches back; behind it nothing is kept. So a state grows
with what was read up to 4 times the kernel's length, half of it inputs and half what they add
later. In a graph, which cannot cut by the length, inputs are kept in one piece; either kind of
state is read in either way.

Reference:
    van der Hoeven, "Relax, but Don't be Too Lazy", J. Symbolic Computation 34, 2002.
    Oncescu et al., "Flash Inference: Near Linear Time Inference for Long Convolution Sequence
    Models and Beyond", ICLR 2025, arXiv:2410.12982.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ShapeError
from linrnn.ops.conv._fft import causal_product, circular_product, strict_product
from linrnn.ops.conv.fft_conv import convolve
from linrnn.ops.conv.past import last_inputs

# 1,024 single steps of SGConv (64 channels) take 1.14 times as long with 32, 1.11 with 64, 0.95
# with 256 and 0.93 with 512, which hold more inputs (2026-11-28, EPYC with AVX-512, one core, in
# turn).
NEAR = 128
"""Inputs of the smallest block: fewer make more calls, more make more arithmetic."""


class Kernel:
    """The taps (C, K) of a convolution, that of the current input first, and what follows of them.

    Args:
        taps: float32 or float64.
    """

    def __init__(self, taps: Tensor) -> None:
        self.taps = taps
        self._recent: Tensor | None = None
        self._spectra: dict[tuple[int, int], Tensor] = {}

    def recent(self, count: int) -> Tensor:
        """The taps of the ``count`` inputs before the current one, oldest first, (count, C)."""
        if self._recent is None:
            taps = self.taps[:, 1 : NEAR + 1]
            # (NEAR, C)
            self._recent = F.pad(taps, (0, NEAR - taps.shape[1])).flip(1).t().contiguous()
        return self._recent[NEAR - count :]

    def spectrum(self, taps: int, n: int) -> Tensor:
        """The transform of length ``n`` of the first ``taps`` taps."""
        if (taps, n) not in self._spectra:
            self._spectra[taps, n] = torch.fft.rfft(self.taps[:, :taps], n)
        return self._spectra[taps, n]


class State(NamedTuple):
    """The inputs before a step, and what they are known to add to the next ones."""

    near: Tensor  # (B, N, C), in no block, oldest first
    far: list[Tensor]  # blocks (B, S, C) or (B, 2 S, C), what it adds behind it, or (B, 0, C)

    @classmethod
    def of(cls, tree: dict[str, Any]) -> "State":
        """From the plain tree that a layer keeps."""
        return cls(tree["near"], list(tree["far"]))

    def blocks(self) -> list[Tensor]:
        """The inputs of each size of blocks, (B, S or 0, C)."""
        return [block[:, : NEAR << i] for i, block in enumerate(self.far)]

    def n_inputs(self) -> int:
        """How many inputs there are."""
        return self.near.shape[1] + sum(block.shape[1] for block in self.blocks())

    def inputs(self) -> Tensor:
        """All of them, (B, P, C), oldest first."""
        return torch.cat([*reversed(self.blocks()), self.near], 1)  # (B, inputs, C)


def levels(width: int) -> int:
    """How many sizes of blocks there are for a kernel of ``width`` taps.

    Example:
        >>> levels(1), levels(129), levels(130), levels(1025)
        (1, 1, 2, 4)
    """
    return 1 + (-(-max(1, width - 1) // NEAR) - 1).bit_length()


def check_blocks(where: str, state: State) -> None:
    """Raise `ShapeError` unless the blocks of a state are of the sizes that there are."""
    for i, block in enumerate(state.far):
        size, length = NEAR << i, block.shape[1]
        if length not in (0, size, 2 * size):
            raise ShapeError(
                f"{where}: state['far'][{i}] must hold 0, {size} or {2 * size} steps, "
                f"got {length}. Pass what this layer returned, or None."
            )


def read(
    where: str,
    kernel: Kernel,
    x: Tensor,
    tree: dict[str, Any],
    reset: Tensor | None,
    *,
    strict: bool = False,
) -> tuple[Tensor, dict[str, Any]]:
    """``y_t = sum_j taps_j x_{t-j}`` of a sequence of at least one step.

    Args:
        where: the layer, for messages.
        kernel: its taps.
        x: (B, T, C), of the dtype of the taps.
        tree: the state.
        reset: boolean (B, T); no sum reaches over a True.
        strict: let no output depend on later inputs in any digit, see `fft_conv`.

    Returns:
        ``(y, tree)``.

    Raises:
        ShapeError: blocks of other sizes.
    """
    state, time = State.of(tree), x.shape[1]
    if torch.compiler.is_compiling():
        past = state.inputs()
        y = convolve(x, past, kernel.taps, reset, strict=strict)
        return y, State(_joined(x, past, reset), _emptied(state, x))._asdict()
    check_blocks(where, state)
    if reset is not None or time > max(state.n_inputs(), 1):  # one convolution of all is the least
        past = state.inputs()
        y = convolve(x, past, kernel.taps, reset, strict=strict)
        return y, _cut(_joined(x, past, reset), _emptied(state, x))._asdict()
    if state.near.shape[1] >= NEAR:  # of a graph
        state = _cut(state.inputs(), _emptied(state, x))
    ys = []
    while x.shape[1]:
        state = _filled(kernel, state)
        y, state = _piece(kernel, x, state, strict)
        x = x[:, y.shape[1] :]
        ys.append(y)
    return (torch.cat(ys, 1) if len(ys) > 1 else ys[0]), state._asdict()  # (B, T, C)


def _piece(kernel: Kernel, x: Tensor, state: State, strict: bool) -> tuple[Tensor, State]:
    """The first steps of x: as many as fill the inputs in no block, or a block."""
    near, n_near = state.near, state.near.shape[1]
    lowest = next((i for i, b in enumerate(state.far) if b.shape[1]), len(state.far) - 1)
    size = NEAR << min(lowest, (x.shape[1] // NEAR).bit_length() - 1) if x.shape[1] >= NEAR else 0
    if n_near or not size:
        x = x[:, : NEAR - n_near]
        u = torch.cat([near, x], 1)  # (B, n_near + T, C)
        if x.shape[1] == 1:
            direct = kernel.taps[:, 0] * x + (near * kernel.recent(n_near)).sum(1, keepdim=True)
        elif strict:
            direct = strict_product(u, kernel.taps, n_near)
        else:
            # of the circle, what comes around its end must fall before the steps of x
            taps = NEAR // 2 if u.shape[1] <= NEAR // 2 else NEAR
            n = 2 * taps if n_near < NEAR // 2 else 3 * NEAR // 2
            direct = circular_product(u, kernel.spectrum(taps, n), n)[:, n_near : u.shape[1]]
        full = u.shape[1] == NEAR
        next_state = state._replace(near=u[:, :0]) if full else state._replace(near=u)
        next_state = _pushed(next_state, u, 0) if full else next_state
    else:
        u = x = x[:, :size]
        direct = (strict_product if strict else causal_product)(u, kernel.taps)
        next_state = _pushed(state, u, (size // NEAR).bit_length() - 1)
    return direct + _promised(state, x.shape[1]), next_state


def _promised(state: State, count: int) -> Tensor | float:
    """Return what the blocks add to the next steps."""
    total: Tensor | float = 0.0
    since = state.near.shape[1]  # steps since a block was made: those of all smaller blocks
    for i, block in enumerate(state.far):
        size = NEAR << i
        if block.shape[1]:
            total = block[:, size + since : size + since + count] + total
            since += size
    return total


def _filled(kernel: Kernel, state: State) -> State:
    """With what every block adds to the steps after it."""
    far = list(state.far)
    for i, block in enumerate(far):
        size = NEAR << i
        if block.shape[1] == size:
            spectrum = kernel.spectrum(2 * size, 2 * size)
            added = circular_product(block, spectrum, 2 * size)[:, size:]
            far[i] = torch.cat([block, added], 1)  # (B, 2 size, C)
    return State(state.near, far)


def _pushed(state: State, block: Tensor, level: int) -> State:
    """With one more block; two of a size make one of the next."""
    far, parts = list(state.far), [block]
    while level < len(far) - 1 and far[level].shape[1]:
        parts.append(far[level][:, : NEAR << level])
        far[level] = far[level][:, :0]
        level += 1
    far[level] = torch.cat([far[level][:, :0], *reversed(parts)], 1)  # (B, NEAR << level, C)
    return State(state.near, far)


def _cut(inputs: Tensor, far: list[Tensor]) -> State:
    """All inputs in blocks, as reading them one by one leaves them; ``far`` holds none."""
    total = inputs.shape[1]
    end = total - total % NEAR
    near, far = inputs[:, end:], list(far)
    for i in range(len(far)):
        size = NEAR << i
        if end // size % 2 or (i == len(far) - 1 and end >= size):
            far[i] = torch.cat([far[i], inputs[:, end - size : end]], 1)  # (B, size, C)
            end -= size
    return State(near, far)


def _joined(x: Tensor, past: Tensor, reset: Tensor | None) -> Tensor:
    """The inputs of past and x, (B, P + T, C), those before a reset zero."""
    if reset is None:
        return torch.cat([past, x], 1)  # (B, P + T, C)
    return last_inputs(x, F.pad(past, (0, 0, x.shape[1], 0)), reset)  # (B, P, C)


def _emptied(state: State, x: Tensor) -> list[Tensor]:
    """No blocks, with a gradient if old ones or the inputs have one."""
    return [torch.cat([block[:, :0], x[:, :0]], 1) for block in state.far]  # (B, 0, C) each
