"""`log_sigmoid` by the native kernel of `log_decays`, which does either."""

from torch import Tensor

from linrnn.ops.matrix._log_decays_cpu import gradients, logarithms
from linrnn.ops.matrix._log_decays_cpu import unavailable as unavailable


def forward(x: Tensor, scale: float) -> tuple[Tensor]:
    """The logarithms."""
    return (logarithms(x, None, True, 0, scale),)


def backward(x: Tensor, scale: float, grad: Tensor) -> tuple[Tensor]:
    """The gradient of ``x``."""
    return (gradients(x, None, grad, True, 0, scale)[0],)
