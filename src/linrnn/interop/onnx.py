"""Models as ONNX files: a streaming step, or whole sequences; the state handed in and out.

The files need nothing of linrnn or PyTorch: ``examples/onnx_stream.py`` runs a step with
onnxruntime and NumPy alone. What a program has to know beside the graph lies in it as JSON, under
the metadata key ``linrnn``:

- ``format``: 2.
- ``input``: ``name``, ``shape``, ``dtype``; with ``vocabulary`` where it is a token id. In a shape
  an axis of any size is its name, ``"batch"`` or ``"time"``.
- ``times``: the same of the time since the step before, in the unit of training; null where the
  graph takes none, and all steps are 1 apart.
- ``output``: the same of the model's output.
- ``states``: for each part of the state its ``name`` as an input and ``next``, its name as an
  output, ``shape``, ``dtype``, whether its last axis holds real and imaginary parts (``complex``),
  and ``initial``, what to start from: one number where all are equal, else nested lists, of one row
  where the batch is open.
- ``model``: `linrnn.streaming.fingerprint` of the weights.
- ``tokenizer``: the content of a run's ``tokenizer.json``, or null.
- ``task``: of a run its ``name`` and ``kind``, the names of its ``classes``, and the ``scale`` and
  ``shift`` by which ``input`` is made of the units of the data (``x = scale * data + shift``, of
  each channel) and the units are made of ``output``; null where nothing is scaled so. Else null.
  Where there are ``times``, ``time_unit`` is what they are divided by, in the unit of the data.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linrnn._files.door import read_bytes
from linrnn._files.reading import reading
from linrnn._files.storage import write_atomically
from linrnn._process.memory import available
from linrnn.backbone import Model
from linrnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    LinrnnError,
    check_positive_int,
)
from linrnn.frozen import LinearModel
from linrnn.interop._onnx_proto import OPSET, check_opset, quiet, require, to_proto
from linrnn.interop._onnx_proto import inputs_of as inputs_of
from linrnn.interop._onnx_record import METADATA, record_of
from linrnn.interop._onnx_record import initial_state as initial_state
from linrnn.interop._onnx_time import over_time
from linrnn.interop._operators import decompositions
from linrnn.interop._real import real_graph
from linrnn.mixers import check_timed
from linrnn.nn.quantized import QuantizedLinear
from linrnn.state import flatten, n_floats, unflatten
from linrnn.streaming import Streamable, check_streamable
from linrnn.streaming.input import mixers_of, pools, vocabulary
from linrnn.typing import State

__all__ = [
    "export_sequence",
    "export_step",
    "initial_state",
    "inputs_of",
    "metadata",
    "step_graph",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_LIMIT = 2**31 - 1  # bytes of a protocol buffer
_ROWS = 2  # of the example that an open batch is traced with; 0 and 1 are taken for constants


def export_step(
    model: Streamable,
    path: Path | str,
    *,
    batch_size: int | None = None,
    times: bool = False,
    opset: int = OPSET,
    tokenizer: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Write ``model.step`` to an ONNX file.

    The graph has one input ``x``, or ``token`` of a model that reads tokens, with ``times`` then
    ``dt`` (batch,), and one for each part of the state; its outputs are ``y`` and each part after
    the step, in the same order. Complex states are pairs of real numbers on one more axis, and all
    arithmetic is real; what depends on weights alone is computed now and stored.

    Args:
        model: a causal mixer, `linrnn.SequenceModel` or `linrnn.frozen.LinearModel` in evaluation
            mode, whose state has a fixed size.
        path: the file, replaced if it exists, all of it or nothing.
        batch_size: streams in a step, for runtimes that need to know it; by default one or more,
            since onnxruntime 1.31 gives sums over none a wrong shape.
        times: whether the graph reads the time since the step before, as ``model.step`` does; else
            all steps are 1 apart.
        opset: version of ONNX's operators, 18 to 23.
        tokenizer: the content of a run's ``tokenizer.json``, to go into the file.
        task: what a program should know of the task of a run, to go into the file.

    Raises:
        ArgumentError: the model cannot be streamed, see `linrnn.streaming.check_streamable`; or
            there is no such ``opset``, or no layer reads times, or weights are quantized.
        DTypeError: weights of float64 or bfloat16.
        MissingExtraError: the packages ``onnx`` and ``onnxscript`` are not installed.
        LinrnnError: the model takes more than 2 GiB, ONNX's limit for one file.
    """
    require("onnxscript", "onnx")
    check_opset("export_step", opset)
    _check_model("export_step", model)
    about = {"times": times, "tokenizer": tokenizer, "task": task}
    proto, record = _step_proto(model, batch_size, opset, [batch_size or "batch"], about)
    _write("export_step", path, proto, record)


