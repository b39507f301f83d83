"""Pieces that both rules share where levels are read by blocks: steps, and what a block makes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Steps(NamedTuple):
    """A stretch of time, one memory a row; E heads share its queries and keys."""

    q: Tensor  # (R, T, K)
    k: Tensor  # (R, T, K)
    v: Tensor  # (R, T, E, V)
    g: Tensor  # (R, T, E)
    scales: Tensor  # (R, T, E, L)
    beta: Tensor | None = None  # (R, T, E): the delta rule, of one head a row

    def cut(self, begin: int, end: int) -> "Steps":
        """The steps from ``begin`` to before ``end``."""
        parts: Any = (None if x is None else x[:, begin:end] for x in self)
        return Steps(*parts)

    def blocks(self, size: int) -> "Steps":
        """Blocks of ``size`` steps as rows: (R blocks, size, ...)."""
        # (n, C, ...) each
        parts: Any = (None if x is None else x.reshape(-1, size, *x.shape[2:]) for x in self)
        return Steps(*parts)


class Within(NamedTuple):
    """A block's own reads and writes, and how it reads and keeps levels before it."""

    outputs: Tensor  # (R, T, E, V)
    written: Tensor  # (R, K, E, V): the sum of all writes
    levels: dict[int, Tensor]  # of the last block each level of it, (R, K, E, V)
    queries: Tensor | None = None  # (R, T, K): of levels before
    since: Tensor | None = None  # (R, T, E): the decay of these reads, unless the queries have it
    decay: Tensor | None = None  # of levels before: (R, 1, E, 1), or of the delta rule (R, K, K)

    def keep(self, S: Tensor) -> Tensor:
        """A level before the block as it is behind it."""
        assert self.decay is not None
        if self.decay.ndim == 4:
            return self.decay * S
        return (self.decay @ S.flatten(2)).view_as(S)  # (R, K, E, V)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second of each pair of rows."""
    first, second = x.unflatten(0, (-1, 2)).unbind(1)  # (n, C, ...) each
    return first, second


def pair_decays(g: Tensor) -> Tensor:
    """How each step has decayed at each later one, (..., C, C) of logarithms (..., C)."""
    return g[..., None].expand(*g.shape, g.shape[-1]).tril(-1).cumsum(-2).exp()  # (..., C, C)


def pair_weights(scales: Tensor) -> Tensor:
    """The scale of each pair's level, (..., C, C) of (..., C, L)."""
    size, top = scales.shape[-2], scales.shape[-1] - 1
    step = torch.arange(size, device=scales.device)
    differing_bits = step[:, None] ^ step  # the level of a pair is how many binary digits this has
    digits = torch.arange(size.bit_length() - 1, device=scales.device)
    level = (differing_bits[..., None] >> digits > 0).sum(-1).clamp(max=top)  # (C, C)
    return scales.gather(-1, level.expand(*scales.shape[:-1], size))  # (..., C, C)
