"""The shared library of native kernels: finding it, loading it, and saying why it is missing."""

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch

import linrnn

_SUFFIX = {"win32": ".dll", "darwin": ".so"}.get(sys.platform, ".so")


class NativeLibrary(NamedTuple):
    """A loaded library and what it was built with."""

    handle: ctypes.CDLL
    path: Path
    isa: str  # instruction set picked for this processor
    openmp: bool


@functools.cache
def load() -> tuple[NativeLibrary | None, str]:
    """The library and an empty string, or None and the reason."""
    # an editable install spreads the package over two folders: both are in __path__
    candidates = [Path(p, "_native", f"kernels{_SUFFIX}") for p in linrnn.__path__]
    path = next((p for p in candidates if p.is_file()), None)
    if path is None:
        return None, (
            "the native kernels are not in this installation; install a C++ compiler "
            "and reinstall linrnn"
        )
    try:
        handle = ctypes.CDLL(str(path))
        handle.linrnn_scan.argtypes = [ctypes.c_char_p]
        handle.linrnn_isa.restype = ctypes.c_char_p
        return NativeLibrary(
            handle, path, handle.linrnn_isa().decode(), bool(handle.linrnn_has_openmp())
        ), ""
    except (OSError, AttributeError) as error:
        return None, f"the native kernels could not be loaded ({error}); reinstall linrnn"


_forked = False


def _after_fork() -> None:
    # OpenMP's threads do not survive a fork; starting them again in the child hangs
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def threads() -> int:
    """Threads a kernel may use: PyTorch's, or one in a forked child such as a data worker."""
    return 1 if _forked else torch.get_num_threads()
