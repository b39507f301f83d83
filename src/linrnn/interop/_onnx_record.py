"""The metadata of an ONNX file: names, shapes, and the initial state."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from linrnn import __version__
from linrnn.state import flatten, leaves, ordered
from linrnn.streaming import Streamable, fingerprint
from linrnn.streaming.input import pools, vocabulary
from linrnn.typing import State

FORMAT = 2
"""Format of the metadata; it rises when a program that reads it has to change."""

METADATA = "linrnn"
"""The key of the metadata."""


def record_of(
    model: Streamable,
    x: Tensor,
    y: Tensor,
    start: State,
    *,
    axes: Sequence[str | int],
    times: bool,
    tokenizer: Mapping[str, Any] | None,
    task: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The metadata of a graph.

    Args:
        model: what the graph computes.
        x, y: a step's input and output.
        start: the state before the first step; of one row where any batch will do.
        axes: what replaces the rows of ``x``: their number or ``"batch"``; in a graph
            of whole sequences, ``"time"`` too.
        times: whether the graph takes the time since the step before.
        tokenizer: the content of a run's ``tokenizer.json``.
        task: what is known of the task of a run.
    """
    size = vocabulary(model)
    read = _outline("x" if size is None else "token", x, axes)
    if size is not None:
        read["vocabulary"] = size
    paths = [keystr(path) for path, _ in tree_flatten_with_path(ordered(start))[0]]
    parts = zip(paths, leaves(start), flatten(start).values(), strict=True)
    return {
        "format": FORMAT,
        "linrnn": __version__,
        "model": fingerprint(model),
        "tokenizer": tokenizer,
        "task": task,
        "input": read,
        "times": {"name": "dt", "shape": [*axes], "dtype": "float32"} if times else None,
        "output": _outline("y", y, axes[:1] if pools(model) else axes),
        "states": [
            _outline(f"state{path}", real, axes[:1])
            | {"next": _dotted(f"next{path}"), "complex": h.is_complex(), "initial": _values(real)}
            for path, h, real in parts
        ],
    }


def initial_state(record: Mapping[str, Any], batch_size: int = 1) -> dict[str, np.ndarray]:
    """The state before the first step, by the names of the graph's inputs.

    Args:
        record: what `linrnn.interop.onnx.metadata` read.
        batch_size: how many streams, where the graph takes any number.
    """
    return {
        part["name"]: np.broadcast_to(
            np.array(part["initial"], dtype=part["dtype"]),
            [batch_size if size == "batch" else size for size in part["shape"]],
        ).copy()
        for part in record["states"]
    }


def _outline(name: str, x: Tensor, axes: Sequence[str | int]) -> dict[str, Any]:
    return {
        "name": _dotted(name),
        "shape": [*axes, *x.shape[1:]],
        "dtype": str(x.dtype).removeprefix("torch."),
    }


def _dotted(path: str) -> str:
    """A place in a tree with dots in place of brackets."""
    return path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "")


def _values(x: Tensor) -> Any:
    """One number where all are equal, else nested lists."""
    x = x.cpu()
    if x.numel() and bool((x == x.flatten()[0]).all()):
        return x.flatten()[0].item()
    return x.tolist()
