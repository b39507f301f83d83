"""`low_rank_keys`: what the memory of RWKV-7 is written with, in one pass each way."""

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.product import Product


def low_rank_keys(
    key: Tensor,
    rate: Tensor,
    decay: Tensor,
    direction: Tensor,
    relax: Tensor,
    *,
    heads: int,
    scale: float,
    eps: float = 1e-12,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys, the low rank and the decays of a memory that replaces what it has at a key.

    Equation, in every head, with ``s = sigmoid(rate)``::

        c = key * direction / sqrt(sum((key * direction)^2) + eps)
        k = key * (1 + (s - 1) * relax),   a = -c,   b = c * s,   g = scale * sigmoid(decay)

    Args:
        key, rate, decay: (batch, time, channels).
        direction, relax: of every channel.
        heads: parts of the channels.
        scale: of the logarithms of decays.
        eps: added to the squared length.
        dtype: of k, a and b; None is that of ``key``.

    Returns:
        ``(k, a, b, g)``, each (batch, time, channels); g is in at least float32, in which all are
        computed. Gradients of any order flow to the five tensors.

    Example:
        >>> key, zero, one = torch.tensor([[[3.0, 4.0]]]), torch.zeros(1, 1, 2), torch.ones(2)
        >>> k, a, b, g = low_rank_keys(key, zero, zero, one, one, heads=1, scale=-1.0)
        >>> k.flatten(), b.flatten(), g.flatten()
        (tensor([1.5000, 2.0000]), tensor([0.3000, 0.4000]), tensor([-0.5000, -0.5000]))

    Reference:
        Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", 2025,
        arXiv:2503.14456.
    """
    constants = heads, float(scale), float(eps), dtype or key.dtype
    arguments = key, rate, decay, direction, relax, *constants
    # a step is recorded from PyTorch's operators, and takes the same ones where it is not
    k, a, b, g = _PRODUCT(*arguments) if key.shape[1] > 1 else _definition(*arguments)
    return k, a, b, g


def _definition(
    key: Tensor,
    rate: Tensor,
    decay: Tensor,
    direction: Tensor,
    relax: Tensor,
    heads: int,
    scale: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    key, s = wide(key), wide(rate).sigmoid()
    c = (key * wide(direction)).unflatten(-1, (heads, -1))  # (B, T, heads, channels)
    c = (c * (c.square().sum(-1, keepdim=True) + eps).rsqrt()).flatten(-2)  # (B, T, keys)
    k = key * (1 + (s - 1) * wide(relax))
    return k.to(dtype), (-c).to(dtype), (c * s).to(dtype), scale * wide(decay).sigmoid()


_PRODUCT = Product(
    "low_rank_keys",
    _definition,
    gradients=5,
    kernels={
        "triton": "linrnn.ops.matrix._low_rank_keys_triton",
        "cpu": "linrnn.ops.matrix._low_rank_keys_cpu",
    },
)
