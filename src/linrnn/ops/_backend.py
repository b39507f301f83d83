"""Which implementation computes an op: the choice, its reasons and the ways to override it."""

import functools
import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from linrnn.errors import BackendError, UnknownNameError, check_in

#: Every backend, fastest first: `auto` takes the first that can compute the call.
BACKENDS = ("triton", "cpu", "tree", "reference")
#: The kind of device a backend was written for; `auto` takes it on no other. The rest run anywhere.
_WRITTEN_FOR = {"triton": "cuda", "cpu": "cpu"}

_override: str | None = None


@runtime_checkable  # as the shape checker of the test run needs it to be
class ScanBackend(Protocol):
    """What a module ``linrnn.ops._scan_<backend>`` provides.

    Shapes inside: ``a`` (C,) or (B, T, C); ``b``, ``h`` (B, T, C); ``initial_state`` (S, C) or
    None; ``reset`` (B, T) or None; ``cu_seqlens`` (S + 1,) or None, and then B = 1.
    """

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this backend cannot compute on that device and dtype, or None when it can."""

    def scan(
        self,
        a: Tensor,
        b: Tensor,
        initial_state: Tensor | None,
        reset: Tensor | None,
        cu_seqlens: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return ``(h, final_state)``."""

    def scan_backward(
        self,
        a: Tensor,
        h: Tensor,
        initial_state: Tensor | None,
        reset: Tensor | None,
        cu_seqlens: Tensor | None,
        grad_h: Tensor,
        grad_final: Tensor,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of ``(a, b, initial_state)``."""


@functools.cache
def load_scan(name: str) -> ScanBackend:
    """The module that implements `linear_scan` on backend ``name``."""
    return cast(ScanBackend, importlib.import_module(f"linrnn.ops._scan_{name}"))


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Compute every op inside the ``with`` block on one backend.

    Args:
        name: one of ``reference``, ``tree``, ``cpu``, ``triton``; ``"auto"`` or ``None``
            restores the automatic choice. Overrides the environment variable
            ``LINRNN_BACKEND``. The setting is process-wide: threads share it.

    Raises:
        UnknownNameError: no such backend.

    Example:
        >>> import torch, linrnn.ops
        >>> with linrnn.ops.use_backend("reference"):
        ...     h, last = linrnn.ops.linear_scan(torch.ones(3), torch.ones(1, 4, 3))
        >>> last
        tensor([[4., 4., 4.]])
    """
    global _override
    if name is not None:
        check_in("use_backend", "backend", name, (*BACKENDS, "auto"))
    previous, _override = _override, name
    try:
        yield
    finally:
        _override = previous


def requested(explicit: str | None) -> tuple[str, str]:
    """The backend asked for and by what: the argument, `use_backend` or the environment."""
    if explicit is not None:
        if not isinstance(explicit, str):
            raise UnknownNameError("backend", explicit, (*BACKENDS, "auto"))
        return explicit, "the argument backend="
    if _override is not None:
        return _override, "linrnn.ops.use_backend"
    name = os.environ.get("LINRNN_BACKEND", "auto")
    if name not in (*BACKENDS, "auto"):
        raise UnknownNameError("backend (LINRNN_BACKEND)", name, (*BACKENDS, "auto"))
    return name, "LINRNN_BACKEND"


def choose(explicit: str | None, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """The backend that computes a call and a sentence saying why.

    Raises:
        BackendError: the backend asked for cannot compute the call, or under
            ``LINRNN_STRICT=1`` the automatic choice is a slow one.
    """
    strict = os.environ.get("LINRNN_STRICT", "0") not in ("", "0")
    return _choose(*requested(explicit), device, dtype, strict)


@functools.lru_cache(maxsize=256)
def _choose(
    name: str, asked_by: str, device: torch.device, dtype: torch.dtype, strict: bool
) -> tuple[str, str]:
    if name != "auto":
        check_in("linear_scan", "backend", name, (*BACKENDS, "auto"))
        problem = load_scan(name).unavailable(device, dtype)
        if problem:
            raise BackendError(
                f"linear_scan: backend {name!r} (asked for by {asked_by}) cannot compute this "
                f"call: {problem}. Use backend='tree', which runs everywhere."
            )
        return name, f"{name}: asked for by {asked_by}"
    skipped: list[str] = []
    for candidate in (x for x in BACKENDS if _WRITTEN_FOR.get(x, device.type) == device.type):
        problem = load_scan(candidate).unavailable(device, dtype)
        if problem is None:
            break
        skipped.append(f"{candidate} cannot ({problem})")
    if skipped:
        _announce_slow(candidate, skipped[0], strict)
    return candidate, "; ".join([f"{candidate}: the fastest that can", *skipped])


def _announce_slow(name: str, why: str, strict: bool) -> None:
    message = f"linear_scan runs on the slower backend {name!r}: {why}. `linrnn doctor` says more."
    if strict:
        raise BackendError(f"{message} Refused because LINRNN_STRICT is set.")
    warnings.warn(message, UserWarning, stacklevel=5)


def backend_report() -> dict[str, str]:
    """Each backend and, for this machine, ``"available"`` or why it is not (float32).

    Example:
        >>> from linrnn.ops import backend_report
        >>> backend_report()["tree"]
        'available'
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = {}
    for name in BACKENDS:
        target = torch.device("cpu") if name == "cpu" else device
        report[name] = load_scan(name).unavailable(target, torch.float32) or "available"
    return report
