"""Functions of the channels of one step, each as one Triton kernel, and one for its gradient.

Between products and scans a layer has chains of small operators: gates, norms of heads, rates. Each
operator is a kernel on a GPU, and reads and writes everything. The engine reads such a chain as it
reads a cell; without states it needs no walk along time.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch, layout
from linrnn.compute.layout import accumulator_of, dense
from linrnn.compute.precision import wide
from linrnn.compute.product import Product
from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import ELEMENTWISE, Program
from linrnn.engine.trace import Names, trace
from linrnn.ops.cell.cell_scan._triton_rows import Kernel, Widths, write_rows
from linrnn.ops.cell.cell_scan._triton_source import load

#: Numbers of a tile that a thread has of each value: 128 bits in either precision, or half where
#: operands are many. With 8, the gradient of `linrnn.ops.conv.token_mix` of six mixes spills 114
#: registers: compiled for an H100, Triton 3.7.1, 2026-11-30.
_EACH, _EACH_OF_MANY, _MANY = 8, 4, 12
_THREADS, _WARP, _MOST_WARPS = 128, 32, 16
#: Programs of a multiprocessor where gradients of parameters are summed: each writes a row.
_SUMMING = 8
#: Layouts whose launches are kept.
_MOST_PLANS = 64


class _Code(NamedTuple):
    """A kernel, the program that it computes, and how wide its leaves are."""

    program: Program
    widths: Widths
    kernel: Kernel


class _Traced(NamedTuple):
    """A function as a program, how wide its leaves are, and which outputs are complex."""

    program: Program
    widths: Widths
    complex_outputs: tuple[bool, ...]


class RowFunction:
    """A function of a step's channels: elementwise, and by sums over a head with their spreads.

    Called with plain tensors on a GPU it is one kernel, and its gradient another one. Elsewhere it
    is PyTorch's operators.

    Args:
        function: from values to a tuple of values, in words that `linrnn.cells` permits.
        name: in messages.
        rows: its first arguments, which differ from step to step: their names.
        channels: its other arguments, the same in every step.
        numbers: those of both that have one number a head in place of one a channel; they meet
            others through ``spread``.
        complex: those that are complex.
        double: compute in double precision, and round results once.
        definition: the function on tensors, which are float32 at least, where heads have more than
            one channel; the function itself without it.

    Example:
        >>> def gate(x, z, weight):
        ...     return (x * torch.sigmoid(z) * weight,)
        >>> gate = RowFunction(gate, "gate", rows="x z", channels="weight")
        >>> gate(torch.ones(3, 2), torch.zeros(3, 2), torch.ones(2))[0][0]
        tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        name: str,
        *,
        rows: str,
        channels: str = "",
        numbers: str = "",
        complex: str = "",
        double: bool = False,
        definition: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> None:
        # no more than this, for compilers read it; the function is traced by the first kernel
        self.function, self.definition = function, definition or function
        self.name, self._double = name, double
        self._rows = len(rows.split())
        self.arguments = (*rows.split(), *channels.split())
        self._narrow, self._complex = frozenset(numbers.split()), frozenset(complex.split())
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    @cached_property
    def _product(self) -> Product:
        count = len(self.arguments)
        return Product(self.name, _definition, gradients=count, kernels={"triton": __name__})

    @cached_property
    def _traced(self) -> "_Traced":
        by_row, by_channel = self.arguments[: self._rows], self.arguments[self._rows :]
        names = Names((), by_row, by_channel, (), self._complex)
        traced = trace(self.name, lambda *x: (self.function(*x), ()), self.arguments, names)
        program = traced.program
        inputs, parameters = (
            tuple(part.split(".")[0] in self._narrow for part in names.parts(kind))
            for kind in (1, 2)
        )
        narrow = _narrow_nodes(program, inputs, parameters)
        widths = Widths(inputs, parameters, tuple(narrow[x] for x in program.outputs))
        return _Traced(program, widths, traced.complex_outputs)

    def __call__(
        self, *tensors: Tensor, heads: int = 1, width: int | None = None
    ) -> tuple[Tensor, ...]:
        """The outputs, in at least float32.

        Args:
            tensors: the arguments, as of `forward`; the first has a number for each channel.
            heads, width: as of `forward`; one head of all channels without them.
        """
        if torch.compiler.is_compiling():
            return self.evaluate(tensors)
        width = tensors[0].shape[-1] if width is None else width
        return self._product(*tensors, self, heads, width)

    def has_kernels(self, *tensors: Tensor) -> bool:
        """Whether a GPU's kernels compute a call on such tensors."""
        return not torch.compiler.is_compiling() and self._product.kernels(tensors) is not None

    def evaluate(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs by PyTorch's operators, differentiable to any order."""
        if not self._double:
            return self.definition(*(wide(x) for x in tensors))
        to = accumulator_of(*tensors)
        return tuple(y.to(to) for y in self.definition(*(x.double() for x in tensors)))

    def empty(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Memory for the outputs of a call."""
        by_row = dict(zip(self.arguments[: self._rows], tensors, strict=False))
        shapes: dict[bool, torch.Size] = {}
        for name, x in by_row.items():
            shapes.setdefault(name in self._narrow, x.shape)
        dtype = accumulator_of(*(x.real if x.is_complex() else x for x in tensors))
        places = iter(self._traced.widths.outputs)
        outputs = []
        for is_complex in self._traced.complex_outputs:
            narrow = [next(places) for _ in range(2 if is_complex else 1)] == [True]
            of_output = _COMPLEX[dtype] if is_complex else dtype
            outputs.append(tensors[0].new_empty(shapes[narrow], dtype=of_output))
        return outputs

    @cached_property
    def _forward(self) -> _Code:
        program, widths, _ = self._traced
        return _Code(program, widths, write_rows(program, widths))

    @cached_property
    def _adjoint(self) -> _Code:
        """The kernel of the gradients of all inputs and parameters."""
        program, (inputs, parameters, outputs) = adjoint(self._traced.program), self._traced.widths
        widths = Widths((*inputs, *outputs), parameters, inputs)
        return _Code(program, widths, write_rows(program, widths))

    def forward(
        self, tensors: Sequence[Tensor], outputs: Sequence[Tensor], heads: int, width: int
    ) -> None:
        """Compute the outputs into tensors, which say in which dtype.

        Args:
            tensors: the arguments in order: of rows (..., heads * width) or (..., heads, width),
                those of one number a head (..., heads).
            outputs: likewise.
            heads: parts of the channels; sums run over one of them.
            width: channels of a part.
        """
        rows, channels = self._split(tensors)
        self._run(self._forward, rows, channels, self._parts(outputs), heads, width)

    def backward(
        self,
        tensors: Sequence[Tensor],
        grads: Sequence[Tensor],
        heads: int,
        width: int,
        results: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Gradients of the arguments, from those of the outputs.

        Args:
            tensors, heads, width: as of `forward`.
            grads: of the outputs.
            results: memory for the gradients of what differs from step to step.
        """
        if results is None:
            by_row = tensors[: self._rows]
            results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in by_row]
        rows, channels = self._split(tensors)
        rows = [*rows, *self._parts(grads)]
        code = self._adjoint
        sums = self._run(code, rows, channels, self._parts(results), heads, width)
        return [*results, *self._totals(code, tensors[self._rows :], sums)]

    def _totals(self, code: _Code, channels: Sequence[Tensor], sums: Tensor | None) -> list[Tensor]:
        """Gradients of what is the same in every row."""
        totals: dict[int, Tensor] = {}
        if sums is not None:
            summed = sums.sum(0).to(wide(channels[0]).real.dtype)  # (sums, heads, width)
            for (i, _), total in zip(code.program.sums, summed.unbind(0), strict=True):
                # (width,)
                totals[i] = total[:, 0] if self._traced.widths.parameters[i] else total.flatten()
        gradients, numbers = list[Tensor](), itertools.count()
        for x in channels:
            parts = [
                torch.zeros_like(x.real) if total is None else total.view(x.shape)
                for total in (totals.get(next(numbers)) for _ in range(1 + x.is_complex()))
            ]  # (..., width) each
            gradients.append((torch.complex(*parts) if x.is_complex() else parts[0]).to(x.dtype))
        return gradients

    def _split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The real leaves of rows and of channels."""
        return self._parts(tensors[: self._rows]), self._parts(tensors[self._rows :])

    @staticmethod
    def _parts(tensors: Sequence[Tensor]) -> list[Tensor]:
        parts: list[Tensor] = []
        for x in tensors:
            if x.is_complex() or x.is_neg():
                x = x.resolve_conj().resolve_neg()
            # (..., width) each
            parts += torch.view_as_real(x).unbind(-1) if x.is_complex() else [x]
        return parts

    def _run(
        self,
        code: _Code,
        rows: Sequence[Tensor],
        channels: Sequence[Tensor],
        outputs: Sequence[Tensor],
        heads: int,
        width: int,
    ) -> Tensor | None:
        """Launch; returns the sums of the instances, (instances, sums, heads, width)."""
        first, kernel = rows[0], code.kernel
        leaves = [*(rows[i] for i in kernel.inputs), *(channels[i] for i in kernel.parameters)]
        tensors = [*leaves, *outputs]
        key = (code is self._forward, heads, width, first.device, *map(layout, tensors))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(code, first, tensors, heads, width)
            if len(self._plans) < _MOST_PLANS:
                self._plans[key] = plan
        sums = None
        if plan.sums is not None:
            make = first.new_zeros if plan.launch is None else first.new_empty
            sums = make(plan.sums, dtype=torch.float64)
        if plan.launch is not None:
            if plan.copies:
                # of a row (rows, width), of a channel (width,)
                tensors = [t if shape is None else t.reshape(shape).contiguous() for t, shape in
                           zip(tensors, plan.copies, strict=True)]  # fmt: skip
            with torch.cuda.device_of(first):
                plan.launch(*tensors, *(() if sums is None else (sums,)))
        return sums

    def _plan(
        self, code: _Code, first: Tensor, tensors: Sequence[Tensor], heads: int, width: int
    ) -> "_Plan":
        """How calls of one layout are launched; of tensors in the order of the kernel."""
        batch = first.numel() // (heads if code.widths.inputs[0] else max(heads * width, 1))
        of_sums = (len(code.program.sums), heads, width) if code.program.sums else None
        if not batch * width:
            return _Plan(None, None if of_sums is None else (1, *of_sums), ())
        whole = any(node.op.startswith("fold") for node in code.program.nodes)
        n_inputs, n_parameters = len(code.kernel.inputs), len(code.kernel.parameters)
        each = _EACH if len(tensors) + 2 * len(code.program.sums) < _MANY else _EACH_OF_MANY
        double = self._double or any(x.dtype == torch.float64 for x in tensors)
        # with 8 numbers of double precision a thread, the gradient of LinOSS's steps spills 187
        each = each // 4 if double else each
        block = gpu.power_of_two(width)
        block = block if whole else min(block, _WARP * each)
        tile, parts = max(1, _THREADS * each // block), -(-width // block)
        turns = -(-batch // tile)
        if of_sums is not None:
            busy = _SUMMING * gpu.processors(first.device)
            turns = min(turns, -(-busy // (heads * parts)))
        narrow = [code.widths.inputs[i] for i in code.kernel.inputs]
        ends = tensors[n_inputs + n_parameters :]
        operands = [
            *(_operand(x, heads, width, n) for x, n in zip(tensors, narrow, strict=False)),
            *((dense(x),) for x in tensors[n_inputs:][:n_parameters]),
            *(_operand(x, heads, width, n) for x, n in zip(ends, code.widths.outputs, strict=True)),
        ]
        arguments: list[Any] = [x for operand in operands for x in operand]
        arguments += [] if of_sums is None else [first]
        arguments += [batch, heads, width, parts, turns]
        kernel, tl = load(code.kernel.text), gpu.language()
        fixed = zip(kernel.arg_names, arguments, strict=False)
        launch = Launch(
            kernel,
            turns * heads * parts,
            {name: x for name, x in fixed if not isinstance(x, Tensor)},
            {
                "DTYPE": tl.float64 if double else tl.float32,
                "ROWS": tile,
                "BLOCK": block,
                "num_warps": min(max(tile * block // (_WARP * each), 1), _MOST_WARPS),
            },
        )
        copied = [operand[0].data_ptr() != x.data_ptr()
                  for operand, x in zip(operands, tensors, strict=True)]  # fmt: skip
        shapes = [
            operand[0].shape if copy else None
            for operand, copy in zip(operands, copied, strict=True)
        ]
        sums = None if of_sums is None else (turns, *of_sums)
        return _Plan(launch, sums, tuple(shapes) if any(copied) else ())


class _Plan(NamedTuple):
    """A launch for all calls of one layout."""

    launch: Launch | None
    sums: tuple[int, ...] | None
    copies: tuple[torch.Size | None, ...]
    """The shape in which each tensor is copied, None where it is read as it lies; or nothing."""


def row_functions(make: Callable[..., RowFunction]) -> Callable[..., RowFunction]:
    """Keep the functions that ``make`` returns, by its arguments.

    Compilers, which read a layer once, warn of a cache of functools and make the function anew.
    """
    functions: dict[tuple[Any, ...], RowFunction] = {}

    @functools.wraps(make)
    def function_of(*key: Any) -> RowFunction:
        if torch.compiler.is_compiling():
            return make(*key)
        if key not in functions:
            functions[key] = make(*key)
        return functions[key]

    return function_of


_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The outputs of a call, whose arguments end with the function, heads and width."""
    *tensors, function, heads, width = arguments
    outputs = function.empty(tensors)
    function.forward(tensors, outputs, heads, width)
    return tuple(outputs)


def backward(*inputs: Any) -> list[Tensor]:
    """The gradients of its tensors."""
    place = next(i for i, x in enumerate(inputs) if isinstance(x, RowFunction))
    function, heads, width, *grads = inputs[place:]
    gradients: list[Tensor] = function.backward(inputs[:place], grads, heads, width)
    return gradients


def _definition(*arguments: Any) -> tuple[Tensor, ...]:
    *tensors, function, _, _ = arguments
    results: tuple[Tensor, ...] = function.evaluate(tensors)
    return results


def _narrow_nodes(
    program: Program, inputs: Sequence[bool], parameters: Sequence[bool]
) -> list[bool]:
    """For each node whether it is a number of a head, or a constant."""
    narrow: list[bool] = []
    for node in program.nodes:
        if node.op == "input":
            narrow.append(inputs[node.attribute])
        elif node.op == "parameter":
            narrow.append(parameters[node.attribute])
        elif node.op in ELEMENTWISE:
            narrow.append(all(narrow[x] for x in node.args))
        else:
            narrow.append(node.op == "constant" or node.op.startswith("fold"))
    return narrow


def _operand(x: Tensor, heads: int, width: int, narrow: bool) -> tuple[Any, ...]:
    """A tensor with the distances of its rows, heads and channels."""
    # (rows, heads) or (rows, heads, width)
    x = x.reshape(-1, heads) if narrow else x.reshape(-1, heads, width)
    return x, *x.stride(), *((0,) if narrow else ())
