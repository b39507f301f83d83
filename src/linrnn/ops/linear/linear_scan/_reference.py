"""`linear_scan` as a loop over time: the definition every other backend is compared with."""

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype, n_sequences, spans


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Never: it runs wherever PyTorch does."""
    return None


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``, one step at a time."""
    h = torch.empty(b.shape, dtype=b.dtype, device=b.device)
    final = _zeros_state(b, cu_seqlens) if initial_state is None else initial_state.clone()
    for s, steps in enumerate(spans(b, cu_seqlens, reverse)):
        seqs = slice(None) if cu_seqlens is None else slice(s, s + 1)
        for t in steps:
            previous = _clear(final[seqs], reset, t)
            final[seqs] = (a if a.ndim == 1 else a[:, t]) * previous + b[:, t]
            h[:, t] = final[seqs].to(h.dtype)
    return h, final


def backward(
    a: Tensor,
    b: None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint, one step at a time from the last to the first."""
    start = _zeros_state(h, cu_seqlens) if initial_state is None else initial_state
    grad_b = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    carry = grad_final.clone()
    # a sum over time of thousands of terms needs more digits than its terms
    sum_dtype = torch.complex128 if a.is_complex() else torch.float64
    grad_a = torch.zeros_like(a, dtype=sum_dtype if a.ndim == 1 else carry.dtype)
    for s, steps in enumerate(spans(h, cu_seqlens, reverse)):
        seqs = slice(None) if cu_seqlens is None else slice(s, s + 1)
        for i in reversed(range(len(steps))):
            t = steps[i]
            previous = h[:, steps[i - 1]] if i > 0 else start[seqs]
            delta = grad_h[:, t] + carry[seqs]
            grad_b[:, t] = delta.to(h.dtype)
            carry[seqs] = _clear((a if a.ndim == 1 else a[:, t]).conj() * delta, reset, t)
            grad_a_t = _clear(delta * previous.conj(), reset, t)
            if a.ndim == 1:
                grad_a += grad_a_t.sum(0)
            else:
                grad_a[:, t] = grad_a_t
    return grad_a.to(a.dtype), grad_b, carry


def _zeros_state(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    shape = (n_sequences(x, cu_seqlens), x.shape[-1])
    return x.new_zeros(shape, dtype=accumulator_dtype(x.dtype))


def _clear(x: Tensor, reset: Tensor | None, t: int) -> Tensor:
    return x if reset is None else torch.where(reset[:, t, None], 0, x)
