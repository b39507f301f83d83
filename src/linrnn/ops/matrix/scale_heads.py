"""`scale_heads`: the channels of each head times a number of its step."""

from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.product import Product


def scale_heads(x: Tensor, scale: Tensor) -> Tensor:
    """Return ``scale * x`` in the dtype of ``x``, one number for all channels of a head.

    Args:
        x: (batch, time, heads, channels).
        scale: (batch, time, heads).

    Returns:
        Like ``x``; products, and sums for the gradient of ``scale``, are computed in at least
        float32. Gradients of any order flow to both.

    Example:
        >>> import torch
        >>> scale_heads(torch.ones(1, 1, 2, 1), torch.tensor([[[2.0, 3.0]]])).flatten()
        tensor([2., 3.])
    """
    # a step is recorded from PyTorch's operators, and takes the same ones where it is not
    (y,) = _PRODUCT(x, scale) if x.shape[1] > 1 else _definition(x, scale)
    return y


def _definition(x: Tensor, scale: Tensor) -> tuple[Tensor]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    return ((wide(scale)[..., None] * wide(x)).to(x.dtype),)


_PRODUCT = Product(
    "scale_heads",
    _definition,
    gradients=2,
    kernels={
        "triton": "linrnn.ops.matrix._scale_heads_triton",
        "cpu": "linrnn.ops.matrix._scale_heads_cpu",
    },
)
