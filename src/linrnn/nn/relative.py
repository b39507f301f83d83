"""Relative positions of Transformer-XL, without its shift."""

import functools
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.modes import eager
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear


class RelativePositions(nn.Module):
    r"""The parts of Transformer-XL's scores besides keys: distances, and two vectors.

    Equation::

        score_ts = ((q_t + u) . k_s + (q_t + w) . (W R_{t-s})) / sqrt(d_head)
        R_d = [sin(d omega), cos(d omega)] in R^{d_model},  omega_i = 10000^(-2i / d_model)

    For many queries `distances` are mapped by W once; for a single one `distance_scores` maps the
    query instead, and never the distances.

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
        >>> place.distances(5, torch.zeros(1)).shape
        torch.Size([2, 5, 4])
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    def __init__(self, d_model: int, n_heads: int, d_head: int, **factory: Any) -> None:
        super().__init__()
        if d_model % 2:
            raise ArgumentError(f"RelativePositions: d_model must be even, got {d_model}.")
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head
        self.proj = Linear(d_model, n_heads * d_head, bias=False, **factory)
        self.u = nn.Parameter(torch.zeros(n_heads, d_head, **factory))
        self.w = nn.Parameter(torch.zeros(n_heads, d_head, **factory))

    def queries(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """``q_t + u`` for keys and ``q_t + w`` for distances, of q (B, T, H, d_head)."""
        return q + wide(self.u), q + wide(self.w)

    def distances(self, count: int, like: Tensor) -> Tensor:
        """``W R_d`` of the distances from 0 on, (H, count, d_head)."""
        return distance_keys(self.weight(like), self.n_heads, count)

    def weight(self, like: Tensor) -> Tensor:
        """W, (H d_head, d_model), where ``like`` is."""
        return wide(affine_of(self.proj, like)[0])


def distance_keys(weight: Tensor, n_heads: int, count: int) -> Tensor:
    """``W R_d`` of distances from 0 on, (H, count, d_head), for `linrnn.ops.attention`."""
    # (count, H, d_head)
    keys: Tensor = (far_waves(count, weight) @ weight.mT).unflatten(-1, (n_heads, -1))
    return keys.flip(0).transpose(0, 1)  # (H, count, d_head)


def distance_scores(p: Tensor, weight: Tensor, count: int) -> Tensor:
    """``p_t . (W R_d) / sqrt(d_head)`` of d from count - 1 down to 0, (B, H, T, count).

    Args:
        p: ``q_t + w``, (B, T, H, d_head).
        weight: W, (H d_head, d_model).
        count: of distances.
    """
    turn = weight.unflatten(0, (p.shape[2], -1))  # (H, K, D)
    queries = (p * p.shape[-1] ** -0.5).transpose(1, 2) @ turn  # (B, H, T, D)
    scores: Tensor = queries @ far_waves(count, weight).mT  # (B, H, T, count)
    return scores


def far_waves(count: int, like: Tensor) -> Tensor:
    """``R_d`` of the distances from count - 1 down to 0, (count, d_model); ``like`` has d_model."""
    if not eager(like):
        return _far_waves(count, like.shape[-1], like.dtype, like.device)
    # a step would spend most of its time on the same numbers again
    rounded = -(-count // _ROWS) * _ROWS
    return _kept_waves(rounded, like.shape[-1], like.dtype, like.device)[rounded - count :]


_ROWS = 256
"""Distances are kept in multiples of these, so that counts which grow do not fill the cache."""


@functools.lru_cache(maxsize=8)
def _kept_waves(count: int, d_model: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # others may ask for gradients of what is made of them
        return _far_waves(count, d_model, dtype, device)


def _far_waves(count: int, d_model: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    place = torch.arange(count - 1, -1, -1, device=device)
    cos, sin = waves(place, d_model, dtype).chunk(2, -1)
    return torch.cat([sin, cos], -1)


def waves(place: Tensor, d_model: int, dtype: torch.dtype) -> Tensor:
    """Cosines, then sines, of places (...): (..., d_model)."""
    channel = torch.arange(0, d_model, 2, dtype=torch.float64, device=place.device)
    angle = place[..., None] * 10_000 ** (-channel / d_model)
    return torch.cat([angle.cos(), angle.sin()], -1).to(dtype)
