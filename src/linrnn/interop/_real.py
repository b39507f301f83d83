"""From a traced program to a graph of real arithmetic with its constants worked out.

Formats such as ONNX have no complex numbers and none of our operators. So a program is traced once
more: what depends on weights alone is computed now, by PyTorch, in whatever precision and number
field the model wrote; what depends on an input is written down, a complex number as the pair of its
real and imaginary part.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_any, tree_map

from linrnn.errors import LinrnnError

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True)
class Pair:
    """A complex tensor of which at least one part depends on an input."""

    re: Any
    im: Any


def real_graph(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The same function in real arithmetic, with the weights folded in.

    Args:
        program: of real inputs and outputs, decomposed to functional ATen operators.

    Returns:
        A module that takes the program's inputs, flat, and returns a tuple of its outputs.

    Raises:
        LinrnnError: an operator on complex numbers that has no rule here.
    """
    writer = _Writer()
    signature = program.graph_signature
    constant_of = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constant_of |= signature.inputs_to_lifted_tensor_constants
    values = {**program.state_dict, **program.constants}
    inputs: list[Any] = []
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in signature.input_tokens:
            inputs.append(None)
        elif node.name in constant_of:
            inputs.append(values[constant_of[node.name]].detach())
        else:
            inputs.append(writer.tracer.create_proxy("placeholder", node.name, (), {}))
    outputs = writer.run(program.graph_module, inputs)[len(signature.output_tokens) :]
    writer.graph.output(tuple(writer.tracer.create_arg(y) for y in outputs))
    writer.graph.eliminate_dead_code()
    return fx.GraphModule(writer.tracer.constants, writer.graph)


class _Tracer(fx.proxy.GraphAppendingTracer):
    """Writes into a graph; a tensor among the arguments becomes a constant of the module."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.constants = nn.Module()

    def create_arg(self, a: Any) -> Any:
        """An argument as a node or a plain value."""
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        name = f"constant_{len(dict(self.constants.named_buffers()))}"
        self.constants.register_buffer(name, a.detach().clone())
        return self.graph.create_node("get_attr", name)


class _Writer:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.tracer = _Tracer(self.graph)

    def run(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """The outputs of a graph: tensors where they are constant, else proxies and pairs."""
        remaining, values = iter(inputs), {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(node.target)(module)
            else:
                args, kwargs = (fx.map_arg(a, values.__getitem__) for a in (node.args, node.kwargs))
                if node.op == "output":
                    return args[0]
                values[node] = self._call(node.target, args, kwargs)
        raise AssertionError("a graph ends with its outputs")

    def _call(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.higher_order.wrap_with_autocast:
            *_, body = args[:5]  # device, dtype, enabled, cache, the graph inside
            return self.run(body, args[5:])
        if target is torch.ops.higher_order.with_effects:  # a check that raises; None its order
            return None, self._call(args[1], args[2:], kwargs)
        if not tree_any(_is_traced, (args, kwargs)):
            return target(*args, **kwargs)
        if target is operator.getitem:
            return args[0][args[1]]
        if target is torch.ops.aten.sym_size.int:  # both parts have it
            whose = args[0].re if isinstance(args[0], Pair) else args[0]
            return self._emit(target, (whose, *args[1:]), kwargs)
        if kwargs.get("dtype") in _REAL and not tree_any(_is_complex, (args, kwargs)):
            real_kwargs = kwargs | {
                "dtype": _REAL[kwargs["dtype"]]
            }  # a real tensor becomes a complex one
            real = self._call(target, args, real_kwargs)
            return Pair(real, torch.zeros_like(real))
        if tree_any(_is_complex, (args, kwargs)) or _name(target) in _MAKES_COMPLEX:
            return _in_pairs(target, args, kwargs, self._emit)
        if _name(target) in _PRECISE and not kwargs:
            return _PRECISE[_name(target)](*args)
        return self._emit(target, args, kwargs)

    def _emit(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not tree_any(_is_traced, (args, kwargs)):
            return target(*args, **kwargs)
        return self.tracer.create_proxy("call_function", target, args, kwargs)


def _is_traced(x: Any) -> bool:
    return isinstance(x, fx.Proxy | Pair)


def _is_complex(x: Any) -> bool:
    return isinstance(x, Pair) or (isinstance(x, Tensor) and x.is_complex())


def _name(target: Any) -> str:
    """The name of an operator, whichever overload: ``mul`` for ``aten.mul.Tensor``."""
    packet = getattr(target, "overloadpacket", target)
    return getattr(packet, "__name__", str(packet))


def _pair(x: Any) -> Pair:
    """Any value as a pair; of a real one the imaginary part is the number 0."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, Tensor) and x.is_complex():
        return Pair(x.real.clone(), x.imag.clone())
    return Pair(x.real, x.imag) if isinstance(x, complex) else Pair(x, 0)


