"""Shared by layers whose state follows a learned vector field: its solvers, its map."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

Field = Callable[[Any], Any]


def _euler(f: Field, h: Any, s: Any) -> Any:
    return h + s * f(h)


def _midpoint(f: Field, h: Any, s: Any) -> Any:
    return h + s * f(h + 0.5 * s * f(h))


def _rk4(f: Field, h: Any, s: Any) -> Any:
    k1 = f(h)
    k2 = f(h + 0.5 * s * k1)
    k3 = f(h + 0.5 * s * k2)
    k4 = f(h + s * k3)
    return h + s * (k1 + 2 * k2 + 2 * k3 + k4) * (1 / 6)


def _rk4_38(f: Field, h: Any, s: Any) -> Any:
    k1 = f(h)
    k2 = f(h + (1 / 3) * s * k1)
    k3 = f(h + s * (k2 - (1 / 3) * k1))
    k4 = f(h + s * (k1 - k2 + k3))
    return h + s * (k1 + 3 * (k2 + k3) + k4) * (1 / 8)


SOLVERS: Mapping[str, Callable[[Field, Any, Any], Any]] = {
    "euler": _euler,
    "midpoint": _midpoint,
    "rk4": _rk4,
    "rk4_38": _rk4_38,
}
"""A step of length s of ``h' = f(h)``: of order 1, 2, 4 and 4 at as many evaluations."""


def flow(f: Field, h: Any, dt: Any, solver: str, substeps: int) -> Any:
    """``h' = f(h)`` for the time ``dt``, in ``substeps`` equal steps.

    Example:
        >>> round(flow(lambda h: -h, 1.0, 1.0, "rk4", 4), 4)
        0.3679
    """
    s = dt * (1 / substeps)
    for _ in range(substeps):
        h = SOLVERS[solver](f, h, s)
    return h


def small_normal(*linears: nn.Linear, std: float = 0.1) -> None:
    """Weights of a vector field that hardly moves: N(0, std^2), no bias."""
    for linear in linears:
        nn.init.normal_(linear.weight, std=std)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
