"""Read a step, an ordinary PyTorch function, once: what it does to values becomes a graph.

The function is called with `Value` in place of tensors, which know the functions of PyTorch by
`__torch_function__` and write a node down for each. What a step must not do is refused with the
user's line and what to write instead.
"""

import functools
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from numbers import Complex, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from linrnn.cells._graph import MIXING, SPREADS, Graph, Program, block_product, finish
from linrnn.errors import ArgumentError, LinrnnError

_OURS = os.path.dirname(__file__)
_FOREIGN = (_OURS, os.path.dirname(torch.__file__), os.path.dirname(functools.__file__) + "/func")


Parts = Sequence[tuple[int, ...]]
"""Of values the node of each real part: one, or two of a complex value."""


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
    given: dict[str, Value] = {}
    for kind, leaf in enumerate(("state", "input", "parameter", "matrix")):
        index = 0
        for name in names[kind]:
            parts = [tracer.graph.leaf(leaf, index)]
            if name in names.is_complex:
                parts.append(tracer.graph.leaf(leaf, index + 1))
            re, im = parts[0], parts[1] if len(parts) > 1 else None
            given[name] = (Matrix if leaf == "matrix" else Value)(tracer, re, im)
            index += len(parts)
    with torch.enable_grad():
        results = _read(tracer, step, [given[name] for name in order])
    outputs, states, single = _results(tracer, results, len(names.states))
    for name, value in zip(names.states, states, strict=True):
        if value.im is not None and name not in names.is_complex:
            raise ArgumentError(
                f"{where}: the state {name} must stay real, got a complex one. "
                f"Declare it: complex={name!r}."
            )
    nodes: Parts = [
        value.pair() if name in names.is_complex else (value.re,)
        for name, value in zip(names.states, states, strict=True)
    ]
    complex_outputs = tuple(y.im is not None for y in outputs)
    given_out: Parts = [(y.re,) if y.im is None else (y.re, y.im) for y in outputs]
    if names.matrices or any(x.op in MIXING for x in tracer.graph.nodes):
        given_out, nodes = _as_wide(tracer.graph, given_out, outputs, nodes, states)
    kinds = [names.parts(kind) for kind in range(4)]
    flat_outputs, flat_states = (
        [x for parts in some for x in parts] for some in (given_out, nodes)
    )
    program = finish(tracer.graph, kinds, flat_outputs, flat_states)
    return Traced(program, complex_outputs, single)


def _read(tracer: "Tracer", step: Callable[..., Any], values: Sequence["Value"]) -> object:
    """What a step returns; an error in it that is none of ours is one of ours, with its line."""
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


def _as_wide(
    graph: Graph,
    outputs: Parts,
    output_values: Sequence["Value"],
    states: Parts,
    state_values: Sequence["Value"],
) -> tuple[Parts, Parts]:
    """Results that are numbers, in as many channels as they are to have.

    Where values differ in width a number has none. A part of a complex result is as wide as its
    other part; what was made like a value, as wide as that; other outputs are as wide as the first
    state, and next states as the state.
    """
    place = 0
    wide_states = []
    for parts, value in zip(states, state_values, strict=True):
        wide_states.append(_one_width(graph, parts, value, graph.leaf("state", place)))
        place += len(parts)
    first = graph.leaf("state", 0)
    pairs = zip(outputs, output_values, strict=True)
    return [_one_width(graph, parts, value, first) for parts, value in pairs], wide_states


def _one_width(graph: Graph, parts: tuple[int, ...], value: "Value", leaf: int) -> tuple[int, ...]:
    wide = next((x for x in parts if graph.value(x) is None), value.like)
    like = leaf if wide is None else wide
    return tuple(x if graph.value(x) is None else _numbers_like(graph, x, like) for x in parts)


def _numbers_like(graph: Graph, number: int, like: int) -> int:
    """A number in every channel of a node."""
    return graph("where", graph("lt", like, like), like, number)


def _results(
    tracer: "Tracer", results: object, n_states: int
) -> tuple[list["Value"], list["Value"], bool]:
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


class Tracer:
    """Writes a graph for values, and words what it refuses."""

    def __init__(self, where: str) -> None:
        self.where, self.graph = where, Graph()

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

    def value(self, x: object) -> "Value":
        """Numbers and tensors that hold one number as constants."""
        if isinstance(x, Matrix):
            raise self.refuse(
                "a matrix among elementwise operations",
                "Use a matrix in torch.nn.functional.linear or linrnn.cells.block_linear only.",
            )
        if isinstance(x, Value):
            return x
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

    def real(self, op: str, *args: "Value | float") -> "Value":
        """An operation of the graph on values that must be real."""
        values = [self.value(x) for x in args]
        if any(x.im is not None for x in values):
            raise self.refuse(
                f"{op} of a complex number", "Write it with the .real and .imag of the number."
            )
        return Value(self, self.graph(op, *(x.re for x in values)))


