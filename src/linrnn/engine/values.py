"""The values of a step, which replace tensors while operations are recorded.

A function on values (`linrnn.engine.functions`) is written once. Who writes what it does decides
what becomes of it: a node of a graph (`linrnn.engine.trace`), or an instruction of a recorded step
(`linrnn.engine.replay.values`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from linrnn.engine.graph import Graph

#: Functions that a step may use, by their name in `torch`, `torch.Tensor` or
#: `torch.nn.functional`; the modules that define them on values fill it in.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


class Writer(ABC):
    """Writes operations on real numbers down, for values.

    A handle stands for a real number a channel; which type it has is the writer's business.
    """

    graph: Any
    """``graph(op, *handles)`` writes an elementwise operation; ``graph.value(handle)`` is the
    number of a constant, else None; ``graph.constant(x)`` the handle of a number."""

    @abstractmethod
    def refuse(self, got: str, fix: str) -> Exception:
        """The error of what cannot be written."""

    @abstractmethod
    def operand(self, x: object) -> "Value":
        """The value of an argument that is none yet."""

    @abstractmethod
    def is_truth(self, handle: Any) -> bool:
        """Whether a handle is what PyTorch would hold as a boolean."""

    def check_call(self, name: str, kwargs: Mapping[str, Any]) -> None:
        """Refuse a call of a function, whatever its arguments are; here none is."""
        return

    def widened(self, result: "Value", arguments: Sequence["Symbol"]) -> "Value":
        """A result of a function of arguments, which say how wide it is if it is a number."""
        return result

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


def call(writer: Writer, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Value":
    """Apply the PyTorch function of that name to values."""
    name = _NAMES.get(name, name.removeprefix("special_"))
    writer.check_call(name, kwargs)
    if name not in FUNCTIONS:
        raise writer.refuse(f"{name}()", refusal(name))
    try:
        result: Value = FUNCTIONS[name](writer, *args, **kwargs)
    except TypeError as error:
        fix = "Use the arguments it has for numbers, or write it out."
        raise writer.refuse(f"{name}() with arguments that are not known: {error}", fix) from None
    return writer.widened(result, _flat([*args, *kwargs.values()]))


#: By the names that PyTorch has for them: what operators of Python are.
_NAMES = {"_threshold": "threshold"}
_NAMES |= {"__rpow__": "rpow", "__and__": "bitwise_and", "__or__": "bitwise_or"}
_NAMES |= {"__rand__": "bitwise_and", "__ror__": "bitwise_or", "__xor__": "bitwise_xor"}
_NAMES |= {"__rxor__": "bitwise_xor", "__rdiv__": "rdiv", "__rfloordiv__": "floor_divide"}
_NAMES |= {"__rsub__": "rsub", "__rmod__": "rmod", "__floordiv__": "floor_divide"}


def _operator(name: str, swapped: bool = False) -> Callable[..., "Value"]:
    def method(self: "Symbol", *operands: Any) -> "Value":
        args = (*operands, self) if swapped else (self, *operands)
        return call(self.writer, name, args, {})

    return method


def _forbidden(got: str, fix: str) -> Callable[..., Any]:
    def method(self: "Symbol", *args: Any) -> Any:
        raise self.writer.refuse(got, fix)

    return method


_CHOOSE = "Choose with torch.where(condition, a, b)."
_PARTS = "Every value is one number a channel: give parts as arguments of their own."


class Symbol:
    """A stand-in for a tensor while a step is read: a `Value`, or a `Matrix`."""

    __slots__ = ("im", "like", "re", "writer")

    def __init__(self, writer: Writer, re: Any, im: Any = None, like: int | None = None) -> None:
        self.writer, self.re, self.im = writer, re, im
        #: The node that a number is as wide as, if it was made so.
        self.like = like

    def pair(self) -> tuple[Any, Any]:
        """Real and imaginary part."""
        return self.re, self.writer.graph.constant(0.0) if self.im is None else self.im

    @property
    def real(self) -> "Value":
        """The real part."""
        return Value(self.writer, self.re)

    @property
    def imag(self) -> "Value":
        """The imaginary part, 0 of a real number."""
        return Value(self.writer, self.pair()[1])

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
        return call(receiver.writer, name, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(Tensor, name, None)):
            raise self.writer.refuse(f".{name} of a value", refusal(name))
        return lambda *args, **kwargs: call(self.writer, name, (self, *args), kwargs)

    def where(self, condition: Any, other: Any) -> "Value":
        """The value where the condition holds, else the other one."""
        return call(self.writer, "where", (condition, self, other), {})

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


class Value(Symbol):
    """A number a channel, as a step sees it while it is read."""

    __slots__ = ()


class Matrix(Symbol):
    """A matrix, as a step sees it; it has a transpose and products."""

    __slots__ = ("transposed",)

    def __init__(
        self, writer: Writer, re: int, im: int | None = None, transposed: bool = False
    ) -> None:
        super().__init__(writer, re, im)
        self.transposed = transposed

    def transpose(self, *axes: int) -> "Matrix":
        """The matrix with its last two axes exchanged."""
        if axes and {x % 2 for x in axes} != {0, 1}:
            raise self.writer.refuse("a transpose of other axes", "Use matrix.mT.")
        return Matrix(self.writer, self.re, self.im, not self.transposed)

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


def product(writer: Writer, op: str, matrix: Any, x: Any, transposed: bool) -> Value:
    """A matrix times a vector, each real or complex."""
    if not isinstance(matrix, Matrix) or not isinstance(x, Value):
        raise writer.refuse(
            "a product of other things than a value and a matrix",
            "Declare the matrix: matrix='W', and write F.linear(h, W) or h @ W.",
        )
    graph: Graph = writer.graph
    parts = [x.re] if x.im is None else [x.re, x.im]
    vector = next((v for v in parts if graph.value(v) is None), x.like)

    def times(w: int, v: int) -> int:
        if graph.value(v) is not None:
            if vector is None:
                raise writer.refuse(
                    "a product of a matrix and a number",
                    "Say how many channels it has: torch.full_like(h, number).",
                )
            v = numbers_like(graph, v, vector)
        return graph.contract(op, w, v, transposed != matrix.transposed)

    if matrix.im is None:
        return Value(
            writer, times(matrix.re, x.re), None if x.im is None else times(matrix.re, x.im)
        )
    re, im = times(matrix.re, x.re), times(matrix.im, x.re)
    if x.im is not None:
        re = graph("sub", re, times(matrix.im, x.im))
        im = graph("add", im, times(matrix.re, x.im))
    return Value(writer, re, im)


def numbers_like(graph: Graph, number: int, like: int) -> int:
    """A number in every channel of a node."""
    return graph("where", graph("lt", like, like), like, number)


#: Functions that a step must not use, for messages that say what to write instead.
_REDUCTIONS = "sum mean prod max min amax amin argmax argmin norm var std softmax log_softmax "
_REDUCTIONS += "logsumexp cumsum cumprod any all item tolist numpy rms_norm group_norm layer_norm "
_REDUCTIONS += "median nansum nanmean count_nonzero aminmax topk sort argsort dist vdot dot inner "
_REDUCTIONS += "equal allclose cosine_similarity normalize softmin"
_VIEWS = "view reshape unflatten flatten chunk split unbind unsqueeze squeeze transpose permute "
_VIEWS += (
    "expand cat stack narrow flip index_select gather T mT shape size ndim dim concat concatenate "
)
_VIEWS += (
    "hstack vstack dstack expand_as view_as numel nelement broadcast_to movedim swapaxes t ravel "
)
_VIEWS += "diff glu tensor_split select take diag tril triu outer kron len pad"
_CASTS = (
    "float double half bfloat16 to type cpu cuda dtype device int long bool short byte char cfloat"
)
_CASTS = f"{_CASTS} cdouble is_floating_point is_complex element_size"
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
