"""What PyTorch's functions are on the values of a step: all that the tracer knows."""

from collections.abc import Callable
from typing import Any

from linrnn.cells import _activations as _activations
from linrnn.cells import _arithmetic as _arithmetic
from linrnn.cells import _rounding as _rounding
from linrnn.cells._table import FUNCTIONS as FUNCTIONS
from linrnn.cells._table import written
from linrnn.cells._values import Value

#: Attributes of a tensor that a value has.
PROPERTIES: dict[str, Callable[[Value], Any]] = {
    "real": lambda x: Value(x.writer, x.re),
    "imag": lambda x: Value(x.writer, x.pair()[1]),
    "H": lambda x: x.mT,
}


def functions() -> tuple[str, ...]:
    """All that a step may call, as one writes it: PyTorch's functions and those of `linrnn.cells`.

    Many are methods of a tensor as well, ``h.tanh()``; the operators of Python are those of
    tensors but for ``//``. Generated from the table by which a step is read.

    Returns:
        Names with their modules, sorted.

    Example:
        >>> from linrnn.cells import functions
        >>> "torch.tanh" in functions(), "torch.asin" in functions()
        (True, False)
    """
    return tuple(sorted({x for x in map(written, FUNCTIONS) if x is not None}))
