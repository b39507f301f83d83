"""PyTorch's functions on the traced values of a step: every function that the tracer reads."""

from linrnn.engine import activations as activations
from linrnn.engine import arithmetic as arithmetic
from linrnn.engine import rounding as rounding
from linrnn.engine.table import FUNCTIONS as FUNCTIONS
from linrnn.engine.table import written


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
