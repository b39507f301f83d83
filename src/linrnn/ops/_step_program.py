"""One streaming step of a layer, or of all layers of a model, in one native call.

A step of a few sequences is little arithmetic beside reading the weights; as twenty operators a
layer it is mostly calls. A layer says which kernel computes its step (`NativeStep`); what the
kernels need is written down once, as a `Program`, and a step fills in the addresses of input,
output and states. The kernels are ``src/native/kernels/*_step.cpp``.

Without gradients, on a CPU. Weights may be bfloat16: everything else is float32 then.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.ops import _native
from linrnn.ops._arguments import traced
from linrnn.ops._layout import aligned, dense
from linrnn.ops._modes import eager, transformed
from linrnn.ops._native import DTYPES
from linrnn.ops._native_step import NativeStep, Stack, Weight
from linrnn.typing import State

#: More sequences at once are better served by the matrix products of PyTorch.
_MOST_SEQUENCES = 4
#: What is computed in, for each dtype of weights.
WIDE = {torch.float32: torch.float32, torch.float64: torch.float64, torch.bfloat16: torch.float32}
#: The order of LINRNN_STEPS in step_program_args.h.
_STEPS = ("linear_step", "norm_step", "mamba_step", "time_mix_step", "channel_mix_step")
#: The hooks of all modules there are; PyTorch asks for them together only from a later version on.
EVERY_MODULES_HOOKS: tuple[Mapping[int, Any], ...] = tuple(
    getattr(nn.modules.module, f"_global_{kind}_hooks")
    for kind in ("forward_pre", "forward", "backward_pre", "backward")
)
_WORD, _LINE = 8, 64  # bytes: a field of a record, and what memory is aligned to


class _Place(NamedTuple):
    """An address that is known when a step runs."""

    kind: str  # x, y, scratch, before or after
    number: int = 0  # bytes into the scratch memory, or which state


_X, _Y = _Place("x"), _Place("y")
_Field: TypeAlias = Weight | _Place | None


class _Tape:
    """The records of a step, being written."""

    def __init__(self, batch: int, dtype: torch.dtype) -> None:
        self.batch, self.dtype = batch, dtype
        self.calls: list[tuple[NativeStep, tuple[_Field, ...]]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.scratch_bytes = 0

    def scratch(self, columns: int) -> _Place:
        """Memory for a vector of each sequence."""
        at, size = self.scratch_bytes, self.batch * columns * WIDE[self.dtype].itemsize
        self.scratch_bytes += -(-size // _LINE) * _LINE
        return _Place("scratch", at)

    def layer(self, step: NativeStep, x: _Place, y: _Place) -> None:
        """A layer, and room for the states it has."""
        before: list[_Place | None] = []
        after: list[_Place | None] = []
        for _, shape in step.state:
            number = len(self.shapes)
            before.append(None if shape is None else _Place("before", number))
            after.append(None if shape is None else _Place("after", number))
            self.shapes += [] if shape is None else [(self.batch, *shape)]
        self.calls.append((step, (x, *step.weights, *before, y, *after)))

    def norm(
        self, step: NativeStep, x: _Place, added: _Place | None, total: _Place | None, y: _Place
    ) -> None:
        """A skip, ``x + added``, which is kept as ``total``, and its norm."""
        self.calls.append((step, (x, added, *step.weights, total, y)))

    def stack(self, stack: Stack) -> None:
        """All layers, from x to y."""
        columns = stack.final_norm.columns
        z, out, stream = (self.scratch(columns) for _ in range(3))
        here, added = _X, None
        for norm, layer in stack.layers:
            self.norm(norm, here, added, None if added is None else stream, z)
            here = here if added is None else stream
            added = out
            self.layer(layer, z, out)
        self.norm(stack.final_norm, here, added, None, z)
        self.layer(stack.head, z, _Y)

    def assemble(self, pointers: Sequence[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The words of the program, and for each kind of place where they are to be filled in."""
        spots: dict[str, list[tuple[int, int]]] = {
            kind: [] for kind in ("x", "y", "scratch", "before", "after")
        }
        words: list[int] = []
        index: list[int] = []
        next_pointer = iter(pointers)
        start = 3 + 2 * len(self.calls)
        for step, fields in self.calls:
            index += [_STEPS.index(step.kernel), (start + len(words)) * _WORD]
            length = 4 + len(step.sizes) + len(fields)
            words += [length * _WORD, DTYPES[self.dtype], _native.threads(), self.batch]
            words += step.sizes
            for field in fields:
                if isinstance(field, _Place):
                    spots[field.kind].append((field.number, start + len(words)))
                words.append(next(next_pointer) if isinstance(field, Weight) else 0)
        head = [3 * _WORD, (start + len(words)) * _WORD, len(self.calls)]
        table = np.array([*head, *index, *words], dtype=np.int64)
        for number, at in spots["scratch"]:
            table[at] = number
        ordered = {k: [at for _, at in sorted(v)] for k, v in spots.items()}
        return table, {k: np.array(v, dtype=np.intp) for k, v in ordered.items()}