def _in_pairs(target: Any, args: Any, kwargs: Any, emit: Callable[[Any, Any, Any], Any]) -> Any:
    """An operator with complex arguments or a complex result, in real ones."""
    name = _name(target)
    if name in _RULES and (not kwargs or name in _ANY_KEYWORDS):
        return _RULES[name](*args)
    if name in _PARTWISE:
        kwargs = {k: _REAL.get(v, v) if k == "dtype" else v for k, v in kwargs.items()}
        parts = []
        for part in ("re", "im"):
            part_args, more = tree_map(
                lambda x, part=part: getattr(_pair(x), part) if _is_complex(x) else x,
                (args, kwargs),
            )
            parts.append(emit(target, part_args, more))
        return Pair(*parts)
    raise LinrnnError(
        f"export: every operator on complex numbers must have a rule in real ones, got {target}. "
        "Export a mixer with a real state."
    )


def _mul(a: Any, b: Any) -> Pair:
    if not _is_complex(b):
        a, b = b, a
    if not _is_complex(a):
        b = _pair(b)
        return Pair(b.re * a, b.im * a)
    a, b = _pair(a), _pair(b)
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _matrix_product(product: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Pair]:
    def rule(a: Any, b: Any) -> Pair:
        if not _is_complex(a):
            return Pair(product(a, _pair(b).re), product(a, _pair(b).im))
        a = _pair(a)
        if not _is_complex(b):
            return Pair(product(a.re, b), product(a.im, b))
        b = _pair(b)
        re = product(a.re, b.re) - product(a.im, b.im)
        return Pair(re, product(a.re, b.im) + product(a.im, b.re))

    return rule


def _div(a: Any, b: Any) -> Pair:
    if not _is_complex(b):
        return Pair(_pair(a).re / b, _pair(a).im / b)
    b = _pair(b)
    size = b.re * b.re + b.im * b.im
    return _mul(a, Pair(b.re / size, -b.im / size))


def _add(a: Any, b: Any) -> Pair:
    a, b = _pair(a), _pair(b)
    return Pair(a.re + b.re, a.im + b.im)


def _sub(a: Any, b: Any) -> Pair:
    a, b = _pair(a), _pair(b)
    return Pair(a.re - b.re, a.im - b.im)


def _where(condition: Any, a: Any, b: Any) -> Pair:
    a, b = _pair(a), _pair(b)
    return Pair(torch.where(condition, a.re, b.re), torch.where(condition, a.im, b.im))


def _full_like(z: Any, value: Any) -> Pair:
    z, value = _pair(z), _pair(value)
    return Pair(torch.full_like(z.re, value.re), torch.full_like(z.re, value.im))


def _exp(z: Pair) -> Pair:
    return _polar(torch.exp(z.re), z.im)


def _polar(r: Any, angle: Any) -> Pair:
    return Pair(r * torch.cos(angle), r * torch.sin(angle))


_RULES: dict[str, Callable[..., Any]] = {
    "view_as_real": lambda z: torch.stack([_pair(z).re, _pair(z).im], -1),
    "view_as_complex": lambda x: Pair(torch.select(x, -1, 0), torch.select(x, -1, 1)),
    "complex": Pair,
    "polar": _polar,
    "real": lambda z: _pair(z).re,
    "imag": lambda z: _pair(z).im,
    "_conj": lambda z: Pair(z.re, -z.im),
    "conj_physical": lambda z: Pair(z.re, -z.im),
    "resolve_conj": lambda z: z,
    "_assert_tensor_metadata": lambda *facts: None,
    "mul": _mul,
    "mm": _matrix_product(torch.mm),
    "bmm": _matrix_product(torch.bmm),
    "div": _div,
    "add": _add,
    "sub": _sub,
    "addcmul": lambda a, b, c: _add(a, _mul(b, c)),
    "where": _where,
    "exp": _exp,
    "reciprocal": lambda z: _div(1, z),
    "full_like": _full_like,
    "abs": lambda z: torch.sqrt(z.re * z.re + z.im * z.im),
}
"""By the operator's name; a constant among complex arguments may come as a complex tensor."""


def _log1p(x: Any) -> Any:
    """``log(1 + x)`` whose sum's rounding error cancels, by Kahan."""
    u = x + 1
    small_or_infinite = (u == 1) | (u == torch.inf)
    return torch.where(small_or_infinite, x, torch.log(u) * (x / (u - 1)))


def _expm1(x: Any) -> Any:
    """``exp(x) - 1`` whose exponential's rounding error cancels, by Kahan."""
    u = torch.exp(x)
    near = torch.where(u == 1, x, (u - 1) * (x / torch.log(u)))
    return torch.where(torch.abs(x) < 1, near, u - 1)


_PRECISE: dict[str, Callable[..., Any]] = {"log1p": _log1p, "expm1": _expm1}
"""Operators that ONNX lacks, and that exporters write without what they are there for."""

_ANY_KEYWORDS = ("_assert_tensor_metadata", "full_like")

_PARTWISE = frozenset(
    ("neg", "sum", "_to_copy", "clone", "alias", "view", "reshape", "unsqueeze", "squeeze")
) | frozenset(("select", "slice", "permute", "transpose", "expand", "cat", "stack", "_unsafe_view"))
"""Operators that do to a complex tensor what they do to either part."""

_MAKES_COMPLEX = frozenset(("view_as_complex", "complex", "polar"))
