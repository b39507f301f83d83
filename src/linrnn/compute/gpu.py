"""Whether Triton's kernels can compute, and how many programs keep a device busy."""

import functools
import importlib.metadata
import importlib.util
import os
import re
from typing import Any

import torch

#: Programs of a multiprocessor that keep its memory busy.
ENOUGH = 4

_DOUBLE = (torch.float64, torch.complex128)

#: The first Triton that has tuples in kernels; PyTorch 2.6 brings an older one.
OLDEST = (3, 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64, *_DOUBLE)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype not in DTYPES:
        return f"it has no kernel for {dtype}"
    interpreted = device.type == "cpu" and interprets()
    if device.type != "cuda" and not interpreted:
        return f"it needs a CUDA tensor, got {device}"
    return _package()


def interprets() -> bool:
    """Whether Triton interprets its kernels, which then need no device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _package() -> str | None:
    """Why Triton itself cannot be used, or None; without importing it."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed (pip install 'linrnn[triton]')"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # of a nightly PyTorch, by another name
        return None
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        return f"the package triton must be 3.3 or newer, which PyTorch 2.7 brings, got {version}"
    return None


@functools.cache
def processors(device: torch.device) -> int:
    """How many multiprocessors a device has."""
    if device.type != "cuda":
        return 1  # the interpreter runs one program after the other
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def cooperates(device: torch.device) -> bool:
    """Whether a launch can ensure that all its programs are on the device at once."""
    return device.type == "cuda" and torch.version.cuda is not None


def power_of_two(n: int) -> int:
    """The smallest power of two that is not less: the sizes that a kernel's blocks have.

    Example:
        >>> power_of_two(0), power_of_two(32), power_of_two(33)
        (1, 32, 64)
    """
    return 1 << max(n - 1, 0).bit_length()


def allows_tf32() -> bool:
    """As ``torch.set_float32_matmul_precision("high")`` does, or its newer name."""
    matmul = torch.backends.cuda.matmul
    newer = getattr(matmul, "fp32_precision", None)  # from PyTorch 2.9 on
    return bool(matmul.allow_tf32) if newer is None else newer == "tf32"


@functools.cache
def language() -> Any:
    """Triton's language, imported by the first call that runs on it."""
    return importlib.import_module("triton.language")
