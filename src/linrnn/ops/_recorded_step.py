"""One streaming step of a model in one native call, recorded from the operators it runs as.

A step of a few sequences is little arithmetic beside reading the weights; as hundreds of operators
it is mostly calls. Before the first step of a kind it is run as it is while its operators are
written down (`linrnn.ops._recorder`), as instructions on vectors. One native call runs these
(``src/native/kernels/recorded_step.cpp``), then and from then on, so a step has the same bits
however many came before, for as long as the modules and their weights stay where and what they
were. What follows from small weights alone may be kept: each call compares these with what they
were. A step with an operator that has no instructions, or whose state grows, runs as before.

Without gradients, on a CPU. Weights may be bfloat16: everything else is float32 then.
"""

import ctypes
import functools
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.ops import _native
from linrnn.ops._layout import dense
from linrnn.ops._native import DTYPES
from linrnn.ops._recorded_tape import (
    Instruction,
    Real,
    RefusedError,
    Slot,
    Tape,
    View,
    collapsed,
)
from linrnn.ops._recorder import NOT_NOW, STORED, Recorder
from linrnn.ops._step_program import EVERY_MODULES_HOOKS, WIDE, ready
from linrnn.typing import State

_KEPT = 8  # kinds of steps of a model that are remembered
_TRIES = 8  # to record a kind at a step that goes the way of most
_I64 = 6  # as recorded_step_args.h calls it
_LINE = 64  # bytes: what memory is aligned to
_KERNEL = _native.Kernel("recorded_step", "program count bases watched watches differ")
_WORD = ctypes.c_int64
_WATCHED = 1 << 16  # numbers of a weight that are compared with what they were
#: Of these modules nothing is read but weights.
_WITHOUT_FACTS = (nn.Linear, nn.Identity, nn.ModuleList, nn.GELU)
_OPERAND, _HEAD = struct.Struct("=7qd"), struct.Struct("=2qd4q")
_NOTHING = _OPERAND.pack(-1, 0, 0, 0, 0, 0, 0, 0.0)
_PLAINLY = torch.contiguous_format  # as it is, an axis of one number would have no stride
_PLAIN = (bool, int, float, str, type(None))

Step = Callable[[Tensor, State], tuple[Tensor, State]]


class Tree(NamedTuple):
    """How a state is made of tensors."""

    kind: Any  # dict, list or tuple; None for a tensor
    names: tuple[Any, ...] = ()
    parts: tuple["Tree", ...] = ()

    def leaves(self, state: Any, into: list[Any]) -> bool:
        """Collect the tensors of a state of this structure; False for one of another."""
        if self.kind is None:
            into.append(state)
            return True
        if type(state) is not self.kind or len(state) != len(self.names):
            return False
        if self.kind is dict and not all([name in state for name in self.names]):
            return False
        pairs = zip(self.names, self.parts, strict=True)
        return all([part.leaves(state[k], into) for k, part in pairs])

    def joined(self, leaves: Any) -> Any:
        """A state of this structure, from an iterator of its tensors."""
        if self.kind is None:
            return next(leaves)
        parts = [part.joined(leaves) for part in self.parts]
        return dict(zip(self.names, parts, strict=True)) if self.kind is dict else self.kind(parts)


def tree_of(state: Any) -> Tree:
    """The structure of a state."""
    if isinstance(state, dict):
        return Tree(dict, tuple(state), tuple(tree_of(x) for x in state.values()))
    if isinstance(state, (list, tuple)):
        return Tree(type(state), tuple(range(len(state))), tuple(map(tree_of, state)))
    return Tree(None)


