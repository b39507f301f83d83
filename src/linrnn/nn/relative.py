"""Relative positions of Transformer-XL, without its shift."""

from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.nn.affine import affine_of
from linrnn.ops._precision import wide


class RelativePositions(nn.Module):
    r"""Queries and keys whose products are those of Transformer-XL.

    Equation::

        q'_t . k'_s / sqrt(width) = ((q_t + u) . k_s + (q_t + w) . (W R_{t-s})) / sqrt(d_head)
        R_d = [sin(d omega), cos(d omega)] in R^{d_model},  omega_i = 10000^(-2i / d_model)

    ``R_{t-s}`` is ``R_t`` turned back by s, so the second term is a product of a vector of t and
    a vector of s, and any part of a sequence may be read alone. ``width`` is d_head + d_model.

    Args:
        d_model: channels of R, an even number.
        n_heads, d_head: of queries and keys.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: an odd d_model.

    Reference:
        Dai et al. 2019, arXiv:1901.02860, section 3.3.

    Example:
        >>> place = RelativePositions(6, 2, 4)
        >>> place.queries(torch.zeros(1, 3, 2, 4), begin=5).shape
        torch.Size([1, 3, 2, 10])
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, **factory: Any) -> None:
        super().__init__()
        if d_model % 2:
            raise ArgumentError(f"RelativePositions: d_model must be even, got {d_model}.")
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head
        self.proj = nn.Linear(d_model, n_heads * d_head, bias=False, **factory)
        self.u = nn.Parameter(torch.zeros(n_heads, d_head, **factory))
        self.w = nn.Parameter(torch.zeros(n_heads, d_head, **factory))

    def queries(self, q: Tensor, begin: int) -> Tensor:
        """``q'`` (B, T, H, width) of queries (B, T, H, d_head) at the places from ``begin`` on."""
        found = torch.cat(
            self.parts(q, torch.arange(begin, begin + q.shape[1], device=q.device)), -1
        )
        size: Tensor = found * (found.shape[-1] / self.d_head) ** 0.5
        return size

    def parts(self, q: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """What meets keys, (B, T, H, d_head), and what meets `waves`, (B, T, H, d_model).

        The sum of both products, times ``d_head ** -0.5``, is the score. ``place`` is (T,) or
        (B, T), where rows are at places of their own.
        """
        turn = wide(affine_of(self.proj, q)[0]).unflatten(0, (self.n_heads, -1))  # (H, K, D)
        s, c = ((q + wide(self.w)).unsqueeze(-2) @ turn).squeeze(-2).chunk(2, -1)
        cos, sin = waves(place, self.d_model, q.dtype).unsqueeze(-2).chunk(2, -1)
        return q + wide(self.u), torch.cat([s * sin + c * cos, c * sin - s * cos], -1)

    def keys(self, k: Tensor, begin: int = 0) -> Tensor:
        """``k'`` (B, S, H, width) of keys (B, S, H, d_head)."""
        place = torch.arange(begin, begin + k.shape[1], device=k.device)
        found = waves(place, self.d_model, k.dtype).unsqueeze(-2)
        return torch.cat([k, found.expand(*k.shape[:3], -1)], -1)

    def pairs(self, q: Tensor) -> Tensor:
        """``(q_t + u, q_t + w)`` side by side, (B, T, H, 2 d_head): for keys and `distances`."""
        return torch.cat([q + wide(self.u), q + wide(self.w)], -1)

    def distances(self, count: int, like: Tensor) -> Tensor:
        """``W R_d`` of the distances from 0 on, (H, count, d_head)."""
        place = torch.arange(count, device=like.device)
        cos, sin = waves(place, self.d_model, like.dtype).chunk(2, -1)
        found = torch.cat([sin, cos], -1) @ wide(affine_of(self.proj, like)[0]).mT
        keys: Tensor = found.unflatten(-1, (self.n_heads, -1)).transpose(0, 1)
        return keys


def waves(place: Tensor, d_model: int, dtype: torch.dtype) -> Tensor:
    """Cosines, then sines, of places (...): (..., d_model)."""
    channel = torch.arange(0, d_model, 2, dtype=torch.float64, device=place.device)
    angle = place[..., None] * 10_000 ** (-channel / d_model)
    return torch.cat([angle.cos(), angle.sin()], -1).to(dtype)
