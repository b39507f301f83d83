"""Functions of other libraries, by their own names, computed here for tensors on a CPU.

The function is replaced wherever a module has it, also under another name, and put back by
`Acceleration.detach`. A closure or a default argument that holds it elsewhere keeps what
it has.
"""

import functools
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from linrnn.errors import BackendError, check_in
from linrnn.interop._accelerate.report import Acceleration, Replaced

Function = Callable[..., Any]


class Place(NamedTuple):
    """A module of a library, a function of it, and ours."""

    module: str
    name: str
    ours: Function


def _of_fla() -> Iterator[Place]:
    from linrnn.interop import fla

    for name in fla.names():
        system = re.sub("^(chunk|fused_chunk|fused_recurrent|parallel)_", "", name)
        for module in ("fla.ops", f"fla.ops.{system}"):
            yield Place(module, name, getattr(fla, name))


def _of_mamba_ssm() -> Iterator[Place]:
    from linrnn.interop import _mamba_functions as ours

    ops = "mamba_ssm.ops"
    yield Place(f"{ops}.selective_scan_interface", "selective_scan_fn", ours.selective_scan_fn)
    for name in ("ssd_combined", "selective_state_update"):
        function = "mamba_chunk_scan_combined" if name == "ssd_combined" else name
        yield Place(f"{ops}.triton.{name}", function, getattr(ours, function))


def _of_causal_conv1d() -> Iterator[Place]:
    from linrnn.interop import _mamba_functions as ours

    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        yield Place("causal_conv1d", name, getattr(ours, name))


LIBRARIES: dict[str, Callable[[], Iterator[Place]]] = {
    "fla": _of_fla,
    "mamba_ssm": _of_mamba_ssm,
    "causal_conv1d": _of_causal_conv1d,
}
_lock = threading.Lock()
_active: dict[str, "Swaps"] = {}


class Swaps:
    """Pairs of a library's function and its replacement, with how many accelerations use them."""

    def __init__(self, places: Iterator[Place]) -> None:
        self.pairs: list[tuple[Function, Function]] = []
        self.replaced: list[Replaced] = []
        for theirs, ours in _pairs(places):
            self.pairs.append((theirs, _standing_for(theirs, ours)))
            op = f"{ours.__module__}.{ours.__name__}"
            self.replaced.append(Replaced(theirs.__module__, theirs.__name__, op))
        self.users = 0


def accelerate_library(name: str) -> Acceleration:
    """Let this library compute functions of another one that are called with tensors on a CPU.

    Functions are replaced in every module that was imported; a module imported later gets what it
    finds in the library. Several accelerations of a library may be there at once: the last one
    that detaches puts everything back.

    Args:
        name: "fla", "mamba_ssm" or "causal_conv1d".

    Raises:
        UnknownNameError: another name.
        BackendError: the library cannot be imported.
    """
    where = "linrnn.interop.accelerate"
    check_in(where, "library", name, tuple(LIBRARIES))
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            f"{where}: the package {name!r} must be importable, got {error}. "
            "Install it; on a CPU alone linrnn.interop.fla has the functions of fla without it."
        ) from error
    with _lock:
        if name not in _active:
            _active[name] = Swaps(LIBRARIES[name]())
            _swap(_active[name].pairs)
        swaps = _active[name]
        swaps.users += 1
    return Acceleration(swaps.replaced, [], functools.partial(_leave, name))


def _leave(name: str) -> None:
    """Put the library's functions back, unless another acceleration of it is still there."""
    with _lock:
        swaps = _active[name]
        swaps.users -= 1
        if swaps.users == 0:
            del _active[name]
            _swap([(ours, theirs) for theirs, ours in swaps.pairs])


def _pairs(places: Iterator[Place]) -> Iterator[tuple[Function, Function]]:
    """Each function of the library that there is, once, and ours."""
    seen = set()
    for place in places:
        module = _imported(place.module)
        theirs = None if module is None else getattr(module, place.name, None)
        if callable(theirs) and id(theirs) not in seen:
            seen.add(id(theirs))
            yield theirs, place.ours


def _imported(module: str) -> Any:
    """The module; None where a version of the library, or of what it needs, lacks it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _standing_for(theirs: Function, ours: Function) -> Function:
    """``theirs``, but ours for tensors on a CPU, unless ours has no answer."""

    @functools.wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Any:
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if first is None or first.device.type != "cpu":
            return theirs(*args, **kwargs)
        answer = ours(*args, **kwargs)
        return theirs(*args, **kwargs) if answer is NotImplemented else answer

    return function


def _swap(pairs: list[tuple[Function, Function]]) -> None:
    """In every module, replace the first of each pair by the second."""
    by_id = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or module is None:
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                names[name] = by_id[id(value)]
