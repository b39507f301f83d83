"""`log_decays`: logarithms of decays that are double exponentials, in one pass each way."""

from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.product import Product


def log_decays(x: Tensor, base: Tensor, limit: float) -> Tensor:
    """Return ``-exp(x + base)`` with the sum held within ``limit``; beyond, the gradient is 0.

    Args:
        x: (batch, time, channels).
        base: of every channel.
        limit: of the magnitude of the sum.

    Returns:
        (batch, time, channels), in at least float32. Gradients of any order flow to both.

    Example:
        >>> import torch
        >>> log_decays(torch.zeros(1, 2, 1), torch.zeros(1), 40.0).flatten()
        tensor([-1., -1.])
    """
    arguments = x, base, float(limit)
    # a step is recorded from PyTorch's operators, and takes the same ones where it is not
    (g,) = _PRODUCT(*arguments) if x.shape[1] > 1 else _definition(*arguments)
    return g


def _definition(x: Tensor, base: Tensor, limit: float) -> tuple[Tensor]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    return (-(wide(x) + wide(base)).clamp(-limit, limit).exp(),)


_PRODUCT = Product(
    "log_decays",
    _definition,
    gradients=2,
    kernels={
        "triton": "linrnn.ops.matrix._log_decays_triton",
        "cpu": "linrnn.ops.matrix._log_decays_cpu",
    },
)
