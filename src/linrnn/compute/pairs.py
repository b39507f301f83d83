"""Complex numbers as pairs of real columns, for products of real matrices."""

import torch
from torch import Tensor


def rows(z: Tensor) -> Tensor:
    """Real and imaginary parts interleaved on the last axis; a real tensor as it is."""
    return torch.view_as_real(z).flatten(-2) if z.is_complex() else z


def columns(z: Tensor) -> Tensor:
    """Return the columns that multiply `rows` of a state to ``Re(z h)``."""
    return torch.view_as_real(conjugate(z)).flatten(-2) if z.is_complex() else z


def pairs(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `rows`, where ``like`` is complex."""
    if not like.is_complex():
        return x
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


def products(x: Tensor, matrix: Tensor) -> Tensor:
    """(H, n, K) times (H, K, Q), or times (1, K, Q), a matrix that all channels have in common."""
    return x @ matrix[0] if matrix.shape[0] == 1 else x @ matrix


def conjugate(z: Tensor) -> Tensor:
    """The conjugate, in new memory: a lazy one is lost inside a compiled operator."""
    result: Tensor = z.conj().resolve_conj()
    return result
