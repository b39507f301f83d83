"""What a step may use, by name: filled in by the modules that say what it is on values."""

from collections.abc import Callable
from typing import Any

#: By the name of the function in `torch`, `torch.Tensor` or `torch.nn.functional`.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
#: Attributes of a tensor that a value has.
PROPERTIES: dict[str, Callable[[Any], Any]] = {}
