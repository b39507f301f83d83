"""Read a step, an ordinary PyTorch function, once: what it does to values becomes a graph.

The function is called with `Value` in place of tensors, which know the functions of PyTorch by
`__torch_function__` and write a node down for each. What a step must not do is refused with the
user's line and what to write instead.
"""

import functools
import itertools
import linecache
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Complex, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from linrnn.engine.graph import LEAVES, MIXING, SPREADS, Graph, Program, block_product, finish
from linrnn.engine.operations import LOGICAL, TRUTHS
from linrnn.engine.values import Matrix, Symbol, Value, Writer, numbers_like
from linrnn.errors import ArgumentError, LinrnnError

_OURS = os.path.dirname(__file__)
_FOREIGN = (_OURS, os.path.dirname(torch.__file__), os.path.dirname(functools.__file__) + "/func")


class Names(NamedTuple):
    """The arguments of a step by kind, and which of them are complex."""

    states: tuple[str, ...]
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    matrices: tuple[str, ...]
    is_complex: frozenset[str]

    def parts(self, kind: int) -> tuple[str, ...]:
        """The real leaves of a kind: one an argument, two where it is complex."""
        return tuple(
            part
            for name in self[kind]
            for part in ((f"{name}.real", f"{name}.imag") if name in self.is_complex else (name,))
        )


class Traced(NamedTuple):
    """A step as a program, and what its real outputs belong to."""

    program: Program
    complex_outputs: tuple[bool, ...]
    """For each output whether it is two outputs of the program."""
    single: bool
    """Whether the step returns one output that is no tuple."""


def block_linear(x: Any, weight: Any) -> Any:
    """A product for each head: ``weight`` (heads, M, N) times ``x`` (..., heads * N).

    As `torch.nn.functional.linear` with a matrix of blocks: the heads lie one after the other in
    the last axis of ``x`` and of the result (..., heads * M).

    Example:
        >>> import torch
        >>> block_linear(torch.tensor([1.0, 2, 3, 4]), torch.ones(2, 1, 2))
        tensor([3., 7.])
    """
    if has_torch_function((x, weight)):
        return handle_torch_function(block_linear, (x, weight), x, weight)
    return block_product(weight, x)


def spread(x: Any, n: int, *, each: bool = False) -> Any:
    """Repeat channels: all of (..., H) n times over, or each n times: (..., n * H).

    Example:
        >>> import torch
        >>> spread(torch.tensor([1.0, 2]), 2), spread(torch.tensor([1.0, 2]), 2, each=True)
        (tensor([1., 2., 1., 2.]), tensor([1., 1., 2., 2.]))
    """
    if has_torch_function((x,)):
        return handle_torch_function(spread, (x,), x, n, each=each)
    return SPREADS["spread_each" if each else "spread"](x, n)


def fold(x: Any, n: int, *, each: bool = False) -> Any:
    """Sum channels up, (..., n * H) to (..., H): n parts of H each, or every n that lie together.

    The transpose of `spread` with the same arguments.

    Example:
        >>> import torch
        >>> fold(torch.tensor([1.0, 2, 3, 4]), 2), fold(torch.tensor([1.0, 2, 3, 4]), 2, each=True)
        (tensor([4., 6.]), tensor([3., 7.]))
    """
    if has_torch_function((x,)):
        return handle_torch_function(fold, (x,), x, n, each=each)
    return SPREADS["fold_each" if each else "fold"](x, n)


def trace(where: str, step: Callable[..., Any], order: Sequence[str], names: Names) -> Traced:
    """The program of ``step``.

    Args:
        where: for messages.
        step: ``step(*arguments)`` returns ``(outputs, next states)``, each a tensor or a tuple.
        order: the names of its arguments.
        names: their kinds.

    Raises:
        ArgumentError: the step does what no graph can hold; names the line.
    """
    tracer = Tracer(where)
    values: dict[str, Symbol] = {}
    for kind, leaf_kind in enumerate(LEAVES):
        index = itertools.count()
        for name in names[kind]:
            re, im = tracer.graph.leaf(leaf_kind, next(index)), None
            if name in names.is_complex:
                im = tracer.graph.leaf(leaf_kind, next(index))
            values[name] = (Matrix if leaf_kind == "matrix" else Value)(tracer, re, im)
    with torch.enable_grad():
        results = _read(tracer, step, [values[name] for name in order])
    outputs, states, single = _results(tracer, results, len(names.states))
    for name, value in zip(names.states, states, strict=True):
        if value.im is not None and name not in names.is_complex:
            raise ArgumentError(
                f"{where}: the state {name} must stay real, got a complex one. "
                f"Declare it: complex={name!r}."
            )
    complex_outputs = tuple([y.im is not None for y in outputs])
    graph = tracer.graph
    widths_differ = bool(names.matrices) or any([x.op in MIXING for x in graph.nodes])
    flat_states, flat_outputs = list[int](), list[int]()
    for name, value in zip(names.states, states, strict=True):
        leaf = values[name].re if widths_differ else None
        flat_states += _real_parts(graph, value, name in names.is_complex, leaf)
    leaf = values[names.states[0]].re if widths_differ else None
    for y, is_complex in zip(outputs, complex_outputs, strict=True):
        flat_outputs += _real_parts(graph, y, is_complex, leaf)
    kinds = [names.parts(kind) for kind in range(4)]
    program = finish(tracer.graph, kinds, flat_outputs, flat_states)
    return Traced(program, complex_outputs, single)


