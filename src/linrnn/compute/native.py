"""The shared library of native kernels: finding it, loading it, and saying why it is missing."""

import ctypes
import functools
import operator
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import linrnn
from linrnn.errors import BackendError

_SUFFIX = {"win32": ".dll", "darwin": ".so"}.get(sys.platform, ".so")


#: The number of each dtype in `array.h`.
DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.complex64: 2,
    torch.complex128: 3,
    torch.bfloat16: 4,
    torch.float16: 5,
}
#: Those of complex numbers in pairs of a dtype that PyTorch has no complex numbers of.
PAIRS = {torch.bfloat16: 6}
_OTHER_VERSION = 3
_FAILURES = {
    1: "out of memory",
    2: "unknown dtype",
    _OTHER_VERSION: "the library is of another version; reinstall linrnn",
    4: "an index is outside of its block",
    5: "the processor has no matrix tiles, or the system does not lend them",
    6: "the processor does not multiply bfloat16 numbers itself",
}
#: Parts of a sum over rows or steps.
_MOST_PARTS = 16


class NativeLibrary(NamedTuple):
    """A loaded library and what it was built with."""

    handle: ctypes.CDLL
    path: Path
    isa: str  # instruction set picked for this processor
    openmp: bool


@functools.cache
def load() -> tuple[NativeLibrary | None, str]:
    """The library and an empty string, or None and the reason.

    ``LINRNN_KERNELS`` in the environment names another file than the one that was installed, such
    as one built with a sanitizer.
    """
    # an editable install spreads the package over two folders: both are in __path__
    candidates = [Path(p, "_native", f"kernels{_SUFFIX}") for p in linrnn.__path__]
    chosen = os.environ.get("LINRNN_KERNELS")
    path = Path(chosen) if chosen else next((p for p in candidates if p.is_file()), None)
    if path is None:
        return None, (
            "the native kernels are not in this installation; install a C++ compiler "
            "and reinstall linrnn"
        )
    try:
        handle = ctypes.CDLL(str(path))
        handle.linrnn_isa.restype = handle.linrnn_record_layout.restype = ctypes.c_char_p
        isa = handle.linrnn_isa()
        if isa is None:
            return None, (
                "the native kernels were built for another processor; reinstall linrnn on this one"
            )
        return NativeLibrary(handle, path, isa.decode(), bool(handle.linrnn_has_openmp())), ""
    except (OSError, AttributeError) as error:
        way_out = "unset LINRNN_KERNELS" if chosen else "reinstall linrnn"
        return None, f"the native kernels could not be loaded ({error}); {way_out}"


def unavailable(
    device: torch.device, dtype: torch.dtype, *, real: bool = False, kernel: str | None = None
) -> str | None:
    """Why no kernel, or none for ``real`` numbers alone, computes on that device and dtype.

    A ``kernel`` that the library has to have may be named.
    """
    if device.type != "cpu":
        return f"it needs CPU tensors, got {device}"
    if dtype not in DTYPES or (real and dtype.is_complex):
        return f"it has no kernel for {dtype}"
    native, problem = load()
    if native is not None and kernel is not None and not hasattr(native.handle, f"linrnn_{kernel}"):
        return _FAILURES[_OTHER_VERSION]
    return problem or None


_CODES = {"": "q", "array": "3q", "real": "d"}
_NO_ARRAY = (0, 0, 0)


class Kernel:
    """A kernel, called with the values of its record.

    The library itself says which fields there are, in what order and of what kind
    (``src/native/*_args.h``); here each is given its value.

    Args:
        name: of the kernel.
        fields: the names of the values it is called with, after dtype and threads; an array is
            three values, those of `array`.
    """

    def __init__(self, name: str, fields: str) -> None:
        self.name, self.fields = name, ("dtype", "threads", *fields.split())

    def __call__(self, dtype: torch.dtype, *values: float) -> None:
        """Compute on numbers of ``dtype``.

        Raises:
            BackendError: there is no library, it is of another version, or the kernel refused.
        """
        run(self.name, self.pack(DTYPES[dtype], threads(), *values))

    @functools.cached_property
    def places(self) -> dict[str | None, int]:
        """Before which word of a record each field begins; None is the end."""
        places, count = dict[str | None, int](), 1  # the size
        for name, kind in self._kinds.items():
            places[name] = count
            count += len(_NO_ARRAY) if kind == "array" else 1
        return {**places, None: count}

    @functools.cached_property
    def _kinds(self) -> dict[str, str]:
        """The kind of each field, in the library's order: "array", "real" or ""."""
        layout = handle(self.name).linrnn_record_layout(self.name.encode()) or b""
        fields = [x.partition(":") for x in layout.decode().split()]
        return {name: kind for name, _, kind in fields}

    @functools.cached_property
    def pack(self) -> Callable[..., bytes]:
        """Makes the record of its values."""
        kinds = self._kinds
        if set(kinds) != set(self.fields):
            differ = ", ".join(sorted(set(kinds) ^ set(self.fields)))
            raise BackendError(
                f"{self.name}: the native kernel failed: {_FAILURES[_OTHER_VERSION]} "
                f"(its record and the package's differ in {differ})."
            )
        record = struct.Struct("=q" + "".join(map(_CODES.__getitem__, kinds.values())))
        if tuple(kinds) == self.fields:
            return functools.partial(record.pack, record.size)
        places = {name: [name] * (3 if kind == "array" else 1) for name, kind in kinds.items()}
        field_order = [(name, i) for name in self.fields for i, _ in enumerate(places[name])]
        record_order = [(name, i) for name in kinds for i, _ in enumerate(places[name])]
        order = operator.itemgetter(*map(field_order.index, record_order))
        return lambda *values: record.pack(record.size, *order(values))


def array(x: Tensor | None) -> tuple[int, ...]:
    """Address and strides of a (sequence, time, ...) tensor; zeros for none."""
    return _NO_ARRAY if x is None else (x.data_ptr(), *x.stride()[:2])


def handle(kernel: str) -> ctypes.CDLL:
    """The library, for a kernel."""
    native, problem = load()
    if native is None:
        raise BackendError(f"{kernel}: backend 'cpu' cannot run: {problem}.")
    return native.handle


@functools.cache
def _function(kernel: str) -> Callable[[Any], int]:
    function: Callable[[Any], int] | None = getattr(handle(kernel), f"linrnn_{kernel}", None)
    return function or (lambda record: _OTHER_VERSION)


def run(kernel: str, record: bytes | ctypes.Array[Any]) -> None:
    """Call a kernel with its record (``src/native/kernels.h``).

    Raises:
        BackendError: there is no library, or the kernel refused.
    """
    code = _function(kernel)(record)
    if code:
        raise BackendError(f"{kernel}: the native kernel failed: {_FAILURES.get(code, code)}.")


def pointer(x: Tensor | None) -> int:
    """The address of a tensor's first element, 0 for none."""
    return 0 if x is None else x.data_ptr()


def parts_of(units: int) -> int:
    """Parts of a sum over some units of work, each summed alone: of shapes, never of threads."""
    return min(_MOST_PARTS, max(1, units))


def _after_fork() -> None:
    # OpenMP's threads do not survive a fork, and a loop that waits for them waits for ever: ours
    # and PyTorch's own. Whether there were any before cannot be told from outside.
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


threads = torch.get_num_threads
"""Threads a kernel may use: as many as PyTorch."""
