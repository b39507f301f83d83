"""Memory that a process frees, kept for what it makes next."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3), in glibc's malloc.h
_NEVER = 2**31 - 1
_OFF = "LINRNN_KEEP_MEMORY"


def keep_memory() -> bool:
    """Let this process keep what it frees, so that arrays which come and go cost nothing to make.

    The allocator of Linux (glibc) gives every array of 32 MB and more back to the system, and free
    memory at the end of its heap, and the system then clears each page of the next array anew. A
    training step makes the same arrays again and again: at (1, 16384, 256) that was a fifth of the
    time of `mamba` and two fifths of that of `mamba2` and `mlstm`. Kept memory is for this process
    alone until it ends, and its largest holding grows, since arrays of many sizes share one heap:
    by 13 % (`mamba`) to 63 % (`mamba2`) there. ``benchmarks/kept_memory.py`` measured it.

    It is set for the whole process, all libraries in it included, so importing linrnn does not do
    it; ``linrnn train``, ``linrnn compare`` and ``linrnn stream --learner`` do, unless the
    environment has ``LINRNN_KEEP_MEMORY=0``.

    Returns:
        Whether the allocator was told: False where it is another one, or the variable is 0.

    Example:
        >>> import linrnn
        >>> told = linrnn.keep_memory()  # once, before the first large tensor
    """
    if os.environ.get(_OFF) == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  another library may have another mallopt
        mallopt = library.mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, 0))
