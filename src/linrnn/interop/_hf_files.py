"""Files in a folder of transformers, read by linrnn itself: weights from safetensors alone.

The folder may be a stranger's, and its configuration names other files, code to fetch, kernels and
ways to unpack weights. So transformers is never given the folder: it gets a configuration of the
keys that are known here, and tensors.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from linrnn._files.door import open_file
from linrnn._files.storage import MAX_TENSORS, open_tensors, read_json, write_atomically
from linrnn.errors import DataError

CODE = "modeling_linrnn.py"
"""The file in a model's folder that ``trust_remote_code=True`` runs, and what it holds."""

_CLASSES = {
    "AutoConfig": "LinrnnConfig",
    "AutoModel": "LinrnnModel",
    "AutoModelForCausalLM": "LinrnnForCausalLM",
    "AutoModelForSequenceClassification": "LinrnnForSequenceClassification",
    "AutoModelForTokenClassification": "LinrnnForTokenClassification",
}

_NAMES = "".join(f"    {name},\n" for name in _CLASSES.values())
_TEXTS = "".join(f'    "{name}",\n' for name in _CLASSES.values())
_SOURCE = f"""\
# For programs that import transformers and not linrnn; trust_remote_code=True runs this file.
from linrnn.interop.hf import (
{_NAMES})

__all__ = [
{_TEXTS}]
"""

AUTO_MAP = {auto: f"modeling_linrnn.{name}" for auto, name in _CLASSES.items()}
"""Which class of that file is meant by which of transformers."""

_DTYPES = ("float64", "float32", "float16", "bfloat16")  # of weights
_SHARDS = 4096  # files of one model
_SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_BLOB = re.compile(r"(?:\.\./)+blobs/([0-9a-f]{40,64})", re.ASCII)


def write_code(folder: str | os.PathLike[str]) -> None:
    """Put the file there that imports linrnn, and nothing else."""
    write_atomically(Path(folder) / CODE, _SOURCE.encode())


class Files(ABC):
    """The files of a model by name.

    Attributes:
        where: the caller, for messages.
        name: of the model, for messages.
    """

    where: str
    name: str

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def json(self, name: str) -> Any:
        """The value of a JSON file.

        Raises:
            OSError, ValueError: there is none, or none that may be read.
        """

    @abstractmethod
    def tensors(self, variant: str | None = None) -> dict[str, Tensor]:
        """All weights, mapped from the files that hold them.

        Args:
            variant: the part of their names that says which, such as ``fp16``.

        Raises:
            SafetensorError, OSError, ValueError: there are none, or a file that is not safetensors,
                no regular one, or outside the folder.
        """