class Program:
    """A recorded step, and how to tell that it is out of date."""

    def __init__(
        self, recorder: Recorder, module: nn.Module, x: Tensor, state: State, results: Any
    ) -> None:
        tape = recorder.tape
        self._wide = tape.wide
        self._before, self._after = tree_of(state), tree_of(results[1])
        leaves: list[Tensor] = []
        self._before.leaves(state, leaves)
        self._columns = tuple(x.shape)
        self._shapes = [(h.shape, h.dtype) for h in leaves]
        after: list[Tensor] = []
        self._after.leaves(results[1], after)
        self._passed = [_passed(tape, y, leaves) for y in after]
        truths, passed = recorder.assumed, zip(after, self._passed, strict=True)
        computed = [results[0], *(y for y, given in passed if not given)]
        self._results = [_outline(y) for y in computed]
        self._results += [_outline(y.to(tape.wide)) for y in truths]
        self._answers = len(computed)  # the others say whether they are right
        dtypes = [STORED[y.dtype] for y in self._results]
        tape.finish([tape.number(y) for y in (*computed, *truths)], dtypes)
        self._weights = recorder.weights
        self._derivation = recorder.derivation()
        self._pointers = self._addresses()
        self._assemble(tape, len(leaves) + 1)
        self._watch(module)

    def _assemble(self, tape: Tape, given: int) -> None:
        early, late, between = tape.fixed(_WATCHED)
        self.count = len(late)
        ends = list(accumulate((tape.bytes_of(slot, _LINE) for slot in between), initial=0))
        lasting = dict(zip(between, ends, strict=False))
        # the bases: scratch, what is computed early, given, results, then what stays
        first = {"given": 2, "result": 2 + given}
        first["weight"] = first["result"] + len(self._results)
        first["constant"] = first["weight"] + len(self._weights)
        first["derived"] = first["constant"] + len(tape.constants)
        self._constants, self._lasting = tape.constants, ends[-1]
        codes, scratch = [], []
        for instructions in (early, late):
            places, numbers = tape.places(instructions, _LINE, between)
            scratch.append(numbers)

            def operand(
                x: Real, strides: Sequence[int], places: Mapping[Slot, int] = places
            ) -> bytes:
                if not isinstance(x, View):
                    return _OPERAND.pack(-1, 0, 0, 0, 0, 0, 0, x)
                dtype = tape.dtypes[x.slot]
                base, at = first.get(x.slot.kind, 0) + x.slot.number, x.offset * dtype.itemsize
                if x.slot in lasting:
                    base, at = 1, at + lasting[x.slot]
                elif x.slot.kind == "scratch":
                    base, at = 0, at + places[x.slot]
                return _OPERAND.pack(base, at, DTYPES.get(dtype, _I64), *strides, 0.0)

            codes.append(b"".join(_packed(step, operand) for step in instructions))
        self._early, self._late = (np.frombuffer(code, dtype=np.uint8) for code in codes)
        self._early_count, self._scratch = len(early), max(scratch)
        fixed = [x.data_ptr() for x in tape.constants]
        self._bases = np.array([0] * first["weight"] + self._pointers + fixed, dtype=np.int64)
        watched = {
            x.slot.number
            for step in early
            for x in step.read
            if isinstance(x, View) and x.slot.kind == "weight"
        }
        self._watched = sorted(watched | self._derived_from())
        self._prepared: _Prepared | None = None

    def _derived_from(self) -> set[int]:
        """The weights that PyTorch computes something from; no large ones are looked at."""
        found = set()
        for owner, name in self._derivation.places:
            same = [i for i, (o, n) in enumerate(self._weights) if o is owner and n == name]
            if not same or owner[name].numel() > _WATCHED:
                raise RefusedError("it computes by PyTorch from a weight of too many numbers")
            found.add(same[0])
        return found

    def _prepare(self) -> "_Prepared":
        """What is computed from weights alone, as they are now."""
        weights = [self._weights[i][0][self._weights[i][1]].detach() for i in self._watched]
        kept = [x.clone() for x in weights]  # of the same strides: all are dense
        derived = self._derivation()
        fixed = [x.untyped_storage().data_ptr() for x in derived]
        table = np.append(self._bases, np.array(fixed, dtype=np.int64))
        scratch = torch.empty(self._scratch, dtype=torch.uint8)
        lasting = torch.empty(self._lasting, dtype=torch.uint8)
        bases = table.copy()
        table[:2] = scratch.data_ptr(), lasting.data_ptr()
        program = (self._early.ctypes.data, self._early_count, table.ctypes.data)
        _KERNEL(self._wide, *program, 0, 0, 0)
        triples = [
            (x.data_ptr(), y.data_ptr(), x.numel() * x.element_size())
            for x, y in zip(weights, kept, strict=True)
        ]
        return _Prepared(lasting, derived, bases, kept, np.array(triples, dtype=np.int64))

    def _watch(self, module: nn.Module) -> None:
        """What else than weights the recording may have depended on."""
        parts = list(module.modules())
        self._hooks: list[Mapping[int, Any]] = []
        children, values = list[tuple[Any, str, Any]](), list[Any]()
        self._getters: list[tuple[Callable[[Any], Any], dict[str, Any]]] = []
        for part in parts:
            self._hooks += [part._forward_hooks, part._forward_pre_hooks]
            children += [(part._modules, name, m) for name, m in part._modules.items()]
            names = [] if type(part) in _WITHOUT_FACTS else list(vars(part))
            known = [k for k in names if not k.startswith("_") and _plain(vars(part)[k])]
            if known:
                self._getters.append((operator.itemgetter(*known), vars(part)))
                values.append(operator.itemgetter(*known)(vars(part)))
        self._values, self._everything = values, [vars(part) for part in parts]
        self._lengths = list(map(len, self._everything))
        columns: Any = zip(*children, strict=True) if children else ((), (), ())
        self._owners, self._names, self._children = map(list, columns)
        self._ids = list(map(id, self._children))

    def _addresses(self) -> list[int]:
        weights = [owner.get(name) for owner, name in self._weights]
        return [0 if p is None else p.data_ptr() for p in weights]

    def current(self) -> bool:
        """Whether modules and weights are what they were."""
        try:
            return (
                self._addresses() == self._pointers
                and list(map(id, map(dict.get, self._owners, self._names))) == self._ids
                and list(map(len, self._everything)) == self._lengths
                and [get(known) for get, known in self._getters] == self._values
            )
        except KeyError:  # an attribute has gone
            return False

    def welcome(self) -> bool:
        """Whether nobody wants to see, or to change, what the modules compute."""
        return not (any(self._hooks) or any(EVERY_MODULES_HOOKS))

    def __call__(self, x: Tensor, state: State) -> tuple[Tensor, State] | None:
        """The results of a step, None where an argument is not like the recorded ones.

        Nor where what was assumed of them is not so.
        """
        before: list[Any] = []
        if x.shape != self._columns or not self._before.leaves(state, before):
            return None
        for h, (shape, dtype) in zip(before, self._shapes, strict=True):
            if type(h) is not Tensor or h.shape != shape or h.dtype is not dtype or not h.is_cpu:
                return None
        given = [dense(x), *map(dense, before)]
        prepared = self._prepared
        while True:
            if prepared is None:
                prepared = self._prepared = self._prepare()
            results = [torch.empty_like(y, memory_format=_PLAINLY) for y in self._results]
            if self._run(prepared, (*given, *results)):
                if not all([bool(y.all()) for y in results[self._answers :]]):
                    return None
                made = iter(results[1:])
                after = (given[n] if n else next(made) for n in self._passed)
                return results[0], self._after.joined(after)
            prepared = None

    def _run(self, prepared: "_Prepared", moving: Sequence[Tensor]) -> bool:
        """Compute; False where a weight is not what it was."""
        scratch, differ = torch.empty(self._scratch, dtype=torch.uint8), _WORD()
        table, n = prepared.bases.copy(), len(moving)
        table[0], table[1] = scratch.data_ptr(), prepared.memory.data_ptr()
        table[2 : 2 + n] = [y.data_ptr() for y in moving]
        program = (self._late.ctypes.data, self.count, table.ctypes.data)
        watched, watches = prepared.watched.ctypes.data, len(prepared.watched)
        _KERNEL(self._wide, *program, watched, watches, ctypes.addressof(differ))
        return not differ.value