def _real_parts(graph: Graph, value: Value, is_complex: bool, leaf: int | None) -> list[int]:
    """The real parts of a result; of a number in as many channels as it is to have.

    Where values differ in width, and a leaf is given, it has none. A part of a complex result is as
    wide as its other part; what was made like a value, as wide as that; anything else as the leaf.
    """
    handles = list(value.pair()) if is_complex else [value.re]
    if leaf is None:
        return handles
    vector = next((x for x in handles if graph.value(x) is None), value.like)
    like = leaf if vector is None else vector
    return [x if graph.value(x) is None else numbers_like(graph, x, like) for x in handles]


def _read(tracer: "Tracer", step: Callable[..., Any], values: Sequence[Symbol]) -> object:
    """Run a step; an error in it becomes one of ours, with its line."""
    try:
        return step(*values)
    except (LinrnnError, NameError, ImportError, AssertionError):
        raise
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            if place.tb_next.tb_frame.f_code.co_filename.startswith(_FOREIGN):
                break
            place = place.tb_next
        frame = sys._getframe() if place is None else place.tb_frame
        line = 0 if place is None else place.tb_lineno
        got = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
        fix = "Stay with values and with the functions that linrnn.cells.functions() lists."
        raise tracer.refused_at(frame.f_code.co_filename, line, got, fix) from error


def _results(
    tracer: "Tracer", results: object, n_states: int
) -> tuple[list[Value], list[Value], bool]:
    where = tracer.where
    if not isinstance(results, tuple) or len(results) != 2:
        raise ArgumentError(
            f"{where}: the step must return (output, next state), got "
            f"{type(results).__name__}. A step that gives out its state returns h, h."
        )
    outputs, states = (x if isinstance(x, tuple) else (x,) for x in results)
    if len(states) != n_states:
        raise ArgumentError(
            f"{where}: the step must return {n_states} next states, one for each state, "
            f"got {len(states)}. Return output, (state, state, ...)."
        )
    single = not isinstance(results[0], tuple)
    return [tracer.value(y) for y in outputs], [tracer.value(h) for h in states], single


class Tracer(Writer):
    """Writes a graph for values, and words what it refuses."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.graph: Graph = Graph()

    def refuse(self, got: str, fix: str) -> ArgumentError:
        """The error that names the line of the user's code that is running."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOREIGN):
            frame = frame.f_back
        return self.refused_at(frame.f_code.co_filename, frame.f_lineno, got, fix)

    def refused_at(self, path: str, line: int, got: str, fix: str) -> ArgumentError:
        """The error that names a line of the user's code."""
        source = linecache.getline(path, line).strip()
        text = f" (`{source:.80}`)" if source else ""
        return ArgumentError(
            f"{self.where}, {os.path.basename(path)}:{line}{text}: a step must be elementwise "
            f"operations and products with matrices, got {got}. {fix}"
        )

    def operand(self, x: object) -> Value:
        """Numbers and tensors that hold one number as constants."""
        if isinstance(x, Matrix):
            raise self.refuse(
                "a matrix among elementwise operations",
                "Use a matrix in torch.nn.functional.linear or linrnn.cells.block_linear only.",
            )
        if isinstance(x, Tensor) and x.ndim == 0 and not x.requires_grad:
            x = x.item()
        if isinstance(x, Complex) and not isinstance(x, Real):
            return Value(self, *(self.constant(part) for part in (x.real, x.imag)))
        if isinstance(x, Real):  # numbers of NumPy and fractions too
            return Value(self, self.constant(x))
        raise self.refuse(
            f"a {type(x).__name__} that is no argument of it",
            "Make it an argument and say what it is: an input, constant or matrix of the cell.",
        )

    def constant(self, x: Any) -> int:
        """The node of a Python number."""
        try:
            return self.graph.constant(float(x))
        except OverflowError:
            raise self.refuse("a number that is too large", "Give it as a float.") from None

    def is_truth(self, node: int) -> bool:
        """Whether a node is what PyTorch would hold as a boolean."""
        op, args, _ = self.graph.nodes[node]
        truths = args[1:] if op == "where" else args
        return op in TRUTHS or (op in LOGICAL and all(map(self.is_truth, truths)))

    def check_call(self, name: str, kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that a step must not make, whatever its arguments are."""
        if kwargs.get("inplace"):
            raise self.refuse(f"{name}() in place", "Leave inplace=True away.")
        if not torch.is_grad_enabled():
            raise self.refuse("an operation without gradients", "Leave torch.no_grad away.")

    def widened(self, result: Value, arguments: Sequence[Symbol]) -> Value:
        """A result; one that is a number is as wide as the first argument that has a width."""
        if result.like is not None or self.graph.value(result.re) is None:
            return result
        nodes = (x.re if self.graph.value(x.re) is None else x.like for x in arguments)
        return Value(self, result.re, result.im, next((x for x in nodes if x is not None), None))
