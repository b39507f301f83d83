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
            optimize=False,
            opset_version=opset,
            dynamic_shapes=axes,
            input_names=[part["name"] for part in inputs_of(record)],
            output_names=[record["output"]["name"], *(s["next"] for s in record["states"])],
        )
        assert program is not None
        _protect_scalars(program.model)
        program.optimize()  # sizes of an open batch become constants: no arithmetic on them is left
    return program.model_proto


def _protect_scalars(model: Any) -> None:
    """Give numbers near 0 and 1 an axis, so that the optimiser does not drop ``x + 1e-38``.

    It removes sums with numbers below 1e-8, and products with 1 up to 1e-5, but only of scalars.
    """
    import onnx_ir
    from onnxscript.optimizer import fold_constants

    fold_constants(model)  # or the scalars are still casts of others
    vectors: dict[str, Any] = {}
    for node in [*model.graph]:
        if node.op_type not in _NEUTRAL or node.domain:
            continue
        for i, (scalar, other) in enumerate(zip(node.inputs, reversed(node.inputs), strict=True)):
            if not other.shape or not _is_nearly(scalar.const_value, _NEUTRAL[node.op_type]):
                continue
            name = f"{scalar.name}_vector"
            if name not in vectors:
                array = scalar.const_value.numpy().reshape(1)
                vectors[name] = onnx_ir.val(name, const_value=onnx_ir.tensor(array, name=name))
                model.graph.register_initializer(vectors[name])
            node.replace_input_with(i, vectors[name])


_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
"""The number that each operation of two inputs leaves the other unchanged with."""


def _is_nearly(constant: Any, neutral: float) -> bool:
    """Whether a constant is a scalar near a number, and not that number."""
    if constant is None or constant.shape.rank() or constant.dtype.is_integer():
        return False
    number = float(constant.numpy())
    return number != neutral and abs(number - neutral) <= _NEAR


_NEAR = 1e-4  # ten times the tolerance of onnxscript 0.7 for factors


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
