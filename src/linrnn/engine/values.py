"""The values of a step, which replace tensors while it is read, and who writes its graph for them.

A function on values (`linrnn.engine.functions`) is written once, for cells
(`linrnn.engine.trace`) and for recorded steps (`linrnn.engine.replay.rules`).
"""

import functools
import linecache
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Complex, Real
from typing import Any

import torch
from torch import Tensor

from linrnn.engine.graph import Graph
from linrnn.engine.operations import LOGICAL, TRUTHS
from linrnn.errors import ArgumentError

#: Where code lies that is not the user's.
FOREIGN = (
    os.path.dirname(__file__),
    os.path.dirname(torch.__file__),
    os.path.dirname(functools.__file__) + "/func",
)

#: Functions that a step may use, by their name in `torch`, `torch.Tensor` or
#: `torch.nn.functional`; the modules that define them on values fill it in.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


class Tracer:
    """Writes a graph for values, and words what it refuses.

    Args:
        where: for messages.
        refusal: makes the error of what is refused, without a line of the user's code.
    """

    def __init__(self, where: str, refusal: Callable[[str], Exception] | None = None) -> None:
        self.where, self.refusal = where, refusal
        self.graph = Graph()
        #: Leaves that PyTorch would hold as booleans.
        self.truths: set[int] = set()

    def refuse(self, got: str, fix: str) -> Exception:
        """The error that names the line of the user's code that is running."""
        if self.refusal is not None:
            return self.refusal(got)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(FOREIGN):
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

    def operand(self, x: object) -> "Value":
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
        return (
            node in self.truths
            or op in TRUTHS
            or (op in LOGICAL and all(map(self.is_truth, truths)))
        )

    def check_call(self, name: str, kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that a step must not make, whatever its arguments are."""
        if kwargs.get("inplace"):
            raise self.refuse(f"{name}() in place", "Leave inplace=True away.")
        if not torch.is_grad_enabled():
            raise self.refuse("an operation without gradients", "Leave torch.no_grad away.")

    def widened(self, result: "Value", arguments: Sequence["Symbol"]) -> "Value":
        """A result; one that is a number is as wide as the first argument that has a width."""
        if result.like is not None or self.graph.value(result.re) is None:
            return result
        nodes = (x.re if self.graph.value(x.re) is None else x.like for x in arguments)
        return Value(self, result.re, result.im, next((x for x in nodes if x is not None), None))

    def value(self, x: object) -> "Value":
        """An argument as a value."""
        return x if isinstance(x, Value) else self.operand(x)

    def real(self, op: str, *args: "Value | float") -> "Value":
        """An elementwise operation on values that must be real."""
        values = [self.value(x) for x in args]
        if any(x.im is not None for x in values):
            raise self.refuse(
                f"{op} of a complex number", "Write it with the .real and .imag of the number."
            )
        return Value(self, self.graph(op, *(x.re for x in values)))


def call(tracer: Tracer, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Value":
    """Apply the PyTorch function of that name to values."""
    name = _NAMES.get(name, name.removeprefix("special_"))
    tracer.check_call(name, kwargs)
    if name not in FUNCTIONS:
        raise tracer.refuse(f"{name}()", refusal(name))
    try:
        result: Value = FUNCTIONS[name](tracer, *args, **kwargs)
    except TypeError as error:
        fix = "Use the arguments it has for numbers, or write it out."
        raise tracer.refuse(f"{name}() with arguments that are not known: {error}", fix) from None
    return tracer.widened(result, _flat([*args, *kwargs.values()]))


#: By the names that PyTorch has for them: what operators of Python are.
_NAMES = {"_threshold": "threshold"}
_NAMES |= {"__rpow__": "rpow", "__and__": "bitwise_and", "__or__": "bitwise_or"}
_NAMES |= {"__rand__": "bitwise_and", "__ror__": "bitwise_or", "__xor__": "bitwise_xor"}
_NAMES |= {"__rxor__": "bitwise_xor", "__rdiv__": "rdiv", "__rfloordiv__": "floor_divide"}
_NAMES |= {"__rsub__": "rsub", "__rmod__": "rmod", "__floordiv__": "floor_divide"}


def _operator(name: str, swapped: bool = False) -> Callable[..., "Value"]:
    def method(self: "Symbol", *operands: Any) -> "Value":
        args = (*operands, self) if swapped else (self, *operands)
        return call(self.tracer, name, args, {})

    return method


def _forbidden(got: str, fix: str) -> Callable[..., Any]:
    def method(self: "Symbol", *args: Any) -> Any:
        raise self.tracer.refuse(got, fix)

    return method


_CHOOSE = "Choose with torch.where(condition, a, b)."
_PARTS = "Every value is one number a channel: give parts as arguments of their own."


class Symbol:
    """A stand-in for a tensor while a step is read: a `Value`, or a `Matrix`."""

    __slots__ = ("im", "like", "re", "tracer")

    def __init__(self, tracer: Tracer, re: Any, im: Any = None, like: int | None = None) -> None:
        self.tracer, self.re, self.im = tracer, re, im
        #: The node that a number is as wide as, if it was made so.
        self.like = like

    def pair(self) -> tuple[Any, Any]:
        """Real and imaginary part."""
        return self.re, self.tracer.graph.constant(0.0) if self.im is None else self.im

    @property
    def real(self) -> "Value":
        """The real part."""
        return Value(self.tracer, self.re)

    @property
    def imag(self) -> "Value":
        """The imaginary part, 0 of a real number."""
        return Value(self.tracer, self.pair()[1])

    @property
    def H(self) -> Any:  # noqa: N802
        """The conjugate transpose; which only matrices have."""
        return self.mT

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> "Value":
        receiver = next((x for x in _flat([*args, *(kwargs or {}).values()])), None)
        assert receiver is not None
        name = func.__name__
        if func is Tensor.where:  # the method's condition is its second argument
            args = (args[1], args[0], *args[2:])
        if name == "__get__":  # a property of tensors
            return getattr(receiver, func.__self__.__name__)  # type: ignore[no-any-return]
        return call(receiver.tracer, name, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(Tensor, name, None)):
            raise self.tracer.refuse(f".{name} of a value", refusal(name))
        return lambda *args, **kwargs: call(self.tracer, name, (self, *args), kwargs)

    def where(self, condition: Any, other: Any) -> "Value":
        """The value where the condition holds, else the other one."""
        return call(self.tracer, "where", (condition, self, other), {})

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
    __delitem__ = _forbidden("a part of a value deleted", _PARTS)
    __iadd__ = _forbidden("a value changed in place", "Write x = x + y for x += y.")
    __isub__ = __imul__ = __itruediv__ = __imod__ = __ifloordiv__ = __ipow__ = __iadd__
    __iand__ = __ior__ = __ixor__ = __imatmul__ = __iadd__
    __iter__ = __len__ = _forbidden("a value taken apart", _PARTS)


class Value(Symbol):
    """A number a channel, as a step sees it while it is read."""

    __slots__ = ()


class Matrix(Symbol):
    """A matrix, as a step sees it; it has a transpose and products."""

    __slots__ = ("transposed",)

    def __init__(
        self, tracer: Tracer, re: int, im: int | None = None, transposed: bool = False
    ) -> None:
        super().__init__(tracer, re, im)
        self.transposed = transposed

    def transpose(self, *axes: int) -> "Matrix":
        """The matrix with its last two axes exchanged."""
        if axes and {x % 2 for x in axes} != {0, 1}:
            raise self.tracer.refuse("a transpose of other axes", "Use matrix.mT.")
        return Matrix(self.tracer, self.re, self.im, not self.transposed)

    t = adjoint = transpose

    @property
    def T(self) -> "Matrix":  # noqa: N802
        """The transpose."""
        return self.transpose()

    mT = T


def _flat(args: Sequence[Any]) -> list[Symbol]:
    values = list[Symbol]()
    for x in args:
        values += _flat(x) if isinstance(x, (list, tuple)) else [x] if isinstance(x, Symbol) else []
    return values


def product(tracer: Tracer, op: str, matrix: Any, x: Any, transposed: bool) -> Value:
    """A matrix times a vector, each real or complex."""
    if not isinstance(matrix, Matrix) or not isinstance(x, Value):
        raise tracer.refuse(
            "a product of other things than a value and a matrix",
            "Declare the matrix: matrix='W', and write F.linear(h, W) or h @ W.",
        )
    graph: Graph = tracer.graph
    parts = [x.re] if x.im is None else [x.re, x.im]
    vector = next((v for v in parts if graph.value(v) is None), x.like)

    def times(w: int, v: int) -> int:
        if graph.value(v) is not None:
            if vector is None:
                raise tracer.refuse(
                    "a product of a matrix and a number",
                    "Say how many channels it has: torch.full_like(h, number).",
                )
            v = numbers_like(graph, v, vector)
        return graph.contract(op, w, v, transposed != matrix.transposed)

    if matrix.im is None:
        return Value(
            tracer, times(matrix.re, x.re), None if x.im is None else times(matrix.re, x.im)
        )
    re, im = times(matrix.re, x.re), times(matrix.im, x.re)
    if x.im is not None:
        re = graph("sub", re, times(matrix.im, x.im))
        im = graph("add", im, times(matrix.re, x.im))
    return Value(tracer, re, im)


def numbers_like(graph: Graph, number: int, like: int) -> int:
    """A number in every channel of a node."""
    return graph("where", graph("lt", like, like), like, number)


#: Functions that a step must not use, for messages that say what to write instead.
_REDUCTIONS = """
    sum mean prod max min amax amin argmax argmin norm var std softmax log_softmax logsumexp
    cumsum cumprod any all item tolist numpy rms_norm group_norm layer_norm median nansum
    nanmean count_nonzero aminmax topk sort argsort dist vdot dot inner equal allclose
    cosine_similarity normalize softmin
"""
_VIEWS = """
    view reshape unflatten flatten chunk split unbind unsqueeze squeeze transpose permute expand
    cat stack narrow flip index_select gather T mT shape size ndim dim concat concatenate hstack
    vstack dstack expand_as view_as numel nelement broadcast_to movedim swapaxes t ravel diff
    glu tensor_split select take diag tril triu outer kron len pad
"""
_CASTS = """
    float double half bfloat16 to type cpu cuda dtype device int long bool short byte char
    cfloat cdouble is_floating_point is_complex element_size
"""
_DRAWS = ("rand", "bernoulli", "normal", "poisson", "multinomial", "binomial", "gumbel", "rrelu")

#: Functions that are made of a few others, and these.
_WRITTEN = {
    "asin": "torch.atan2(x, torch.sqrt((1 - x) * (1 + x)))",
    "acos": "torch.atan2(torch.sqrt((1 - x) * (1 + x)), x)",
    "asinh": "torch.log(x + torch.sqrt(x * x + 1)), for x that is not far below 0",
    "acosh": "torch.log(x + torch.sqrt((x - 1) * (x + 1)))",
    "atanh": "0.5 * (torch.log1p(x) - torch.log1p(-x))",
    "logit": "torch.log(x) - torch.log1p(-x)",
    "hypot": "torch.sqrt(x * x + y * y)",
    "erfc": "1 - torch.erf(x), which is 0 where x is large",
    "erfinv": "it before the scan",
    "logaddexp2": "torch.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)",
    "xlogy": "x * torch.log(y)",
    "xlog1py": "x * torch.log1p(y)",
    "sinc": "torch.where(x == 0, 1.0, torch.sin(math.pi * x) / (math.pi * x))",
    "fmax": "torch.maximum(x, y), which passes NaN on",
    "fmin": "torch.minimum(x, y), which passes NaN on",
    "copysign": "torch.where(y < 0, -torch.abs(x), torch.abs(x))",
    "signbit": "x < 0",
    "isposinf": "x == math.inf",
    "isneginf": "x == -math.inf",
    "isreal": "x.imag == 0",
    "isclose": "torch.abs(x - y) <= 1e-8 + 1e-5 * torch.abs(y)",
    "heaviside": "torch.where(x == 0, y, torch.where(x > 0, 1.0, 0.0))",
    "nan_to_num": "torch.where(torch.isnan(x), 0.0, x)",
    "ldexp": "x * torch.pow(2.0, y)",
    "float_power": "torch.pow(x, y)",
    "floor_divide": "torch.div(x, y, rounding_mode='floor'), which has a derivative, 0",
    "hardsigmoid": "torch.clamp(x / 6 + 0.5, 0, 1)",
    "hardswish": "x * torch.clamp(x / 6 + 0.5, 0, 1)",
    "hardshrink": "torch.where(torch.abs(x) > 0.5, x, 0.0)",
    "softshrink": "x - torch.clamp(x, -0.5, 0.5)",
    "prelu": "torch.where(x > 0, x, weight * x)",
    "angle": "torch.atan2(x.imag, x.real)",
    "dist": "it after the scan",
    "is_nonzero": "x != 0",
}


def refusal(name: str) -> str:
    """Say what to write instead of a function that a step must not use."""
    base_name = name.strip("_")
    if base_name.endswith(("shift", "gcd", "lcm")) or base_name in ("lshift", "rshift"):
        return "Bits of numbers have no derivative: compute it before or after."
    if base_name in _WRITTEN and not _in_place(name):
        return f"Write {_WRITTEN[base_name]}."
    if base_name in _REDUCTIONS.split():
        return "A sum of channels is linrnn.cells.fold; anything else belongs before or after."
    if base_name in ("repeat", "repeat_interleave", "tile"):
        return "Channels are repeated by linrnn.cells.spread."
    if base_name in _VIEWS.split():
        return "Every value is one number a channel: give parts as arguments of their own."
    if base_name in _CASTS.split():
        return "Leave it away: a scan computes in at least float32 and stores in its inputs' dtype."
    if name in ("detach", "requires_grad_"):
        return "Detach the argument before the scan; inside, gradients are those of the equation."
    if "dropout" in base_name or base_name.startswith(_DRAWS):
        return "Draw the random numbers before the scan and make them an input."
    if _in_place(name):
        return f"Nothing is changed in place: write x = x.{name.rstrip('_')}(...)."
    return (
        "Write it with the functions that linrnn.cells.functions() lists, or compute it before "
        "or after."
    )


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")
