"""How large a model of transformers may become: as large as the weights in its folder."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open

from linrnn._memory import available, within
from linrnn._reading import reading
from linrnn._storage import read_json
from linrnn.errors import DataError

_SPARE, _TIMES = 64 << 20, 8  # bytes beside the stored weights, and of each of theirs
_LAYERS = ("n_layers", "num_hidden_layers")  # as configurations name their number
_LAYER = re.compile(r"\b(?:blocks|layers)\.(\d+)\.")


@contextmanager
def bounded(where: str, path: Any) -> Iterator[None]:
    """Inside, the model of a folder is built and loaded, and whatever goes wrong is said of it.

    A name of the hub is no folder: there the limit is the memory of the machine.

    Raises:
        DataError: the configuration asks for more layers than there are weights of, or for larger
            ones; or something else in the folder cannot be used.
    """
    folder = Path(path).expanduser()
    limit = available()
    with reading(f"{where}: {path}", DataError, "be complete and in safetensors"):
        if folder.is_dir():
            limit = min(limit, _limit(where, folder))
        message = (
            f"{where}: {path}: the model must fit into {limit:,} bytes, for the size of its "
            "weights, got a configuration of a larger one."
        )
        with within(limit, DataError, message):
            yield


def _limit(where: str, folder: Path) -> int:
    files = sorted(folder.glob("*.safetensors"))
    layers = set()
    for file in files:
        with safe_open(file, framework="pt") as stored:
            layers |= {m[1] for name in stored.keys() if (m := _LAYER.search(name))}  # noqa: SIM118
    config = read_json(folder / "config.json")
    for name in _LAYERS:
        claimed = config.get(name, len(layers))
        if files and claimed != len(layers):
            raise DataError(
                f"{where}: {folder}: {name} must be {len(layers)}, as many as there are weights "
                f"of, got {claimed!r:.40}."
            )
    return _SPARE + _TIMES * sum(file.stat().st_size for file in files)
