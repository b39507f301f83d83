"""A streaming step as an ONNX file: one time step in, one out, the state handed in and out.

The file needs nothing of linrnn or PyTorch: ``examples/onnx_stream.py`` runs one with onnxruntime
and NumPy alone. What a program has to know beside the graph lies in it as JSON, under the metadata
key ``linrnn``:

- ``format``: 1.
- ``input``: ``name``, ``shape``, ``dtype``; with ``vocabulary`` where it is a token id.
- ``output``: the same of the model's output.
- ``states``: for each part of the state its ``name`` as an input and ``next``, its name as an
  output, ``shape``, ``dtype``, whether its last axis holds real and imaginary parts (``complex``),
  and ``initial``, what to start from: one number where all are equal, else nested lists.
- ``model``: `linrnn.streaming.fingerprint` of the weights.
- ``tokenizer``: the content of a run's ``tokenizer.json``, or null.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from linrnn import __version__
from linrnn._door import read_bytes
from linrnn._memory import available
from linrnn._reading import reading
from linrnn._storage import write_atomically
from linrnn._stream_input import vocabulary
from linrnn.backbone import SequenceModel
from linrnn.errors import (
    ArgumentError,
    DataError,
    LinrnnError,
    MissingExtraError,
    check_positive_int,
)
from linrnn.interop._operators import decompositions
from linrnn.interop._real import real_graph
from linrnn.state import flatten, leaves, n_floats, ordered, unflatten
from linrnn.streaming import Streamable, check_streamable, fingerprint
from linrnn.typing import State

FORMAT = 1
"""Of the metadata; rises when a program that reads it has to change."""

METADATA = "linrnn"
"""The key of the metadata."""

OPSET = 20
_LIMIT = 2**31 - 1  # bytes of a protocol buffer


def export_step(
    model: Streamable,
    path: Path | str,
    *,
    batch_size: int = 1,
    tokenizer: Mapping[str, Any] | None = None,
) -> None:
    """Write ``model.step`` to an ONNX file.

    The graph has one input ``x``, or ``token`` of a model that reads tokens, and one for each part
    of the state; its outputs are ``y`` and each part after the step, in the same order. Complex
    states are pairs of real numbers on one more axis, and all arithmetic is real; what depends on
    weights alone is computed now and stored.

    Args:
        model: a causal mixer or `linrnn.SequenceModel` in evaluation mode, whose state has a fixed
            size.
        path: the file, replaced if it exists, all of it or nothing.
        batch_size: streams in a step.
        tokenizer: the content of a run's ``tokenizer.json``, to go into the file.

    Raises:
        ArgumentError: the model cannot be streamed; see `linrnn.streaming.check_streamable`.
        MissingExtraError: the packages ``onnx`` and ``onnxscript`` are not installed.
        LinrnnError: the model takes more than 2 GiB, ONNX's limit for one file.
    """
    _require("onnxscript", "onnx")
    graph, inputs = step_graph(model, batch_size)
    with torch.no_grad():
        start = model.init_state(batch_size)
        y = model.step(inputs[0], start)[0]
        record = _record(model, inputs[0], y, start, tokenizer)
        proto = _to_onnx(graph, inputs, record)
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(record, sort_keys=True)
    if proto.ByteSize() > _LIMIT:
        raise LinrnnError(
            f"export_step: the model must take at most 2 GiB, got {proto.ByteSize():,} bytes."
        )
    write_atomically(Path(path), proto.SerializeToString())


@torch.no_grad()
def step_graph(model: Streamable, batch_size: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The function that `export_step` writes, before it is ONNX, and inputs to call it with.

    Args:
        model, batch_size: see `export_step`.

    Returns:
        ``(graph, inputs)``: ``graph(x, *parts)`` is ``(y, *parts)``, where the parts of the state
        are those of `linrnn.state.flatten`; the inputs are zeros and the initial state.

    Raises:
        ArgumentError: the model cannot be streamed; see `linrnn.streaming.check_streamable`.
        LinrnnError: it uses an operator on complex numbers that has no rule in real ones.
    """
    check_positive_int("export_step", batch_size=batch_size)
    check_streamable("export_step", model, growing=False)
    size = 8 * batch_size * (1 + n_floats(model.init_state(1)))
    if size > available():
        raise ArgumentError(
            f"export_step: batch_size must be one whose states fit into {available():,} bytes of "
            f"memory, got {batch_size:,}."
        )
    start = model.init_state(batch_size)
    inputs = (_example(model, batch_size), *flatten(start).values())
    with _quiet():
        program = torch.export.export(_Step(model, start), inputs, strict=False)
        program = program.run_decompositions(decompositions())
    return real_graph(program).eval(), inputs


