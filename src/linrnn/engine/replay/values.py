"""Elementwise functions on numbers in memory, as instructions of a recorded step.

What a function of PyTorch is stands in `linrnn.engine.functions`, for cells and for steps alike;
here a handle is a `View` of memory, or a number.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.engine import functions as functions  # fills in what a step may use
from linrnn.engine.adjoint import backward
from linrnn.engine.graph import ELEMENTWISE, LEAVES, Node, Program, finish
from linrnn.engine.operations import LOGICAL, TRUTHS
from linrnn.engine.replay.operands import Number, Real, RefusedError, View
from linrnn.engine.replay.tape import Tape
from linrnn.engine.trace import Tracer
from linrnn.engine.values import Value, Writer, call
from linrnn.errors import ArgumentError


class _Instructions:
    """Writes an instruction for each operation: what a graph is for a cell."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def __call__(self, op: str, *args: Real) -> Real:
        numbers = [x for x in args if not isinstance(x, View)]
        if len(numbers) == len(args):
            return ELEMENTWISE[op].of_numbers(*numbers)
        result = self.tape.new(op, *args)
        truths = args[1:] if op == "where" else args
        if op in TRUTHS or (op in LOGICAL and all(map(self.tape.is_truth, truths))):
            self.tape.truths.add(result.slot)
        return result

    def value(self, x: Real) -> float | None:
        """A number that is no memory."""
        return None if isinstance(x, View) else x

    def constant(self, x: Any) -> float:
        """A number as a handle."""
        return float(x)


class Recording(Writer):
    """Writes instructions for values."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.graph = tape, _Instructions(tape)

    def refuse(self, got: str, fix: str) -> RefusedError:
        """The error that keeps a step from being recorded."""
        return RefusedError(got)

    def operand(self, x: object) -> Value:
        """A tensor of the recording, or a number."""
        return Value(self, *self.tape.number(x))

    def is_truth(self, handle: Real) -> bool:
        """Whether numbers are truth values."""
        return self.tape.is_truth(handle)


def write(
    tape: Tape, name: str, to: Number, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Write what a function of `linrnn.cells.functions` does.

    Args:
        tape: to write to.
        name: of the function.
        to: where its result belongs.
        args, kwargs: tensors of the recording and numbers.

    Raises:
        RefusedError: there is no such function, or not with these arguments.
    """
    start, recording = len(tape.instructions), Recording(tape)
    values = [recording.operand(x) if isinstance(x, Tensor) else x for x in args]
    options = {k: recording.operand(x) if isinstance(x, Tensor) else x for k, x in kwargs.items()}
    result = call(recording, name, values, options)
    tape.deliver(start, to, Number(result.re, result.im))


@functools.lru_cache(maxsize=256)
def _slope(name: str, options: tuple[Any, ...]) -> Program:
    """The gradient of a function of one number: of ``x`` and the gradient ``g`` of its result."""
    tracer = Tracer(name)
    x, g = (tracer.graph.leaf("input", i) for i in range(2))
    with torch.enable_grad():
        y = call(tracer, name, (Value(tracer, x), *options), {})
    graph = tracer.graph
    forward = finish(graph, ((), ("x", "g"), (), ()), (y.re,), ())
    gradients = {forward.outputs[0]: g}
    node_map = graph.copy(forward)
    backward(graph, forward, node_map, gradients)
    (leaf,) = (i for i, n in enumerate(forward.nodes) if n == Node("input", (), 0))
    return finish(graph, ((), ("x", "g"), (), ()), (gradients[leaf],), ())


def write_slope(tape: Tape, name: str, to: Number, x: Any, g: Any, *options: Any) -> None:
    """Write the gradient of a function of `linrnn.cells.functions` with one argument.

    Args:
        tape, name, to: as of `write`.
        x: the argument, real.
        g: the gradient of the result.
        options: more arguments, which are numbers.
    """
    start, recording = len(tape.instructions), Recording(tape)
    leaves = [recording.operand(z) for z in (x, g)]
    if any(z.im is not None for z in leaves):
        raise RefusedError("of complex numbers")
    try:
        program = _slope(name, options)
    except ArgumentError as error:
        raise RefusedError(f"of {name} with these options") from error
    handles: list[Any] = []
    for node in program.nodes:
        if node.op in LEAVES:
            handles.append(leaves[node.attribute].re)
        elif node.op == "constant":
            handles.append(node.attribute)
        else:
            handles.append(recording.graph(node.op, *(handles[i] for i in node.args)))
    tape.deliver(start, to, Number(handles[program.outputs[0]]))
