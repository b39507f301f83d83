"""Checkpoints without pickle: one safetensors file of tensors and JSON, sealed by a checksum."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linrnn._files.reading import reading
from linrnn._files.storage import read_tensors, write_tensors
from linrnn._files.storage import write_atomically as write_atomically
from linrnn.errors import RunFolderError

_TREE = "tree"
_DAMAGE = "got damaged content ({})"
_FIX = "Restore it from a copy, or train again."


def save_tree(
    tree: Any, path: Path, *, keep: Path | None = None, inside: Path | None = None
) -> None:
    """Write a tree of dicts, lists, tuples, tensors and plain values; all of it or nothing.

    Args:
        tree: what `load_tree` gives back, bit for bit.
        path: the file, replaced if it exists.
        keep: a name for the file that is replaced.
        inside: a folder above it, below which no link is followed. None: its own.

    Raises:
        TypeError: the tree holds something else, which only code could restore.
        StorageError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(tree, tensors))
    save_tensors(tensors, path, {_TREE: text}, keep=keep, inside=inside)


def load_tree(path: Path, *, inside: Path | None = None) -> Any:
    """Read what `save_tree` wrote.

    Args:
        path: of the file.
        inside: a folder above it, below which no link is followed. None: its own.

    Raises:
        RunFolderError: no such file, or not the bytes that were written.
    """
    tensors, metadata = load_tensors(path, inside=inside)
    if _TREE not in metadata:
        raise RunFolderError(
            f"{path}: a checkpoint must hold the state of a run, got weights alone. "
            "Continue from checkpoints/last.safetensors."
        )
    with reading(path, RunFolderError, "hold a tree of values", _FIX):
        return _decode(json.loads(metadata[_TREE]), tensors)


def save_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    keep: Path | None = None,
    inside: Path | None = None,
) -> None:
    """Write named tensors, with a SHA-256 over all tensors and metadata in the file's metadata."""
    # tensors that share memory are stored apart; each is contiguous
    copies = {
        name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, x in tensors.items()
    }
    write_tensors(path, copies, metadata or {}, keep=keep, inside=inside)


def load_tensors(
    path: Path, *, inside: Path | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Named tensors and the metadata.

    Args:
        path: of the file.
        inside: a folder above it, below which no link is followed. None: its own.

    Raises:
        RunFolderError: no such file, or its bytes are not those written.
    """
    with reading(path, RunFolderError, "be as it was written", _FIX, got=_DAMAGE):
        try:
            return read_tensors(path, inside=inside or path.parent)
        except FileNotFoundError as error:
            raise RunFolderError(
                f"{path}: the file must exist, got no such file. {_FIX}"
            ) from error


def _encode(node: Any, tensors: dict[str, Tensor]) -> Any:
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = node
        return {"tensor": name}
    if isinstance(node, Mapping):
        return {"dict": [[_encode(k, tensors), _encode(v, tensors)] for k, v in node.items()]}
    if isinstance(node, list):
        return {"list": [_encode(v, tensors) for v in node]}
    if isinstance(node, tuple):
        return {"tuple": [_encode(v, tensors) for v in node]}
    raise TypeError(f"a checkpoint must hold tensors and plain values, got {type(node).__name__}.")


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value}
    items = [_decode(v, tensors) for v in value]
    return tuple(items) if kind == "tuple" else items