class _Prepared(NamedTuple):
    """What was computed from weights alone."""

    memory: Tensor
    derived: list[Tensor]
    """By PyTorch."""
    bases: "np.ndarray[Any, Any]"
    """Addresses, all but those that change from step to step."""
    weights: list[Tensor]
    """What they were."""
    watched: "np.ndarray[Any, Any]"
    """The address of each, of what it was, and how many bytes."""


def _plain(x: object) -> bool:
    """Whether a value of Python can be compared."""
    return all(map(_plain, x)) if isinstance(x, tuple) else isinstance(x, _PLAIN)


def _passed(tape: Tape, y: Tensor, leaves: Sequence[Tensor]) -> int:
    """Which of what is given, the states from 1 on, a state after the step is; 0: it is made."""
    slot = tape.slot(y)
    if slot is None or slot.kind != "given" or slot.number == 0:
        return 0
    whole = y.shape == leaves[slot.number - 1].shape and y.is_contiguous()
    return slot.number if whole and y.dtype is leaves[slot.number - 1].dtype else 0


def _outline(y: Tensor) -> Tensor:
    """What a result is made like: one number, seen everywhere."""
    if y.dtype not in STORED:
        raise RefusedError(f"it returns numbers of {y.dtype}")
    return torch.empty((), dtype=y.dtype, device="cpu").expand(y.shape)