def _call(tracer: Tracer, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> "Value":
    """What the PyTorch function of that name does to values."""
    from linrnn.cells._functions import FUNCTIONS
    from linrnn.cells._refusals import refusal

    name = _NAMES.get(name, name.removeprefix("special_"))
    if kwargs.get("inplace"):
        raise tracer.refuse(f"{name}() in place", "Leave inplace=True away.")
    if not torch.is_grad_enabled():
        raise tracer.refuse("an operation without gradients", "Leave torch.no_grad away.")
    if name not in FUNCTIONS:
        raise tracer.refuse(f"{name}()", refusal(name))
    try:
        found: Value = FUNCTIONS[name](tracer, *args, **kwargs)
    except TypeError as error:
        fix = "Use the arguments it has for numbers, or write it out."
        raise tracer.refuse(f"{name}() with arguments that are not known: {error}", fix) from None
    if isinstance(found, Value) and found.like is None and tracer.graph.value(found.re) is not None:
        found = Value(tracer, found.re, found.im, _width_of(_flat([*args, *kwargs.values()])))
    return found


def _width_of(values: Sequence["Value"]) -> int | None:
    """A node as wide as the first of some values that has a width."""
    nodes = (x.re if x.tracer.graph.value(x.re) is None else x.like for x in values)
    return next((x for x in nodes if x is not None), None)


#: By the names that PyTorch has for them: what operators of Python are.
_NAMES = {"_threshold": "threshold"}
_NAMES |= {"__rpow__": "rpow", "__and__": "bitwise_and", "__or__": "bitwise_or"}
_NAMES |= {"__rand__": "bitwise_and", "__ror__": "bitwise_or", "__xor__": "bitwise_xor"}
_NAMES |= {"__rxor__": "bitwise_xor", "__rdiv__": "rdiv", "__rfloordiv__": "floor_divide"}
_NAMES |= {"__rsub__": "rsub", "__rmod__": "rmod", "__floordiv__": "floor_divide"}


def _operator(name: str, swapped: bool = False) -> Callable[..., "Value"]:
    def call(self: "Value", *others: Any) -> "Value":
        args = (*others, self) if swapped else (self, *others)
        return _call(self.tracer, name, args, {})

    return call


def _forbidden(got: str, fix: str) -> Callable[..., Any]:
    def call(self: "Value", *args: Any) -> Any:
        raise self.tracer.refuse(got, fix)

    return call


_CHOOSE = "Choose with torch.where(condition, a, b)."
_PARTS = "Every value is one number a channel: give parts as arguments of their own."


class Value:
    """A number a channel, as a step sees it while it is read."""

    __slots__ = ("im", "like", "re", "tracer")

    def __init__(
        self, tracer: Tracer, re: int, im: int | None = None, like: int | None = None
    ) -> None:
        self.tracer, self.re, self.im = tracer, re, im
        #: Of a number the node that it is as wide as, if it was made so.
        self.like = like

    def pair(self) -> tuple[int, int]:
        """Real and imaginary part."""
        return self.re, self.tracer.graph.constant(0.0) if self.im is None else self.im

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> "Value":
        found = next((x for x in _flat([*args, *(kwargs or {}).values()])), None)
        assert found is not None
        name = func.__name__
        if func is Tensor.where:  # the method's condition is its second argument
            args = (args[1], args[0], *args[2:])
        if name == "__get__":  # a property of tensors
            return getattr(found, func.__self__.__name__)  # type: ignore[no-any-return]
        return _call(found.tracer, name, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from linrnn.cells._functions import PROPERTIES
        from linrnn.cells._refusals import refusal

        if name in PROPERTIES:
            return PROPERTIES[name](self)
        if not callable(getattr(Tensor, name, None)):
            raise self.tracer.refuse(f".{name} of a value", refusal(name))
        return lambda *args, **kwargs: _call(self.tracer, name, (self, *args), kwargs)

    def where(self, condition: Any, other: Any) -> "Value":
        """The value where the condition holds, else the other one."""
        return _call(self.tracer, "where", (condition, self, other), {})

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", True)
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", True)
    __divmod__, __rdivmod__ = _operator("floor_divide"), _operator("floor_divide", True)
    __xor__, __rxor__ = _operator("bitwise_xor"), _operator("bitwise_xor", True)
    __lshift__, __rlshift__ = _operator("lshift"), _operator("lshift", True)
    __rshift__, __rrshift__ = _operator("rshift"), _operator("rshift", True)
    __neg__, __abs__, __invert__ = _operator("neg"), _operator("abs"), _operator("bitwise_not")
    __pos__ = _operator("positive")
    __and__, __rand__ = _operator("bitwise_and"), _operator("bitwise_and", True)
    __or__, __ror__ = _operator("bitwise_or"), _operator("bitwise_or", True)
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __eq__ = _operator("eq")  # type: ignore[assignment]
    __ne__ = _operator("ne")  # type: ignore[assignment]
    __hash__ = object.__hash__
    __bool__ = _forbidden("a decision in Python on a value", _CHOOSE)
    __float__ = _forbidden("a value made a Python number", "Stay with tensors; " + _CHOOSE)
    __int__ = __index__ = __complex__ = __float__
    __round__ = _forbidden("Python's round() of a value", "Write torch.round(x).")
    __floor__ = _forbidden("math.floor() of a value", "Write torch.floor(x).")
    __ceil__ = _forbidden("math.ceil() of a value", "Write torch.ceil(x).")
    __trunc__ = _forbidden("math.trunc() of a value", "Write torch.trunc(x).")
    __array__ = _forbidden("a value made a NumPy array", "Use PyTorch's functions.")
    __array_ufunc__ = None
    __copy__ = __deepcopy__ = _forbidden("a copy of a value", "It never changes: leave it away.")
    __contains__ = _forbidden("a search in a value", _CHOOSE)
    __getitem__ = _forbidden("an index into a value", _PARTS)
    __setitem__ = _forbidden("a value changed in place", "Write x = torch.where(...) instead.")
    __imod__ = __ifloordiv__ = __ipow__ = __iand__ = __ior__ = __ixor__ = __imatmul__ = _forbidden(
        "a value changed in place", "Write x = x + y for x += y."
    )
    __delitem__ = _forbidden("a part of a value deleted", _PARTS)
    __iadd__ = __isub__ = __imul__ = __itruediv__ = _forbidden(
        "a value changed in place", "Write x = x + y for x += y."
    )
    __iter__ = __len__ = _forbidden("a value taken apart", _PARTS)


class Matrix(Value):
    """A matrix, as a step sees it; it has a transpose and products."""

    __slots__ = ("turned",)

    def __init__(
        self, tracer: Tracer, re: int, im: int | None = None, turned: bool = False
    ) -> None:
        super().__init__(tracer, re, im)
        self.turned = turned

    def transpose(self, *axes: int) -> "Matrix":
        """The matrix with its last two axes exchanged."""
        if axes and {x % 2 for x in axes} != {0, 1}:
            raise self.tracer.refuse("a transpose of other axes", "Use matrix.mT.")
        return Matrix(self.tracer, self.re, self.im, not self.turned)

    t = adjoint = transpose

    @property
    def T(self) -> "Matrix":  # noqa: N802
        """The transpose."""
        return self.transpose()

    mT = T


def _flat(args: Sequence[Any]) -> list[Value]:
    found = []
    for x in args:
        found += _flat(x) if isinstance(x, (list, tuple)) else [x] if isinstance(x, Value) else []
    return found


def product(tracer: Tracer, op: str, matrix: Any, x: Any, turned: bool) -> Value:
    """A matrix times a vector, each real or complex."""
    if not isinstance(matrix, Matrix) or not isinstance(x, Value) or isinstance(x, Matrix):
        raise tracer.refuse(
            "a product of other things than a value and a matrix",
            "Declare the matrix: matrix='W', and write F.linear(h, W) or h @ W.",
        )
    graph = tracer.graph
    parts = [x.re] if x.im is None else [x.re, x.im]
    wide = next((v for v in parts if graph.value(v) is None), x.like)

    def times(w: int, v: int) -> int:
        if graph.value(v) is not None:
            if wide is None:
                raise tracer.refuse(
                    "a product of a matrix and a number",
                    "Say how many channels it has: torch.full_like(h, number).",
                )
            v = _numbers_like(graph, v, wide)
        return graph.contract(op, w, v, turned != matrix.turned)

    if matrix.im is None:
        return Value(
            tracer, times(matrix.re, x.re), None if x.im is None else times(matrix.re, x.im)
        )
    re, im = times(matrix.re, x.re), times(matrix.im, x.re)
    if x.im is not None:
        re = graph("sub", re, times(matrix.im, x.im))
        im = graph("add", im, times(matrix.re, x.im))
    return Value(tracer, re, im)
