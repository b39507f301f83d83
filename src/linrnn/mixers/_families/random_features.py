"""Features of random directions, which training can draw anew: Performer, RFA, arc cosine."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._families.kernel_attention import Features
from linrnn.nn import l2_normalise
from linrnn.nn.directions import RandomDirections
from linrnn.nn.linear import Linear


def add_directions(
    layer: Any, n_features: int, redraw_every: int | None, *, shared: bool = False, **options: Any
) -> None:
    """Give a layer directions, and count the steps of the optimiser since they were drawn.

    Args:
        layer: a `KernelAttention` that has its heads, and no parameter drawn yet.
        n_features: directions.
        redraw_every: steps of the optimiser, or None for never.
        shared: by all heads; each has its own otherwise.
        options: of `RandomDirections`.
    """
    name = type(layer).__name__
    check_positive_int(name, n_features=n_features)
    if redraw_every is not None:
        check_positive_int(name, redraw_every=redraw_every)
    layer.n_features, layer.redraw_every = n_features, redraw_every
    heads = 1 if shared else layer.n_heads
    layer.directions = RandomDirections(n_features, layer.d_key, heads, **options)
    layer.register_buffer("updates", torch.zeros_like(layer.directions.draws))


def reset_directions(layer: Any) -> None:
    """Draw the directions by a new seed, and count from zero."""
    layer.directions.reset_parameters()
    layer.updates = torch.zeros_like(layer.updates)


def redraw(layer: Any) -> None:
    """Draw the directions anew, and count from zero."""
    layer.directions.redraw()
    layer.updates = torch.zeros_like(layer.updates)


def count_update(layer: Any) -> None:
    """`Mixer.after_update`: draw the directions anew, every ``redraw_every`` steps."""
    if layer.redraw_every is None:
        return
    layer.updates = layer.updates + 1
    if int(layer.updates) >= layer.redraw_every:
        layer.redraw()


def add_unit_features(
    layer: Any, n_features: int, gate: bool, redraw_every: int | None, **factory: Any
) -> None:
    """Give a layer what `unit_features` reads: ``sigma``, ``gate_proj`` or None, and directions.

    Args:
        layer: a `KernelAttention` that has its heads, and no parameter drawn yet.
        n_features: directions of each head.
        gate: whether there is a gate by which the memory forgets.
        redraw_every: as of `add_directions`.
        factory: ``device`` and ``dtype``.
    """
    layer.sigma = nn.Parameter(torch.empty(layer.n_heads, layer.d_key, **factory))
    layer.gate_proj = Linear(layer.d_model, layer.n_heads, **factory) if gate else None
    add_directions(layer, n_features, redraw_every, **factory)


@torch.no_grad()
def reset_unit_features(layer: Any) -> None:
    """Draw the directions; scales of 1, and a gate of 0.9 at an input of 0."""
    reset_directions(layer)
    layer._draw_glorot(2**-0.5)
    nn.init.ones_(layer.sigma)
    if layer.gate_proj is not None:
        nn.init.xavier_uniform_(layer.gate_proj.weight, 2**-0.5)
        nn.init.constant_(layer.gate_proj.bias, torch.tensor(0.9, device="cpu").logit().item())


def unit_features(
    layer: Any,
    phi: Callable[[Tensor], Tensor],
    sigma: Tensor,
    q: Tensor,
    k: Tensor,
    x: Tensor,
    unit: Callable[[Tensor], Tensor] = l2_normalise,
) -> Features:
    """``phi`` of the products of scaled unit queries and keys with the directions of a layer.

    Args:
        layer: one that `add_unit_features` was called for.
        phi: features from products.
        sigma: the scales, at least float32.
        q, k, x: see `KernelAttention._features`.
        unit: scales vectors to length 1.
    """
    q, k = (phi(layer.directions(unit(z) * sigma)) for z in (q, k))
    if layer.gate_proj is None:
        return Features(q, k)
    gate = wide(layer.gate_proj(x.to(layer.gate_proj.weight.dtype)))
    return Features(q, k * (-gate).sigmoid()[..., None], F.logsigmoid(gate))