class Program:
    """The records of a step in one piece of memory, and how to tell that they are out of date.

    Args:
        tape: the records.
        rows: of y.
        layers: those that have a state.
        where: the module whose hooks and submodules are watched.
    """

    def __init__(
        self, tape: _Tape, rows: int, layers: Sequence[NativeStep], where: nn.Module
    ) -> None:
        self._wide, self._shapes = WIDE[tape.dtype], tape.shapes
        self._scratch_bytes, self._output = tape.scratch_bytes, (tape.batch, rows)
        self._columns = layers[0].columns
        self._names = [[name for name, shape in s.state if shape is not None] for s in layers]
        steps = [step for step, _ in tape.calls]
        weights = [w for step in steps for w in step.weights if w is not None]
        self._weights = [(w.owner._parameters, w.name) for w in weights]
        self._pointers = self._addresses()
        self._facts: list[tuple[Mapping[str, Any], str, object]] = [
            (vars(m), name, getattr(m, name)) for step in steps for m, name in step.attributes
        ]
        self._hooks: list[Mapping[int, Any]] = []
        for module in where.modules():
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]
            self._facts += [(module._modules, name, m) for name, m in module._modules.items()]
        self._dropouts = [vars(m) for m in where.modules() if isinstance(m, nn.Dropout)]
        self._table, self._at = tape.assemble(self._pointers)

    def _addresses(self) -> list[int]:
        parameters = [owner.get(name) for owner, name in self._weights]
        return [0 if p is None else p.data_ptr() for p in parameters]

    def current(self) -> bool:
        """Whether the modules and their weights are where they were."""
        return (
            all([owner.get(name) is value for owner, name, value in self._facts])
            and self._addresses() == self._pointers
        )

    def welcome(self) -> bool:
        """Whether nobody wants to see, or to change, what the modules compute."""
        return not (
            any(self._hooks)
            or any([module["training"] for module in self._dropouts])
            or any(EVERY_MODULES_HOOKS)
        )

    def step(self, x: Tensor, states: Sequence[State | None]) -> tuple[Tensor, list[State]] | None:
        """``(y, states)`` for x (batch, columns), or None where an argument does not fit.

        Args:
            x: not checked yet.
            states: of each layer, not checked yet; not used for one that has none.
        """
        if x.shape[1] != self._columns:
            return None
        before = self._leaves(states)
        return None if before is None else self._run(x, before)

    def _leaves(self, states: Sequence[object]) -> list[Tensor] | None:
        """The tensors of the layers' states, or None where they are not what the kernels need."""
        found: list[Any] = []
        if len(states) != len(self._names):  # a layer was appended
            return None
        for names, state in zip(self._names, states, strict=True):
            if names == [""]:
                found.append(state)
            elif names:
                if type(state) is not dict or len(state) != len(names):
                    return None
                found += [state.get(name) for name in names]
        wide = self._wide
        fit = [
            type(h) is Tensor and h.shape == shape and h.dtype is wide and h.is_cpu
            for h, shape in zip(found, self._shapes, strict=True)
        ]
        return found if all(fit) else None

    def _run(self, x: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, list[State]]:
        wide, at, table = self._wide, self._at, self._table.copy()
        before = [h.contiguous() for h in before]
        addresses = [h.data_ptr() for h in before]
        if any([address % wide.itemsize for address in addresses]):
            before = [dense(h) for h in before]
            addresses = [h.data_ptr() for h in before]
        after = [torch.empty(shape, dtype=wide) for shape in self._shapes]
        wide_x, y = dense(x.to(wide)), torch.empty(self._output, dtype=wide)
        scratch = torch.empty(self._scratch_bytes, dtype=torch.uint8)
        table[at["x"]], table[at["y"]] = wide_x.data_ptr(), y.data_ptr()
        table[at["scratch"]] += scratch.data_ptr()
        table[at["before"]] = addresses
        table[at["after"]] = [h.data_ptr() for h in after]
        _native.run("step_program", table.tobytes())
        return y.to(x.dtype), self._trees(after)

    def _trees(self, leaves: Sequence[Tensor]) -> list[State]:
        rest = iter(leaves)
        return [
            next(rest) if names == [""] else {name: next(rest) for name in names}
            for names in self._names
        ]


