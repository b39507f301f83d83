"""Transitions of the state in `block_scan`: matrices, or scaled permutations.

Both can be composed, which a tree needs, and both have adjoints of their own kind.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.layout import shift_time

# Sides up to which a product is a sum of columns. A training step by the tree (64 numbers, 4 rows
# of 256 steps) takes with batched products 1.05 times as long for sides of 2, 0.99 for 3, 0.94 for
# 4 and 0.76 for 8; with matrices constant in time 1.27, 0.99, 0.79 and 0.48 (2026-11-29, EPYC with
# AVX-512, one core of a shared machine, in turn). So 2 were faster here; 4 stays for its rounding.
_UNROLLED = 4


class Matrices(NamedTuple):
    """A matrix for every block: constant in time (C, n, n), or (..., C, n, n)."""

    A: Tensor

    @property
    def constant(self) -> bool:
        """Whether all steps have the same."""
        return self.A.ndim == 3

    def times(self, h: Tensor) -> Tensor:
        """The products with states (..., C, n)."""
        A, side = self.A.to(h.dtype), h.shape[-1]
        if side <= _UNROLLED:
            h_out = A[..., 0] * h[..., :1]
            for j in range(1, side):
                h_out = h_out + A[..., j] * h[..., j : j + 1]
            return h_out
        if self.constant and h.shape[-2] == 1:
            return h @ A[0].mT  # (..., 1, n)
        if self.constant and h.ndim == 4:
            rows = h.flatten(0, 1).transpose(0, 1) @ A.mT  # (C, B T, n)
            products: Tensor = rows.transpose(0, 1).unflatten(0, h.shape[:2])  # (B, T, C, n)
            return products
        return (A @ h.unsqueeze(-1)).squeeze(-1)  # (..., C, n)

    def then(self, later: "Matrices") -> "Matrices":
        """Compose: a later one after this."""
        return Matrices(later.A @ self.A)  # (..., C, n, n)

    def adjoint(self) -> "Matrices":
        """The conjugate transpose."""
        return Matrices(self.A.mH)

    def gradient(self, delta: Tensor, before: Tensor) -> Tensor:
        """The gradient of ``A``, from those of states and the states before."""
        if self.constant:
            # reshape, not flatten, which the older vmap does not know
            columns = delta.permute(2, 3, 0, 1).reshape(*delta.shape[2:], -1)  # (C, n, B T)
            # (C, B T, n)
            rows = before.conj().permute(2, 0, 1, 3).reshape(len(columns), -1, delta.shape[3])
            summed: Tensor = columns @ rows  # (C, n, n)
            return summed
        return delta.unsqueeze(-1) * before.conj().unsqueeze(-2)  # (B, T, C, n, n)

    def to(self, dtype: torch.dtype) -> "Matrices":
        """In another dtype; one that is wider, and constant, stays as it is."""
        wider = torch.promote_types(self.A.dtype, dtype)
        return Matrices(self.A.to(wider if self.constant else dtype))

    def wide(self) -> "Matrices":
        """In double precision, for every product adds to the error; mps has none."""
        return Matrices(_double(self.A))

    def steps(self, index: "slice | tuple[Tensor, Tensor]") -> "Matrices":
        """Those of some steps (B, steps), or (row, step)."""
        if self.constant:
            return self
        return Matrices(self.A[:, index] if isinstance(index, slice) else self.A[index])

    def unbind(self, time: int) -> "list[Matrices]":
        """Those of each step, without an axis of time."""
        # T times (B, blocks, n, n)
        return [self] * time if self.constant else [Matrices(A) for A in self.A.unbind(1)]

    def flip(self) -> "Matrices":
        """Backward in time."""
        return self if self.constant else Matrices(self.A.flip(1))

    def shift(self, by: int) -> "Matrices":
        """One step later, or earlier."""
        return self if self.constant else Matrices(shift_time(self.A, by))


class Permutations(NamedTuple):
    """Blocks with a single number in each column or row, times a scale, (..., C, n) both.

    A column's number stands in row ``places`` (scatter), or a row's in column ``places`` (gather).
    """

    scale: Tensor
    places: Tensor
    gather: bool

    @property
    def constant(self) -> bool:
        """They are given for every step."""
        return False

    def times(self, h: Tensor) -> Tensor:
        """The products with states (..., C, n)."""
        scale = self.scale.to(h.dtype)
        if self.gather:
            return scale * h.gather(-1, self.places)
        return torch.zeros_like(h).scatter_add(-1, self.places, scale * h)

    def then(self, later: "Permutations") -> "Permutations":
        """Compose: a later one after this."""
        if self.gather:
            scale = later.scale * self.scale.gather(-1, later.places)
            return Permutations(scale, self.places.gather(-1, later.places), True)
        scale = later.scale.gather(-1, self.places) * self.scale
        return Permutations(scale, later.places.gather(-1, self.places), False)

    def adjoint(self) -> "Permutations":
        """The conjugate transpose, of the other kind."""
        return Permutations(self.scale.conj(), self.places, not self.gather)

    def gradient(self, delta: Tensor, before: Tensor) -> Tensor:
        """The gradient of ``scale``, from those of states and the states before."""
        if self.gather:
            return delta * before.gather(-1, self.places).conj()
        return delta.gather(-1, self.places) * before.conj()

    def to(self, dtype: torch.dtype) -> "Permutations":
        """In another dtype."""
        return self._replace(scale=self.scale.to(dtype))

    def wide(self) -> "Permutations":
        """In double precision."""
        return self._replace(scale=_double(self.scale))

    def steps(self, index: "slice | tuple[Tensor, Tensor]") -> "Permutations":
        """Those of some steps (B, steps), or (row, step)."""
        where = (slice(None), index) if isinstance(index, slice) else index
        return self._replace(scale=self.scale[where], places=self.places[where])

    def unbind(self, time: int) -> "list[Permutations]":
        """Those of each step, without an axis of time."""
        # T times (B, blocks, n)
        pairs = zip(self.scale.unbind(1), self.places.unbind(1), strict=True)
        return [Permutations(scale, index, self.gather) for scale, index in pairs]

    def flip(self) -> "Permutations":
        """Backward in time."""
        return self._replace(scale=self.scale.flip(1), places=self.places.flip(1))

    def shift(self, by: int) -> "Permutations":
        """One step later, or earlier."""
        return self._replace(scale=shift_time(self.scale, by), places=shift_time(self.places, by))


Transition = Matrices | Permutations


def transition(A: Tensor, index: Tensor | None, gather: bool) -> Transition:
    """Make the transition from the arguments of the op."""
    return Matrices(A) if index is None else Permutations(A, index, gather)


def operands(A: Transition) -> tuple[Tensor, Tensor | None, bool]:
    """``(A, index, gather)``, the arguments of the op."""
    return (A.A, None, False) if isinstance(A, Matrices) else (A.scale, A.places, A.gather)


def _double(x: Tensor) -> Tensor:
    if x.device.type == "mps":
        return x
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
