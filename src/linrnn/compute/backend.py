"""Choose the implementation that computes an op; with the reasons, and ways to override it."""

import functools
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from linrnn._process.ambient import Ambient, steered
from linrnn.errors import BackendError, UnknownNameError, check_in

#: Every backend, fastest first: `auto` takes the first with kernels that can compute the call.
BACKENDS = ("triton", "cpu", "tree", "reference")
#: The kind of device a backend was written for; `auto` takes it on no other. The rest run anywhere.
WRITTEN_FOR = {"triton": "cuda", "cpu": "cpu"}

# to look for a name that is not there takes a microsecond in os.environ, which raises an error
_environment: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_VARIABLE = getattr(os.environ, "encodekey", str)("LINRNN_BACKEND")
_NATIVE = (None, "auto", "cpu")  # what asks for no other kernels than a recorded step is
_REQUESTED: Ambient[str | None] = Ambient("backend", lambda name: name not in _NATIVE)
_announced: set[str] = set()


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Compute every op inside the ``with`` block on one backend.

    Args:
        name: one of ``reference``, ``tree``, ``cpu``, ``triton``; ``"auto"`` or ``None``
            restores the automatic choice. Overrides the environment variable
            ``LINRNN_BACKEND``. It holds for this thread and this task of asyncio, as
            ``torch.no_grad`` does for a thread; the variable holds for all.

    Raises:
        UnknownNameError: no such backend.

    Example:
        >>> import torch, linrnn.ops
        >>> with linrnn.ops.use_backend("reference"):
        ...     h, last = linrnn.ops.linear_scan(torch.ones(3), torch.ones(1, 4, 3))
        >>> last
        tensor([[4., 4., 4.]])
    """
    if name is not None:
        check_in("use_backend", "backend", name, (*BACKENDS, "auto"))
    with _REQUESTED.set(name):
        yield


def requested(explicit: str | None) -> tuple[str, str]:
    """The requested backend and by what: the argument, `use_backend` or the environment."""
    if explicit is not None:
        if not isinstance(explicit, str):
            raise UnknownNameError("backend", explicit, (*BACKENDS, "auto"))
        return explicit, "the argument backend="
    if (name := _REQUESTED.get()) is not None:
        return name, "linrnn.ops.use_backend"
    if _VARIABLE not in _environment:
        return "auto", "LINRNN_BACKEND"
    name = os.environ["LINRNN_BACKEND"]
    if name not in (*BACKENDS, "auto"):
        raise UnknownNameError("backend (LINRNN_BACKEND)", name, (*BACKENDS, "auto"))
    return name, "LINRNN_BACKEND"


def another_requested() -> bool:
    """Whether calls are to be computed by other code than native kernels, as far as these can."""
    if steered():
        return True
    return _VARIABLE in _environment and os.environ["LINRNN_BACKEND"] not in _NATIVE


def choose(
    op: str,
    modules: tuple[tuple[str, str], ...],
    explicit: str | None,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[str, str]:
    """The backend that computes a call and a sentence saying why.

    Args:
        op: its name, for messages.
        modules: the name of each backend with kernels, and their module; without any that can,
            the op is composed of PyTorch's operators, which is called ``tree``.
        explicit: the backend that an argument requests.
        device, dtype: of the call.

    Raises:
        BackendError: the requested backend cannot compute the call, or under
            ``LINRNN_STRICT=1`` the automatic choice is a slow one.
    """
    name, why, slow = _choose(op, modules, *requested(explicit), device, dtype)
    if slow is not None:
        _announce_slow(op, name, slow)
    return name, why


def module_of(modules: tuple[tuple[str, str], ...], name: str) -> ModuleType | None:
    """The kernels of the backend that `choose` names; None where operators compute."""
    module = dict(modules).get(name)
    return None if module is None else importlib.import_module(module)


@functools.lru_cache(maxsize=256)
def _choose(
    op: str,
    modules: tuple[tuple[str, str], ...],
    name: str,
    asked_by: str,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[str, str, str | None]:
    table = dict(modules)

    def problem_of(backend: str) -> str | None:
        problem: str | None = importlib.import_module(table[backend]).unavailable(device, dtype)
        return problem

    if name != "auto":
        check_in(op, "backend", name, (*BACKENDS, "auto"))
        problem = problem_of(name) if name in table else None
        if problem:
            raise BackendError(
                f"{op}: backend {name!r} (requested by {asked_by}) cannot compute this "
                f"call: {problem}. Use backend='tree', which runs everywhere."
            )
        return name, f"{name}: requested by {asked_by}", None
    skipped: list[str] = []
    chosen = "tree"
    for candidate in (x for x in BACKENDS if x in table):
        if WRITTEN_FOR.get(candidate, device.type) != device.type:
            continue
        problem = problem_of(candidate)
        if problem is None:
            chosen = candidate
            break
        skipped.append(f"{candidate} cannot ({problem})")
    why = "; ".join([f"{chosen}: the fastest that supports the call", *skipped])
    return chosen, why, skipped[0] if skipped else None


def _announce_slow(op: str, name: str, why: str) -> None:
    message = f"{op} runs on the slower backend {name!r}: {why}. `linrnn doctor` says more."
    if os.environ.get("LINRNN_STRICT", "0") not in ("", "0"):
        raise BackendError(f"{message} Refused because LINRNN_STRICT is set.")
    if message not in _announced:
        _announced.add(message)
        warnings.warn(message, UserWarning, stacklevel=5)