#: By batch, dtype and threads; None where no kernel computes this kind of layer or stack.
_programs: WeakKeyDictionary[nn.Module, dict[tuple[int, torch.dtype, int], Program | None]]
_programs = WeakKeyDictionary()

Described = TypeVar("Described", NativeStep, Stack)


def layer_step(
    layer: nn.Module, describe: Callable[[], NativeStep | None], x: Tensor, state: State | None
) -> tuple[Tensor, State] | None:
    """A step of one layer, ``(y, state)``, or None where a kernel cannot compute it.

    Args:
        layer: whose step it is.
        describe: what computes it, None if nothing does.
        x: (batch, columns); not checked yet, nor is the state.
        state: of the layer; not used for one that has none.
    """
    program = _find(layer, _alone, describe, x)
    done = None if program is None else program.step(x, [state])
    return None if done is None else (done[0], done[1][0])


def stack_program(
    model: nn.Module, describe: Callable[[], Stack | None], x: Tensor
) -> Program | None:
    """What steps all layers of a model, or None where kernels cannot: see `layer_step`."""
    return _find(model, _together, describe, x)


def _find(
    where: nn.Module,
    write: Callable[[Described, nn.Module, Tensor], Program | None],
    describe: Callable[[], Described | None],
    x: Tensor,
) -> Program | None:
    """The program for inputs like ``x``, written anew where it is out of date."""
    if not ready(x):
        return None
    programs = _programs.setdefault(where, {})
    key = (x.shape[0], x.dtype, _native.threads())
    program = programs.get(key)
    if program is None and key in programs:
        return None
    if program is None or not program.current():
        described = describe()
        program = None if described is None else write(described, where, x)
        if described is not None and program is None:
            return None  # for now: its weights are of another dtype or device
        programs[key] = program
    return None if program is None or not program.welcome() else program


def ready(x: Tensor, most: int = _MOST_SEQUENCES) -> bool:
    """Whether a kernel could compute: nobody watches, a plain CPU tensor of few sequences."""
    return (
        not torch.is_grad_enabled()
        and eager(x)
        and not traced()
        and x.dtype in WIDE
        and x.is_cpu
        and x.ndim == 2
        and 0 < x.shape[0] <= most
        and not transformed()
        and not torch.is_autocast_enabled("cpu")
        and _native.load()[0] is not None
    )


def _alone(step: NativeStep, layer: nn.Module, x: Tensor) -> Program | None:
    tape = _Tape(x.shape[0], x.dtype)
    tape.layer(step, _X, _Y)
    return _finished(tape, step.rows, [step], layer)


def _together(stack: Stack, model: nn.Module, x: Tensor) -> Program | None:
    tape, layers = _Tape(x.shape[0], x.dtype), [layer for _, layer in stack.layers]
    tape.stack(stack)
    return _finished(tape, stack.head.rows, layers, model)


def _finished(
    tape: _Tape, rows: int, layers: Sequence[NativeStep], where: nn.Module
) -> Program | None:
    """The program, unless a kernel cannot read the weights as they are."""
    weights = [w for step, _ in tape.calls for w in step.weights if w is not None]
    readable = all(_readable(weight, tape.dtype) for weight in weights)
    return Program(tape, rows, layers, where) if readable else None


def _readable(weight: Weight, dtype: torch.dtype) -> bool:
    """Whether a parameter is there, not computed from others, and plain memory of that dtype."""
    if weight.name not in weight.owner._parameters:
        return False
    p = weight.owner._parameters[weight.name]
    if p is None:
        return weight.optional
    plain = eager(p) and p.dtype is dtype and p.is_cpu and p.is_contiguous()
    return plain and p.shape == weight.shape and aligned(p)
