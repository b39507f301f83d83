"""The recurrence and its adjoint as a loop in NumPy, quick enough for a million steps."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Solution(NamedTuple):
    """States and gradients of one scan."""

    h: Tensor
    grad_a: Tensor
    grad_b: Tensor


def loop_solution(a: Tensor, b: Tensor, grad: Tensor) -> Solution:
    """``h_t = a_t h_{t-1} + b_t`` and its gradients, each step in the dtype of ``b``.

    The gradient of a constant ``a`` is a sum over time; it is taken in double precision, as all
    backends do, so that the sum's own error does not hide that of the recurrence.

    Args:
        a: (C,) or (T, C).
        b, grad: (T, C); ``grad`` belongs to the states.
    """
    decay = np.broadcast_to(a.numpy(), b.shape)
    h, delta = b.numpy().copy(), grad.numpy().copy()
    conj = decay.conj()
    scratch = np.empty_like(h[0])
    for t in range(1, len(h)):
        np.multiply(decay[t], h[t - 1], out=scratch)
        h[t] += scratch
    for t in range(len(h) - 2, -1, -1):
        np.multiply(conj[t + 1], delta[t + 1], out=scratch)
        delta[t] += scratch
    grad_a = np.zeros_like(delta)
    grad_a[1:] = delta[1:] * h[:-1].conj()
    if a.ndim == 1:
        wide = np.complex128 if a.is_complex() else np.float64
        grad_a = grad_a.sum(0, dtype=wide).astype(grad_a.dtype)
    return Solution(*map(torch.from_numpy, (h, grad_a, delta)))