class ModelFolder(Files):
    """The files of a model by name, in a folder or on the hub.

    No link is followed in a folder, but for those of the hub's own cache, which lead to a file
    of the same model named by its checksum.

    Args:
        where: the caller, for messages.
        path: of the folder, or a name on the hub.
        below: folder in it that holds the files.
        **hub: what its client is to be told, such as ``revision``.

    Raises:
        DataError: a path that can be no name on the hub, and no such folder.
    """

    def __init__(
        self, where: str, path: str | os.PathLike[str], below: str = "", **hub: Any
    ) -> None:
        self.where, self.name, self.below, self.hub = where, str(path), below, hub
        folder = Path(path).expanduser()
        self.folder = folder if folder.is_dir() else None
        named = isinstance(path, Path) or folder.is_absolute() or self.name.startswith((".", "~"))
        if self.folder is None and named:
            raise DataError(f"{where}: {path}: a model's folder must exist, got no such folder.")

    def json(self, name: str) -> Any:
        """See `Files.json`."""
        path, inside = self._place(name)
        return read_json(path, inside=inside)

    def tensors(self, variant: str | None = None) -> dict[str, Tensor]:
        """See `Files.tensors`."""
        part = f".{variant}" if variant else ""
        try:
            return self._read([f"model{part}.safetensors"])
        except FileNotFoundError:
            pass
        index = self.json(f"model.safetensors.index{part}.json")
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
            raise ValueError("an index without the files of the weights")
        return self._read(sorted(set(shards.values())))

    def _read(self, names: list[str]) -> dict[str, Tensor]:
        if len(names) > _SHARDS:
            raise ValueError(f"weights in {len(names):,} files, more than {_SHARDS:,}")
        places: list[tuple[Path, Path]] = []
        weights: dict[str, Tensor] = {}
        size = 0
        for name in names:
            if not _SHARD.fullmatch(name):
                raise ValueError(f"an index that names {name!r:.60}")
            places.append(self._place(name))
            path, inside = places[-1]
            with open_file(path, inside=inside) as file:
                size += os.fstat(file.fileno()).st_size
        if size > MAX_TENSORS:
            raise ValueError(f"weights of {size:,} bytes, more than {MAX_TENSORS:,}")
        for path, inside in places:
            with open_tensors(path, inside=inside) as stored:
                weights |= {n: stored.get_tensor(n) for n in stored.keys()}  # noqa: SIM118
        return weights

    def _place(self, name: str) -> tuple[Path, Path]:
        """Where a file lies, and the folder that it must lie in."""
        if self.folder is not None:
            return _resolved(Path(self.below, name), self.folder)
        fetched = self._fetched(name)
        folder = fetched.parents[len(Path(self.below).parts)]
        return _resolved(fetched.relative_to(folder), folder)

    def _fetched(self, name: str) -> Path:
        """A file of the hub, in its cache."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            return Path(hf_hub_download(self.name, name, subfolder=self.below or None, **self.hub))
        except EntryNotFoundError as error:
            raise FileNotFoundError(f"no file {name} at {self.name}") from error


class OneFile(Files):
    """One file of weights with nothing beside it.

    Args:
        where: the caller, for messages.
        path: of the file.
    """

    def __init__(self, where: str, path: Path) -> None:
        self.where, self.name, self.path = where, str(path), path

    def json(self, name: str) -> Any:
        """None is there: see `Files.json`."""
        raise FileNotFoundError(name)

    def tensors(self, variant: str | None = None) -> dict[str, Tensor]:
        """All weights: see `Files.tensors`."""
        with open_tensors(self.path, inside=None) as stored:
            return {n: stored.get_tensor(n) for n in stored.keys()}  # noqa: SIM118


def _resolved(name: Path, folder: Path) -> tuple[Path, Path]:
    """A file in a folder, or the file to which the hub's cache links it."""
    real = Path(os.path.realpath(folder))
    cache = real.parent.parent
    if real.parent.name == "snapshots":
        try:
            link = _BLOB.fullmatch(os.readlink(real / name))
        except (OSError, ValueError):
            link = None
        if link and link[0].count("../") == 1 + len(name.parts):
            return cache / "blobs" / link[1], cache
    return folder / name, folder


def read_config(
    files: Files, model_type: str | Collection[str], keys: Iterable[str]
) -> dict[str, Any]:
    """The known keys of a model's configuration; what else it may hold reaches nobody.

    Args:
        files: of the model.
        model_type: that it must be of, or several of which it must be of one.
        keys: that are known.

    Raises:
        DataError: there is none, or one of another kind of model.
    """
    try:
        config = files.json("config.json")
        if not isinstance(config, dict):
            raise ValueError(f"{config!r:.40}, which is no table")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{files.where}: {files}/config.json: a model's folder must hold its configuration, "
            f"got: {error}."
        ) from error
    stored_type = config.get("model_type")
    types = (model_type,) if isinstance(model_type, str) else tuple(model_type)
    if stored_type not in types:
        fix = ""
        if "sha256" in config:
            fix = " Convert a run of `linrnn train lm` with linrnn.interop.hf.from_run."
        raise DataError(
            f"{files.where}: {files}/config.json: model_type must be "
            f"{' or '.join(map(repr, types))}, got {stored_type!r:.60}.{fix}"
        )
    return {key: _decoded(value) for key, value in known_values(config, keys).items()}


def _decoded(value: Any) -> Any:
    """A value with the numbers that JSON has no word for, as transformers writes them."""
    if isinstance(value, list):
        return [_decoded(x) for x in value]
    if isinstance(value, dict) and value.keys() == {"__float__"}:
        word = value["__float__"]
        return float(word) if word in ("Infinity", "-Infinity", "NaN") else value
    if isinstance(value, dict):
        return {key: _decoded(x) for key, x in value.items()}
    return value


def known_values(config: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The part of a configuration with these keys, and the dtype of the weights if it is one."""
    values = {key: config[key] for key in keys if key in config}
    dtype = config.get("dtype", config.get("torch_dtype"))
    if isinstance(dtype, str) and dtype in _DTYPES:
        values["dtype"] = dtype
    return values
