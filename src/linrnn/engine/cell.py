"""`Cell`: a step and what each of its arguments is."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn._options.call import checked
from linrnn.engine import functions as functions  # fills in what a step may use
from linrnn.engine.derivatives import affine, jacobian, mixing, traces
from linrnn.engine.graph import Program, evaluate
from linrnn.engine.trace import Names, Traced, trace
from linrnn.errors import ArgumentError, check_in

Words = str | Sequence[str]

#: Arguments of `linrnn.ops.cell_scan`, which takes those of a cell by name.
_RESERVED = (
    *("cell", "state", "reset", "cu_seqlens", "reverse", "time"),
    *("form", "backend", "checkpoint"),
)


class Cell:
    """One step of a recurrence, written as an ordinary PyTorch function.

    Called with tensors, a cell is that function. It is read once, when it is declared: elementwise
    operations and products with matrices, on values of one number a channel. What it takes from
    around it, a Python number say, stays what it was then.

    Args:
        step: ``step(*arguments)`` returns ``(output, next state)``, each a tensor or a tuple of
            them, the states in the order of ``state``.
        state: names of the arguments that are carried from step to step, separated by blanks.
        constant: of those that are the same at every step, one number a channel.
        matrix: of those that are matrices: (rows, columns) for `torch.nn.functional.linear` and
            ``h @ W``, (heads, rows, columns) for `linrnn.cells.block_linear`.
        complex: of those that are complex.
        start: the state before a sequence, in every channel: one number, or numbers by name.
        parallel: how all steps are computed at once by PyTorch's operators, of a cell that is not
            affine in its state but still a few scans, say. It is called like ``step``, with states
            before the first step (batch, channels) and inputs (batch, time, channels), and with
            ``reset``, ``cu_seqlens`` and ``reverse`` as `linrnn.ops.linear_scan` takes them, and
            returns all outputs and the final states. It must give the numbers of the steps.
        name: in messages; by default the function's.

    All other arguments are inputs, given for every step.

    Raises:
        ArgumentError: names that are no arguments of the function, or a step that no graph can
            hold: decisions in Python on values, reductions, views. It names the line.

    Example:
        >>> import torch
        >>> from linrnn.cells import Cell
        >>> def leak(h, x, rate):
        ...     h = h + rate * (x - h)
        ...     return h, h
        >>> leak = Cell(leak, state="h", constant="rate")
        >>> leak.inputs
        ('x',)
        >>> leak(torch.zeros(2), torch.ones(2), torch.tensor(0.5))[0]
        tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        state: Words,
        constant: Words = (),
        matrix: Words = (),
        complex: Words = (),
        start: float | Mapping[str, float] = 0.0,
        parallel: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.function = step
        self.name = name or getattr(step, "__name__", type(step).__name__)
        where = f"cell {self.name}"
        self.arguments = _arguments(where, step)
        self.states, self.constants, self.matrices = map(_words, (state, constant, matrix))
        reserved = [x for x in self.arguments if x in _RESERVED]
        if reserved:
            raise ArgumentError(
                f"{where}: an argument must not be named like an option of a scan, got "
                f"{reserved[0]}. Give it another name."
            )
        declared = (*self.states, *self.constants, *self.matrices)
        for argument in (*declared, *_words(complex)):
            check_in(where, "argument", argument, self.arguments)
        twice = sorted({x for x in declared if declared.count(x) > 1})
        if twice or not self.states:
            raise ArgumentError(
                f"{where}: each argument must be one of state, constant and matrix, and one a "
                f"state, got {', '.join(twice) or 'no state'}. All others are inputs."
            )
        self.inputs = tuple(x for x in self.arguments if x not in declared)
        self.is_complex = frozenset(_words(complex))
        self.start = _starts(where, self.states, start)
        self._names = Names(
            self.states, self.inputs, self.constants, self.matrices, self.is_complex
        )
        #: The step as a program, and what its outputs belong to.
        self.traced = trace(where, step, self.arguments, self._names)
        #: The step as a graph of real numbers.
        self.program = self.traced.program
        #: The program as text, by which operators and caches know it.
        self.text = self.program.text()
        self.parallel = parallel
        self._with_start: Cell | None = None
        #: The function and its arguments that make this cell again, see `cell_factory`.
        self.recipe: tuple[Callable[..., Cell], tuple[Any, ...]] | None = None
        if parallel is not None:
            _at_once[self.text] = self
        functools.update_wrapper(self, step, updated=())

    def __reduce__(self) -> Any:
        """A decorated function is found by its name, as functions are; others are made again."""
        if self.recipe is not None:
            return self.recipe
        module = sys.modules.get(getattr(self, "__module__", ""))
        name = getattr(self, "__qualname__", "")
        return name if getattr(module, name, None) is self else super().__reduce__()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function itself."""
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        kinds = {"state": self.states, "constant": self.constants, "matrix": self.matrices}
        declared = [f"{kind}={' '.join(names)!r}" for kind, names in kinds.items() if names]
        return f"Cell({self.name}, {', '.join(declared)})"

    def starts(self) -> tuple[float, ...]:
        """The value of each state of the program before a sequence."""
        starts: list[float] = []
        for name in self.states:
            starts += (self.start[name], 0.0) if name in self.is_complex else (self.start[name],)
        return tuple(starts)

    def parts(self, kind: int, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Arguments of a kind as the leaves of the program: real and imaginary parts."""
        leaves: list[Tensor] = []
        for name, x in zip(self._names[kind], tensors, strict=True):
            leaves += _pair(x) if name in self.is_complex else [x]
        return leaves

    def joined(self, kind: int, parts: Sequence[Tensor]) -> list[Tensor]:
        """The arguments of a kind, from the leaves of the program."""
        return _joined(parts, [name in self.is_complex for name in self._names[kind]])

    def outputs(self, parts: Sequence[Tensor]) -> Any:
        """Rebuild the step's output from the outputs of the program."""
        outputs = _joined(parts, self.traced.complex_outputs)
        return outputs[0] if self.traced.single else tuple(outputs)

    def by_parts(
        self,
        states: Sequence[Tensor],
        inputs: Sequence[Tensor],
        constants: Sequence[Tensor],
        matrices: Sequence[Tensor],
        **layout: Any,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One step by the function, on the leaves of the program: its outputs and next states.

        With a ``layout`` all steps, by `parallel`.
        """
        by_name: dict[str, Tensor] = {}
        for kind, parts in enumerate((states, inputs, constants, matrices)):
            by_name.update(zip(self._names[kind], self.joined(kind, parts), strict=True))
        function = self.parallel if layout else self.function
        assert function is not None
        outputs, next_states = function(*(by_name[x] for x in self.arguments), **layout)
        outputs, next_states = (x if isinstance(x, tuple) else (x,) for x in (outputs, next_states))
        return (
            _split(outputs, self.traced.complex_outputs, states[0]),
            _split(next_states, [name in self.is_complex for name in self.states], states[0]),
        )

    def affine(self) -> str | None:
        """Why linear scans do not compute this cell; None where they do.

        Example:
            >>> def relu(h, x):
            ...     h = torch.relu(h + x)
            ...     return h, h
            >>> Cell(relu, state="h").affine()
            'relu of h makes its step no affine function'
        """
        return affine(self.program).reason

    def jacobian(self, *arguments: Tensor) -> Tensor:
        """The derivative of the next states with respect to the states, channel by channel.

        Args:
            arguments: those of the function, real, of any common shape (..., channels).

        Returns:
            (..., channels, m, m) for m states: ``d next_i / d state_j``.

        Raises:
            ArgumentError: a matrix mixes the channels, or the cell is complex.
        """
        self._check_diagonal("jacobian", ("state",), self.program.next_states)
        by_name = dict(zip(self.arguments, arguments, strict=True))
        leaves = [[by_name[x] for x in names] for names in self._names[:4]]
        parts = evaluate(jacobian(self.program), *leaves).outputs
        shape = torch.broadcast_shapes(*(x.shape for x in by_name.values()))
        m = len(self.states)
        return torch.stack([x.expand(shape) for x in parts], -1).reshape(*shape, m, m)

    def with_traces(self) -> "Cell":
        """The cell that also carries its sensitivity to its constants, for real-time learning.

        Beside each state h it has the states ``d_h_d_p``, the derivative of h with respect to each
        constant p through the whole past, and beside each output its derivative with respect to
        each constant. So the gradient of a loss with respect to p is the sum over time and batch of
        its gradient with respect to the output times that, and no past is kept.

        Returns:
            A cell with states (h, ..., d_h_d_p, ...), and a tuple of outputs: those of this cell,
            then for each of them its derivative with respect to each constant.

        Raises:
            ArgumentError: a matrix mixes the channels, or the cell is complex.
        """
        results = (*self.program.outputs, *self.program.next_states)
        self._check_diagonal("with_traces", ("state", "parameter"), results)
        program = traces(self.program)
        new = object.__new__(Cell)
        new.name, new.inputs, new.constants = self.name, self.inputs, self.constants
        new.states, new.matrices = program.states, self.matrices
        new.arguments = (*new.states, *self.inputs, *self.constants, *self.matrices)
        new.is_complex = frozenset()
        new.start = dict.fromkeys(new.states, 0.0) | self.start
        kinds = (new.states, new.inputs, new.constants, new.matrices)
        new._names = Names(*kinds, new.is_complex)
        new.traced = Traced(program, (False,) * len(program.outputs), False)
        new.program = program
        new.text, new.parallel, new._with_start = program.text(), None, None
        new.function = functools.partial(_evaluated, program, tuple(map(len, kinds)))
        return new

    def with_start(self) -> "Cell":
        """The cell that begins a sequence from given numbers, such as learned ones.

        A reset begins from the numbers of the declaration, which are fixed. This cell has a last
        state ``fresh``, 1 before the first step of a sequence and 0 after, and a constant ``h_0``
        for each state h, which is added to h where ``fresh`` is not 0, h itself being taken for 0.

        Raises:
            ArgumentError: an argument of the cell has one of these names.

        Example:
            >>> import torch
            >>> @cell(state="h")
            ... def total(h, x):
            ...     return h + x, h + x
            >>> total.with_start().arguments
            ('h', 'fresh', 'x', 'h_0')
        """
        if self._with_start is None:
            self._with_start = _with_start(self)
        return self._with_start

    def _check_diagonal(self, what: str, kinds: Sequence[str], results: Sequence[int]) -> None:
        coupling = mixing(self.program, kinds, results)
        if coupling is not None or self.is_complex:
            got = coupling or "complex arguments"
            raise ArgumentError(
                f"cell {self.name}: {what} must be of real channels apart, got {got}. "
                "Use torch.func.jacrev on the cell."
            )


def _with_start(cell: Cell) -> Cell:
    state_of = {f"{h}_0": h for h in cell.states}
    non_states = [x for x in cell.arguments if x not in cell.states]
    names = (*cell.states, "fresh", *non_states, *state_of)
    if len({*names}) < len(names):
        raise ArgumentError(
            f"cell {cell.name}: with_start must find {', '.join(('fresh', *state_of))} free, got "
            f"a cell of {', '.join(cell.arguments)}. Give its arguments other names."
        )

    def step(*arguments: Any) -> Any:
        values = dict(zip(names, arguments, strict=True))
        fresh = values["fresh"] != 0
        for start, h in state_of.items():
            # a product, of which the compiler knows that it is affine in complex numbers too
            values[h] = torch.where(fresh, 0.0, 1.0) * values[h] + torch.where(
                fresh, values[start], 0.0
            )
        y, next_states = cell.function(*(values[x] for x in cell.arguments))
        next_states = next_states if isinstance(next_states, tuple) else (next_states,)
        return y, (*next_states, 0.0 * values["fresh"])  # of known width, unlike the number 0

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    step.__signature__ = inspect.Signature([inspect.Parameter(x, kind) for x in names])  # type: ignore[attr-defined]
    return Cell(
        step,
        state=(*cell.states, "fresh"),
        constant=(*cell.constants, *state_of),
        matrix=cell.matrices,
        complex=[x for x in names if x in cell.is_complex or state_of.get(x) in cell.is_complex],
        start=cell.start | {"fresh": 1.0},
        name=f"{cell.name}_with_start",
    )


_at_once: dict[str, Cell] = {}


def known_at_once(program: Program) -> Cell | None:
    """A cell with this program that says how all steps are computed at once."""
    return _at_once.get(program.text()) if _at_once else None


@checked
def cell(
    *,
    state: Words,
    constant: Words = (),
    matrix: Words = (),
    complex: Words = (),
    start: float | Mapping[str, float] = 0.0,
    parallel: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Cell]:
    """Decorate a step: ``@cell(state="h")`` makes a `Cell` of it.

    Args:
        state, constant, matrix, complex, start, parallel, name: as of `Cell`. All arguments of the
            step that none of them names are inputs (batch, time, channels).

    Raises:
        UnknownArgumentError, ArgumentTypeError: another argument, or no ``state``.
        ArgumentError: as `Cell`, of the step.

    Example:
        >>> import torch
        >>> @cell(state="h")
        ... def mingru(h, a, z):
        ...     h = h + torch.sigmoid(z) * (a - h)
        ...     return h, h
        >>> mingru
        Cell(mingru, state='h')
    """
    return functools.partial(
        Cell,
        state=state,
        constant=constant,
        matrix=matrix,
        complex=complex,
        start=start,
        parallel=parallel,
        name=name,
    )


def _evaluated(program: Program, counts: tuple[int, ...], *arguments: Tensor) -> Any:
    """A step from its program, on arguments kind by kind."""
    remaining = iter(arguments)
    values = evaluate(program, *([next(remaining) for _ in range(n)] for n in counts))
    return tuple(values.outputs), tuple(values.next_states)


def _joined(parts: Sequence[Tensor], is_complex: Sequence[bool]) -> list[Tensor]:
    """Tensors from their real parts."""
    part = iter(parts)
    return [torch.complex(next(part), next(part)) if pair else next(part) for pair in is_complex]


def _split(values: Sequence[Any], is_complex: Sequence[bool], like: Tensor) -> list[Tensor]:
    """The real parts of tensors or numbers."""
    parts: list[Tensor] = []
    for x, pair in zip(values, is_complex, strict=True):
        x = x if isinstance(x, Tensor) else torch.as_tensor(x, device=like.device)
        if pair:
            parts += _pair(x) if x.is_complex() else [x, torch.zeros_like(x)]
        else:
            parts.append(x)
    return [x.to(like.dtype) for x in parts]  # a number has PyTorch's default precision


def _pair(x: Tensor) -> list[Tensor]:
    """Real and imaginary part; that of a conjugate would be a view that vmap knows nothing of."""
    x = x.resolve_conj()
    return [x.real, x.imag]


def _words(names: Words) -> tuple[str, ...]:
    return tuple(names.split() if isinstance(names, str) else names)


def _arguments(where: str, step: Callable[..., Any]) -> tuple[str, ...]:
    kinds = inspect.signature(step).parameters
    for name, x in kinds.items():
        if x.kind not in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD) or x.default is not x.empty:
            raise ArgumentError(
                f"{where}: its arguments must be plain ones without a default, got {x}. "
                f"Make a number a part of the function, or {name} an argument of the cell."
            )
    return tuple(kinds)


def _starts(
    where: str, states: tuple[str, ...], start: float | Mapping[str, float]
) -> dict[str, float]:
    starts = dict(start) if isinstance(start, Mapping) else dict.fromkeys(states, start)
    for name, value in starts.items():
        check_in(where, "state", name, states)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ArgumentError(f"{where}: start must be a number for each state, got {value!r}.")
    return {name: float(starts.get(name, 0.0)) for name in states}