def _packed(step: Instruction, operand: Callable[[Real, Sequence[int]], bytes]) -> bytes:
    sizes, strides = collapsed(step)
    operations = _operations()
    if step.op not in operations:
        raise RefusedError(f"the kernels are of another version, without {step.op!r}")
    parts = [operand(x, s) for x, s in zip((step.to, *step.read), strides, strict=True)]
    head = _HEAD.pack(operations[step.op], DTYPES[step.dtype], step.value, *sizes)
    return head + b"".join(parts) + _NOTHING * (4 - len(parts))


@functools.cache
def _operations() -> dict[str, int]:
    layout = _native.handle("recorded_step").linrnn_record_layout
    names = (layout(b"recorded operations") or b"").decode().split()
    return {name: i for i, name in enumerate(names)}


class _Kind:
    """Steps of one kind, and what became of them."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.reason = ""
        self.tries = 0

    def given_up(self) -> bool:
        """Whether no step will be recorded."""
        return bool(self.reason) and (self.reason != NOT_NOW or self.tries >= _TRIES)


_kinds: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], _Kind]] = WeakKeyDictionary()


def recorded_step(
    module: nn.Module, step: Step, x: Tensor, state: State
) -> tuple[Tensor, State] | None:
    """``step(x, state)`` in one native call, None where it must be run as it is.

    Args:
        module: whose step it is, and whose weights it reads.
        step: computes ``(y, state)`` of x (batch, columns) with operators of PyTorch.
        x: not checked yet, nor is the state.
        state: before the step.
    """
    if not ready(x) or not _operations():
        return None
    kinds = _kinds.setdefault(module, {})
    key = _key(module, x)
    kind = kinds.get(key)
    if kind is None:
        if len(kinds) >= _KEPT:
            kinds.clear()
        kind = kinds[key] = _Kind()
    program = kind.program
    if program is not None:
        if program.current():
            return program(x, state) if program.welcome() else None
        kind = kinds[key] = _Kind()
    if kind.given_up() or _hooked(module):
        return None
    return _record(kind, module, step, x, state)


def _key(module: nn.Module, x: Tensor) -> tuple[Any, ...]:
    return x.shape[0], x.dtype, module.training


def _hooked(module: nn.Module) -> bool:
    parts = module.modules()
    return any(EVERY_MODULES_HOOKS) or any(
        part._forward_hooks or part._forward_pre_hooks for part in parts
    )


def _record(
    kind: _Kind, module: nn.Module, step: Step, x: Tensor, state: State
) -> tuple[Tensor, State] | None:
    """Run a step as it is, write it down, and run what was written; None where that is nothing."""
    tree, before = tree_of(state), list[Any]()
    tree.leaves(state, before)
    if not all(type(h) is Tensor and h.is_cpu for h in before):
        return None
    tape = Tape(WIDE[x.dtype])
    given = [x.clone(), *(h.clone(memory_format=torch.contiguous_format) for h in before)]
    recorder = Recorder(tape, module)
    for i, h in enumerate(given):
        if i and h.dtype not in STORED:
            recorder.reason = recorder.reason or f"the state has numbers of {h.dtype}"
        tape.know(h, Slot("given", i), STORED.get(h.dtype, tape.wide))
    state = tree.joined(iter(given[1:]))
    # what is drawn here is drawn again by the step that is answered
    with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
        results = step(given[0], state)
    after = list[Any]()
    tree.leaves(results[1], after)
    if [h.shape for h in before] != [getattr(h, "shape", None) for h in after]:
        recorder.reason = "its state is of another size after each step"
    if recorder.reason is None:
        try:
            kind.program = Program(recorder, module, x, state, results)
        except RefusedError as error:
            recorder.reason = f"{error}"
    kind.reason, kind.tries = recorder.reason or "", kind.tries + 1
    return None if kind.program is None else kind.program(x, tree.joined(iter(before)))


def explain_step(module: nn.Module, step: Step, x: Tensor, state: State) -> str:
    """What computes the steps of a module; runs one."""
    with torch.no_grad():
        step(x, state)
        kind = _kinds.get(module, {}).get(_key(module, x))
    if kind is None:
        return "PyTorch's operators, or kernels of its layers"
    if kind.program is None:
        return f"PyTorch's operators: {kind.reason or 'somebody watches'}"
    return f"one native call of {kind.program.count} recorded instructions"
