"""What weights from a folder of transformers must be, which turns any numbers into weights."""

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from linrnn._finite import first_bad
from linrnn.errors import DataError

_REAL = ("F16", "BF16", "F32", "F64")  # as safetensors calls them


def check_weights(where: str, path: Any, model: Any) -> None:
    """Raise `DataError` unless the weights of a model are finite, and were real where stored.

    Args:
        where: who asks, for the message.
        path: what they were loaded from; in a folder, the stored kinds are looked at.
        model: they were loaded into.
    """
    weights: dict[str, Tensor] = model.state_dict()
    if isinstance(path, str | os.PathLike) and Path(path).expanduser().is_dir():
        for name, kind in _stored(where, Path(path).expanduser()).items():
            if name in weights and weights[name].is_floating_point() and kind not in _REAL:
                raise DataError(
                    f"{where}: {path}: weights must be real numbers, got {name} of the kind {kind}."
                )
    if bad := first_bad(weights.items()):
        raise DataError(f"{where}: {path}: weights must be finite, got {bad}.")


def _stored(where: str, folder: Path) -> dict[str, str]:
    """The kind of every tensor in the files of a folder."""
    found: dict[str, str] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                found |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{where}: {folder}: the model must be in safetensors, got: {error}."
        ) from error
    return found
