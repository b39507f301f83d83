"""A traced function of one step as an ONNX graph, by PyTorch's exporter."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, MissingExtraError

OPSET = 20
"""The default version of the operator set."""

OPSETS = range(18, 24)
"""The versions of ONNX's operators that PyTorch's exporter writes: 18, and what that becomes."""


def check_opset(where: str, opset: int) -> None:
    """Raise `ArgumentError` unless the exporter writes this version of the operators."""
    if isinstance(opset, bool) or opset not in OPSETS:
        raise ArgumentError(
            f"{where}: opset must be in {OPSETS[0]} to {OPSETS[-1]}, got {opset!r}. An older "
            "runtime needs another converter; a newer one reads older files."
        )


def to_proto(
    graph: nn.Module,
    inputs: Sequence[Tensor],
    record: Mapping[str, Any],
    *,
    opset: int,
    open_batch: bool,
) -> Any:
    """The graph as a protocol buffer, an ``onnx.ModelProto``.

    Args:
        graph, inputs: what `linrnn.interop.onnx.step_graph` returned.
        record: of names.
        opset: version of the operators.
        open_batch: whether the rows of the inputs may be of any number.
    """
    axes = tuple({0: "batch"} for _ in inputs) if open_batch else None
    with quiet():
        program = torch.onnx.export(
            graph,
            tuple(inputs),
            dynamo=True,
            verbose=False,
            optimize=True,  # sizes of an open batch become constants: no arithmetic on them is left
            opset_version=opset,
            dynamic_shapes=axes,
            input_names=[part["name"] for part in inputs_of(record)],
            output_names=[record["output"]["name"], *(s["next"] for s in record["states"])],
        )
    assert program is not None
    return program.model_proto


def inputs_of(record: Mapping[str, Any]) -> list[Any]:
    """The inputs of a graph, in order: the input, the times if there are any, the states."""
    times = [record["times"]] if record["times"] else []
    return [record["input"], *times, *record["states"]]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences PyTorch's exporter about itself, such as that torchvision is missing."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def require(*packages: str) -> None:
    """Raise `MissingExtraError` unless all are installed."""
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("an ONNX file", package, "onnx")
