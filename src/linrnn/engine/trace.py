"""Read a step, an ordinary PyTorch function, once: what it does to values becomes a graph.

The function is called with `Value` in place of tensors, which know the functions of PyTorch by
`__torch_function__` and write a node down for each. What a step must not do is refused with the
user's line and what to write instead.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from linrnn.engine.graph import LEAVES, MIXING, SPREADS, Graph, Program, finish
from linrnn.engine.values import FOREIGN, Matrix, Symbol, Tracer, Value, numbers_like
from linrnn.errors import ArgumentError, LinrnnError


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
    leaf = values[names.states[0]].re if widths_differ and names.states else None
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


def _read(tracer: Tracer, step: Callable[..., Any], values: Sequence[Symbol]) -> object:
    """Run a step; an error in it becomes one of ours, with its line."""
    try:
        return step(*values)
    except (LinrnnError, NameError, ImportError, AssertionError):
        raise
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            if place.tb_next.tb_frame.f_code.co_filename.startswith(FOREIGN):
                break
            place = place.tb_next
        frame = sys._getframe() if place is None else place.tb_frame
        line = 0 if place is None else place.tb_lineno
        got = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
        fix = "Stay with values and with the functions that linrnn.cells.functions() lists."
        raise tracer.refused_at(frame.f_code.co_filename, line, got, fix) from error


def _results(
    tracer: Tracer, results: object, n_states: int
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
