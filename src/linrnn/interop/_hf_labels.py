"""Labels of tokens, as a caller of a model gives them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from linrnn.errors import ArgumentError, DTypeError, check_shape
from linrnn.interop._hf_padding import WHERE


def checked_labels(name: str, labels: Any, batch: int, time: int) -> Tensor | None:
    """Labels (batch, time) in 64 bits, where the number that is not counted fits in; or None.

    Raises:
        ShapeError, DTypeError: they are no integer for each token.
    """
    if labels is None:
        return None
    if not isinstance(labels, Tensor) or "int" not in str(labels.dtype):
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise DTypeError(f"{WHERE}: {name} must be a tensor of integers, got {got}.")
    check_shape(WHERE, name, labels.shape, {"batch": batch, "time": time})
    ids: Tensor = labels.long()
    return ids


@contextmanager
def in_range(size: int) -> Iterator[None]:
    """Inside, a loss is computed: a label that is no class is an `ArgumentError`, on a CPU."""
    try:
        yield
    except IndexError as error:
        raise ArgumentError(
            f"{WHERE}: labels must be between 0 and {size - 1}, or -100 where none counts, got: "
            f"{error}"
        ) from error