def export_sequence(
    model: Streamable,
    path: Path | str,
    *,
    times: bool = False,
    opset: int = OPSET,
    tokenizer: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Write ``model(x, state)`` to an ONNX file: a whole sequence in, of any batch and time.

    What is done at every step alone is done for all steps at once, and each recurrence is a
    ``Scan`` over time. Inputs and outputs are those of `export_step`, with an axis of time behind
    that of the batch: ``x`` (batch, time, channels) or ``token`` (batch, time), with ``times``
    ``dt`` (batch, time), the state before,
    ``y`` and the state after; of a model with a pooling over time, ``y`` is the answer after the
    last step. There is at least one step.

    Args:
        model, path, times, opset, tokenizer, task: see `export_step`.

    Raises:
        ArgumentError, DTypeError, MissingExtraError: see `export_step`.
        LinrnnError: the same, or something goes into or comes out of a recurrence whose first axis
            is not the batch.
    """
    require("onnxscript", "onnx")
    check_opset("export_sequence", opset)
    _check_model("export_sequence", model)
    about = {"times": times, "tokenizer": tokenizer, "task": task}
    step, record = _step_proto(model, None, opset, ["batch", "time"], about)
    _write("export_sequence", path, over_time(step, last=pools(model), read=1 + times), record)


@torch.no_grad()
def step_graph(
    model: Streamable, batch_size: int | None = 1, *, times: bool = False
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The function that `export_step` writes, before it is ONNX, and inputs to call it with.

    Args:
        model, batch_size, times: see `export_step`.

    Returns:
        ``(graph, inputs)``: ``graph(x, *parts)`` or ``graph(x, dt, *parts)`` is ``(y, *parts)``,
        where the parts of the state
        are those of `linrnn.state.flatten`; the inputs are zeros and the initial state, of two rows
        where the batch is open.

    Raises:
        ArgumentError: the model cannot be streamed; see `linrnn.streaming.check_streamable`. Or
            its weights are quantized.
        LinrnnError: it uses an operator on complex numbers that has no rule in real ones.
    """
    rows = _ROWS if batch_size is None else batch_size
    check_positive_int("export_step", batch_size=rows)
    check_streamable("export_step", model, growing=False)
    if any(isinstance(part, QuantizedLinear) for part in model.modules()):
        raise ArgumentError(
            "export_step: the weights must be floating-point numbers, got some of 8 or 4 bits. "
            "Export the model before linrnn.quantization.quantize."
        )
    if times:
        check_timed("export_step", times, mixers_of(model))
    size = 8 * rows * (1 + n_floats(model.init_state(1)))
    if size > available():
        raise ArgumentError(
            f"export_step: batch_size must be one whose states fit into {available():,} bytes of "
            f"memory, got {rows:,}."
        )
    start, x = model.init_state(rows), _example(model, rows)
    dt = [torch.ones(rows, device=x.device)] if times else []
    inputs = (x, *dt, *flatten(start).values())
    axes = None
    if batch_size is None:
        axes = {"parts": tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)}
    with quiet():
        step = _Step(model, start, times=times)
        program = torch.export.export(step, inputs, dynamic_shapes=axes, strict=False)
        program = program.run_decompositions(decompositions())
    return real_graph(program).eval(), inputs


def metadata(path: Path | str) -> dict[str, Any]:
    """The metadata that `export_step` or `export_sequence` wrote into a file.

    Raises:
        DataError: no such file, or one without.
    """
    require("onnx")
    import onnx

    with reading(path, DataError, "be an ONNX model"):
        proto = onnx.load_model_from_string(read_bytes(Path(path), inside=None, limit=_LIMIT))
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    if METADATA not in properties:
        raise DataError(
            f"{path}: the model must hold the metadata {METADATA!r}, got {sorted(properties)}. "
            "Export it with linrnn export."
        )
    with reading(path, DataError, "hold the metadata that linrnn export writes"):
        record = dict(json.loads(properties[METADATA]))
    return record


@torch.no_grad()
def _step_proto(
    model: Streamable,
    batch_size: int | None,
    opset: int,
    axes: Sequence[str | int],
    about: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """One step as a protocol buffer, and its metadata."""
    graph, inputs = step_graph(model, batch_size, times=about["times"])
    y = model.step(inputs[0], model.init_state(len(inputs[0])))[0]
    start = model.init_state(batch_size or 1)
    record = record_of(model, inputs[0], y, start, axes=axes, **about)
    return to_proto(graph, inputs, record, opset=opset, open_batch=batch_size is None), record


def _check_model(where: str, model: Streamable) -> None:
    """Raise unless a model can be streamed, of weights with which onnxruntime computes on a CPU.

    It has the sums and products of a `LinearModel` in float64.
    """
    check_streamable(where, model, growing=False)
    if isinstance(model, LinearModel):
        return
    for name, weight in model.named_parameters():
        if weight.dtype in (torch.float64, torch.complex128, torch.bfloat16):
            raise DTypeError(
                f"{where}: the weights must be float32 or float16, since onnxruntime lacks "
                f"operators of other dtypes, got {weight.dtype} of {name}. Pass model.float()."
            )


def _write(where: str, path: Path | str, proto: Any, record: Mapping[str, Any]) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(record, sort_keys=True)
    if proto.ByteSize() > _LIMIT:
        raise LinrnnError(
            f"{where}: the model must take at most 2 GiB, got {proto.ByteSize():,} bytes."
        )
    write_atomically(Path(path), proto.SerializeToString())


class _Step(nn.Module):
    """One step on a state whose parts are real and lie side by side, behind what is read."""

    def __init__(self, model: Streamable, like: State, *, times: bool) -> None:
        super().__init__()
        self.model, self.like, self.times = model, like, times

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        x, *states = parts
        intervals: dict[str, Any] = {"dt": states.pop(0)} if self.times else {}
        named = {str(i): h for i, h in enumerate(states)}
        y, state = self.model.step(x, unflatten(named, self.like), **intervals)
        return y, *flatten(state).values()


def _example(model: Streamable, batch_size: int) -> Tensor:
    weight = next(model.parameters())
    if vocabulary(model) is not None:
        return torch.zeros(batch_size, dtype=torch.long, device=weight.device)
    width = model.d_input if isinstance(model, Model) else model.d_model
    return torch.zeros(batch_size, width, dtype=weight.dtype, device=weight.device)
