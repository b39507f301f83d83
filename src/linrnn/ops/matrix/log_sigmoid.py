"""`log_sigmoid`: logarithms of decays that are powers of sigmoids, in one pass each way."""

import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.product import Product


def log_sigmoid(x: Tensor, scale: float = 1.0) -> Tensor:
    """Return ``scale * log(sigmoid(x))``.

    Args:
        x: (batch, time, ...).
        scale: the power of the sigmoid.

    Returns:
        As ``x``, in at least float32. Gradients of any order flow to ``x``.

    Example:
        >>> import torch
        >>> log_sigmoid(torch.zeros(1, 2, 1), 0.5).flatten()
        tensor([-0.3466, -0.3466])
    """
    # a step is recorded from PyTorch's operators, and takes the same ones where it is not
    (g,) = _PRODUCT(x, float(scale)) if x.shape[1] > 1 else _definition(x, float(scale))
    return g


def _definition(x: Tensor, scale: float) -> tuple[Tensor]:
    """In PyTorch's operators: on any device, differentiable to any order."""
    return (F.logsigmoid(wide(x)) * scale,)


_PRODUCT = Product(
    "log_sigmoid",
    _definition,
    gradients=1,
    kernels={"cpu": "linrnn.ops.matrix._log_sigmoid_cpu"},
)
