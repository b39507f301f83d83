"""`add_skip`: the sum of a sequence and of another one's channels, in one pass each way."""

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.product import Product


def add_skip(z: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Return ``z + weight * x``.

    Args:
        z: (batch, time, channels) or (batch, channels).
        weight: of every channel.
        x: like ``z``.

    Returns:
        Like ``z``, in the dtype to which all three promote. Gradients of any order flow to all
        three. Sums for the gradient of ``weight`` are float64 where ``z`` alone is bfloat16.

    Example:
        >>> import torch
        >>> add_skip(torch.ones(1, 1, 2), torch.tensor([2.0, 3.0]), torch.ones(1, 1, 2)).flatten()
        tensor([3., 4.])
    """
    # of one dtype PyTorch makes one pass too; a step is recorded from its operators
    rounded = z.dtype is torch.bfloat16 and weight.dtype is torch.float32
    if not rounded or z.ndim < 3 or z.shape[1] < 2 or x.shape != z.shape:
        return torch.addcmul(z, weight, x)
    (y,) = _PRODUCT(z, weight, x)
    return y


def _definition(z: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    return (torch.addcmul(wide(z), wide(weight), wide(x)),)


_PRODUCT = Product(
    "add_skip",
    _definition,
    gradients=3,
    kernels={
        "triton": "linrnn.ops.linear._skip_triton",
        "cpu": "linrnn.ops.linear._skip_cpu",
    },
)
