"""What is in a folder that transformers wrote."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from linrnn._storage import read_json, write_atomically
from linrnn.errors import DataError
from linrnn.interop._hf_sizes import bounded

CODE = "modeling_linrnn.py"
"""The file in a model's folder that ``trust_remote_code=True`` runs, and what it holds."""

_SOURCE = """\
# For programs that import transformers and not linrnn; trust_remote_code=True runs this file.
from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM

__all__ = ["LinrnnConfig", "LinrnnForCausalLM"]
"""

AUTO_MAP = {
    "AutoConfig": "modeling_linrnn.LinrnnConfig",
    "AutoModelForCausalLM": "modeling_linrnn.LinrnnForCausalLM",
}


def write_code(folder: str | os.PathLike[str]) -> None:
    """Put the file there that imports linrnn, and nothing else."""
    write_atomically(Path(folder) / CODE, _SOURCE.encode())


def check_folder(where: str, path: str | os.PathLike[str], model_type: str) -> None:
    """Raise `DataError` if ``path`` is a folder without a model of that type.

    A name that is no folder here may be one of the hub, which transformers looks up.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if isinstance(path, Path) or folder.is_absolute() or str(path).startswith((".", "~")):
            raise DataError(f"{where}: {path}: a model's folder must exist, got no such folder.")
        return
    file = folder / "config.json"
    try:
        config = read_json(file)
        found = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: {file}: a model's folder must hold its configuration, got: {error}."
        ) from error
    if found != model_type:
        fix = ""
        if "sha256" in config:
            fix = " Convert a run of `linrnn train lm` with linrnn.interop.hf.from_run."
        raise DataError(f"{where}: {file}: model_type must be {model_type!r}, got {found!r}.{fix}")


def load(where: str, path: Any, read: Callable[..., Any], **options: Any) -> Any:
    """``read(path)``, from safetensors alone, into a model whose every weight was in the files.

    Raises:
        DataError: a file is missing or damaged, or the weights are those of another model.
    """
    options |= {"use_safetensors": True, "output_loading_info": True}
    with bounded(where, path):
        model, info = read(path, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info.get(kind) or ())):
            raise DataError(
                f"{where}: {path}: the weights must be those of the configuration beside them, "
                f"got {len(names)} {kind.replace('_', ' ')}, such as {names[0]}."
            )
    return model