def metadata(path: Path | str) -> dict[str, Any]:
    """What `export_step` wrote into a file beside the graph.

    Raises:
        DataError: no such file, or one without.
    """
    _require("onnx")
    import onnx

    with reading(path, DataError, "be an ONNX model"):
        proto = onnx.load_model_from_string(read_bytes(Path(path), inside=None, limit=_LIMIT))
    found = {entry.key: entry.value for entry in proto.metadata_props}
    if METADATA not in found:
        raise DataError(
            f"{path}: the model must hold the metadata {METADATA!r}, got {sorted(found)}. "
            "Export it with linrnn export."
        )
    with reading(path, DataError, "hold the metadata that linrnn export writes"):
        record = dict(json.loads(found[METADATA]))
    return record


def initial_state(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The state before the first step, by the names of the graph's inputs, from `metadata`."""
    return {
        part["name"]: np.broadcast_to(
            np.array(part["initial"], dtype=part["dtype"]), part["shape"]
        ).copy()
        for part in record["states"]
    }


class _Step(nn.Module):
    """One step on a state whose parts are real and lie side by side."""

    def __init__(self, model: Streamable, like: State) -> None:
        super().__init__()
        self.model, self.like = model, like

    def forward(self, x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        named = {str(i): h for i, h in enumerate(parts)}
        y, state = self.model.step(x, unflatten(named, self.like))
        return y, *flatten(state).values()


def _example(model: Streamable, batch_size: int) -> Tensor:
    weight = next(model.parameters())
    if vocabulary(model) is not None:
        return torch.zeros(batch_size, dtype=torch.long, device=weight.device)
    width = model.d_input if isinstance(model, SequenceModel) else model.d_model
    return torch.zeros(batch_size, width, dtype=weight.dtype, device=weight.device)


def _to_onnx(graph: nn.Module, inputs: Sequence[Tensor], record: Mapping[str, Any]) -> Any:
    """The graph as a protocol buffer."""
    with _quiet():
        program = torch.onnx.export(
            graph,
            tuple(inputs),
            dynamo=True,
            verbose=False,
            optimize=False,  # onnxruntime does it again, and faster
            opset_version=OPSET,
            input_names=[record["input"]["name"], *(s["name"] for s in record["states"])],
            output_names=[record["output"]["name"], *(s["next"] for s in record["states"])],
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch's exporter says about itself: that torchvision is missing, and so on."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _record(
    model: Streamable, x: Tensor, y: Tensor, start: State, tokenizer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The metadata."""
    size = vocabulary(model)
    read = _shape_of("x" if size is None else "token", x)
    if size is not None:
        read["vocabulary"] = size
    paths = [keystr(path) for path, _ in tree_flatten_with_path(ordered(start))[0]]
    parts = zip(paths, leaves(start), flatten(start).values(), strict=True)
    return {
        "format": FORMAT,
        "linrnn": __version__,
        "model": fingerprint(model),
        "tokenizer": tokenizer,
        "input": read,
        "output": _shape_of("y", y),
        "states": [
            _shape_of(f"state{path}", real)
            | {"next": _plain(f"next{path}"), "complex": h.is_complex(), "initial": _values(real)}
            for path, h, real in parts
        ],
    }


def _shape_of(name: str, x: Tensor) -> dict[str, Any]:
    return {
        "name": _plain(name),
        "shape": list(x.shape),
        "dtype": str(x.dtype).removeprefix("torch."),
    }


def _plain(path: str) -> str:
    """A place in a tree with dots in place of brackets."""
    return path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "")


def _values(x: Tensor) -> Any:
    """One number where all are equal, else nested lists."""
    x = x.cpu()
    if x.numel() and bool((x == x.flatten()[0]).all()):
        return x.flatten()[0].item()
    return x.tolist()


def _require(*packages: str) -> None:
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("an ONNX file", package, "onnx")
