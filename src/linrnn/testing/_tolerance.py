"""How far two results may differ: a small multiple of what rounding does to a plain loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linrnn._process.ambient import Ambient

#: Allowed multiple of a same-dtype loop's own error.
LOOP_MULTIPLE = 4.0
#: Allowed roundings of the largest value, where the loop happens to make no error.
ROUNDINGS = 4.0


class BrokenPropertyError(AssertionError):
    """A tested property is missing; says which, in which case and by how much."""


@dataclass
class Worst:
    """The comparison that came nearest to what is allowed, or went furthest beyond."""

    error: float | None = None
    """In units of the allowed one, so above 1 where it is too large; None without a comparison."""
    what: str = ""
    """Names the case."""


_RECORD: Ambient[Worst] = Ambient("worst error")


@contextmanager
def recording() -> Iterator[Worst]:
    """Inside, the worst error that `check_close` sees is noted down.

    Example:
        >>> with recording() as worst:
        ...     check_close("sum", torch.tensor(1 + 2**-23), torch.tensor(1.0))
        >>> worst.error, worst.what
        (0.25, 'sum')
    """
    with _RECORD.set(Worst()) as worst:
        yield worst


def epsilon(dtype: torch.dtype) -> float:
    """Distance from 1 to the next number of ``dtype``; 0 for integers, which are exact."""
    exact = not (dtype.is_floating_point or dtype.is_complex)
    return 0.0 if exact else torch.finfo(dtype).eps


def difference(got: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, in double precision; NaN and infinity must match exactly."""
    dtype = torch.complex128 if expected.is_complex() else torch.float64
    got, expected = got.detach().to(dtype), expected.detach().to(dtype)
    if got.shape != expected.shape:
        return float("inf")
    if got.numel() == 0:
        return 0.0
    gap = (got - expected).abs()
    same = (got == expected) | (got.isnan() & expected.isnan())
    return float(torch.where(same, 0.0, gap).nan_to_num(nan=float("inf")).max())


def check_close(
    what: str,
    got: Tensor,
    expected: Tensor,
    *,
    loop_error: float = 0.0,
    roundings: float = ROUNDINGS,
) -> None:
    """Raise `BrokenPropertyError` unless ``got`` is ``expected`` up to rounding of ``got``'s dtype.

    Args:
        what: names the case in the message.
        got: the result under test.
        expected: the true values, in at least the precision of ``got``.
        loop_error: absolute error a loop in the dtype of ``got`` makes.
        roundings: allowed roundings of the largest value besides.
    """
    if got.shape != expected.shape:
        raise BrokenPropertyError(
            f"{what}: shape must be {tuple(expected.shape)}, got {tuple(got.shape)}"
        )
    finite = expected.detach().abs()[expected.detach().isfinite()]
    scale = float(finite.max()) if finite.numel() else 0.0
    allowed = LOOP_MULTIPLE * loop_error + roundings * epsilon(got.dtype) * scale
    error = difference(got, expected)
    _note(what, error, allowed)
    if not error <= allowed:
        raise BrokenPropertyError(
            f"{what}: differs by {error:.3g} at a scale of {scale:.3g}; allowed {allowed:.3g}, "
            f"of which a plain loop's own error is {loop_error:.3g}"
        )


def check_agrees(
    what: str,
    got: Tensor,
    expected: Tensor,
    others: Callable[[], Any] | None,
    key: Any,
    *,
    roundings: float,
) -> None:
    """`check_close` of what rounds as well; where sums cancel, up to its own error.

    Args:
        what, got, roundings: as of `check_close`.
        expected: the values of another form in the dtype of ``got``.
        others: makes such values in float32 or float64, which say what error ``expected`` has
            itself; None where nothing does.
        key: of ``expected`` among them.
    """
    try:
        check_close(what, got, expected, roundings=roundings)
    except BrokenPropertyError:
        if others is None:
            raise
        other = others()[key]
        # of the less precise one; the error of the other is smaller by the ratio of their roundings
        coarse = max(epsilon(expected.dtype), epsilon(other.dtype))
        own = difference(other, expected) * epsilon(expected.dtype) / coarse if coarse else 0.0
        check_close(what, got, expected, loop_error=own, roundings=roundings)


def _note(what: str, error: float, allowed: float) -> None:
    worst = _RECORD.get()
    share = 0.0 if error == 0 else error / allowed if allowed else float("inf")
    if worst is not None and (worst.error is None or share > worst.error):
        worst.error, worst.what = share, what


def check_true(what: str, claim: bool) -> None:
    """Raise `BrokenPropertyError` unless ``claim`` holds."""
    if not claim:
        raise BrokenPropertyError(what)
