"""The keys and values of earlier steps as the state of a layer.

A cache is ``{"k": (B, S, ...), "v": (B, S, ...), "position": (B,)}``: the keys and values of the
last S steps, oldest first, and how many steps of the current sequence have been read. For the
entries at most the last ``position`` can be seen; the others are zero. Without a window S grows
with every step; with one it is always ``window - 1``.
"""

from collections.abc import Mapping

from torch import Tensor

from linrnn.errors import ArgumentError, ShapeError, check_positive_int
from linrnn.ops.attention import remember
from linrnn.state_spec import Part, integer, real

GROWS = {"constant_memory": "without a window every key and value is kept"}
GROWS_BY_CHUNK = {"constant_memory": "without a chunk every key and value is kept"}
ALWAYS_GROWS = {"constant_memory": "every key and value is kept"}


def check_sight(where: str, window: int | None, base: float) -> None:
    """Raise unless ``window`` is None or at least 1, and ``base`` of the turns is positive."""
    if not 0 < base < float("inf"):
        raise ArgumentError(f"{where}: base must be positive and finite, got {base}.")
    if window is not None:
        check_positive_int(where, window=window)


def cache_spec(
    window: int | None, key: Mapping[str, int], value: Mapping[str, int]
) -> dict[str, Part]:
    """Describe the state, given the axes of a step's key and of its value.

    Example:
        >>> cache_spec(4, {"d_key": 2}, {"d_value": 3})["v"].shape
        (3, 3)
    """
    entries = None if window is None else window - 1
    k, v = real(entries=entries, **key), real(entries=entries, **value)
    return {"k": k, "v": v, "position": integer()}


def check_cache(where: str, state: Mapping[str, Tensor], *more: str) -> None:
    """Raise `ShapeError` unless keys and values, and ``more`` parts, are of the same steps."""
    for name in ("v", *more):
        lengths = state["k"].shape[1], state[name].shape[1]
        if lengths[0] != lengths[1]:
            raise ShapeError(
                f"{where}: state['k'] and state[{name!r}] must hold the same number of steps, "
                f"got {lengths[0]} and {lengths[1]}. Pass what this layer returned, or None."
            )


def cache_of(
    k: Tensor, v: Tensor, position: Tensor, reset: Tensor | None, window: int | None
) -> dict[str, Tensor]:
    """The state after a call: all entries read so far, and the positions (B, T) of its steps."""
    last = position[:, -1]
    return {
        "k": remember(k, last, reset, window),
        "v": remember(v, last, reset, window),
        "position": last + 1,
    }
