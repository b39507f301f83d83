"""Reset masks for mixers that do not hand them to an op."""

from torch import Tensor

from linrnn.ops import _arguments


def check_reset(where: str, reset: Tensor | None, x: Tensor) -> None:
    """Raise unless ``reset`` is None or a boolean (batch, time) mask for ``x``."""
    _arguments.check_reset(where, reset, x.shape[0], x.shape[1])
    _arguments.check_device(where, "x", x.device, reset=reset)
