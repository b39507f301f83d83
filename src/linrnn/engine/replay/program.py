"""Operators that were written down, as a program of one native call.

`linrnn.engine.replay.recorder` writes them down as instructions on vectors while a function runs as
it is; a native call (``src/native/kernels/recorded_step.cpp``) runs these from then on, for as long
as the modules and their weights stay where and what they were. What follows from small weights
alone may be kept: each call compares these with what they were.
"""

import functools
import operator
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from linrnn._process.turns import drawing
from linrnn.compute import native
from linrnn.compute.arguments import traced
from linrnn.compute.backend import another_requested
from linrnn.compute.layout import dense
from linrnn.compute.modes import eager, transformed
from linrnn.compute.native import DTYPES
from linrnn.compute.replay import Replays, empty, outline
from linrnn.engine.replay.fusion import fused
from linrnn.engine.replay.operands import (
    PRODUCTS,
    Instruction,
    RefusedError,
    Slot,
    View,
    collapsed,
)
from linrnn.engine.replay.recorder import NOT_NOW, STORED, Recorder
from linrnn.engine.replay.tape import Tape

_REPLACED = 128  # of them by others; a module with more kinds would be recorded for ever
TRIES = 64  # to record a kind at a call that goes the way of most; then ever more rarely
_I64, _BYTES = 6, 7  # as recorded_step_args.h calls them
_LINE = 64  # bytes: what memory is aligned to
_KERNEL = native.Kernel("recorded_step", "program count bases watched watches differ")
_WATCHED = 1 << 16  # numbers of a weight that are compared with what they were
#: Of these modules nothing is read but weights. A class of ours says ``reads_weights_only``.
_WITHOUT_FACTS = (nn.Linear, nn.Identity, nn.ModuleList, nn.GELU)
_CODES = {**DTYPES, torch.int64: _I64, torch.uint8: _BYTES}
_OPERAND, _HEAD = struct.Struct("=7qd"), struct.Struct("=2qd4q")
_ABSENT_OPERAND = _OPERAND.pack(-1, 0, 0, 0, 0, 0, 0, 0.0)
_COMPARABLE_TYPES = (bool, int, float, str, type(None))


#: Steps of more sequences are not looked at: few are faster when they are recorded.
_MOST_ROWS = 128
#: The calls of PyTorch cost what instructions take for that many numbers each: with more, the
#: operators are faster (`_slower`). Of 24 mixers of 12 to 768 channels and 4 to 128 sequences, the
#: steps that are recorded so take 0.05 to 1.19 of the time by operators, four of them more than
#: 1.1; those that are not would take 0.37 (cfc, 32 of 256) to 9.5 (retnet, 64 of 256). Choosing the
#: faster by hindsight would save 1.4 % on average. A limit of 16 sequences alone loses 21 %
#: (2026-11-28, EPYC with AVX-512, one core, in turn).
_NUMBERS = 20_000
#: A term of a product, in numbers. Up to `_FEW` vectors PyTorch takes as long to read the matrix.
_TERM, _FEW = 0.3, 12
SLOWER = "they are faster with that many sequences"
#: The dtype that is computed in, for each dtype of weights.
WIDE = {torch.float32: torch.float32, torch.float64: torch.float64, torch.bfloat16: torch.float32}
#: The hooks of all modules there are; PyTorch asks for them together only from a later version on.
EVERY_MODULES_HOOKS: tuple[Mapping[int, Any], ...] = tuple(
    getattr(nn.modules.module, f"_global_{kind}_hooks")
    for kind in ("forward_pre", "forward", "backward_pre", "backward")
)


def ready(x: Any, max_rows: int | None = None) -> bool:
    """Whether a kernel could compute: nobody watches, a plain CPU tensor of few sequences.

    What autocast changes is for the caller to say.
    """
    max_rows = _MOST_ROWS if max_rows is None else max_rows
    return (
        not torch.is_grad_enabled()
        and eager(x)
        and not traced()
        and not another_requested()
        and x.dtype in WIDE
        and x.is_cpu
        and x.ndim == 2
        and 0 < x.shape[0] <= max_rows
        and not transformed()
        and native.load()[0] is not None
    )


class Program:
    """A recorded step, with the test whether the recording is out of date.

    Args:
        recorder: the recorder of the step.
        module: whose weights it read.
        arguments: tensors, the first of which is never a result.
        results: the results of the step for these arguments.
        max_watched: most numbers of a weight whose derived values may be stored.
    """

    def __init__(
        self,
        recorder: Recorder,
        module: nn.Module,
        arguments: Sequence[Tensor],
        results: Sequence[Tensor],
        max_watched: int = _WATCHED,
    ) -> None:
        tape = recorder.tape
        self._compute_dtype = tape.wide
        self._argument_types = [(x.shape, x.dtype) for x in arguments]
        self._passed = [_passed(tape, y, arguments) for y in results]
        truths, passed = recorder.assumed, zip(results, self._passed, strict=True)
        computed = [y for y, n in passed if not n]
        for y in computed:
            if y.dtype not in STORED:
                raise RefusedError(f"it returns numbers of {y.dtype}")
        self._results = [outline(y) for y in (*computed, *[y.to(tape.wide) for y in truths])]
        self._answers = len(computed)  # the others say whether they are right
        dtypes = [STORED[y.dtype] for y in self._results]
        tape.finish([tape.number(y) for y in (*computed, *truths)], dtypes)
        self._weights = recorder.weights
        #: Of each weight the dict that holds it, and its name there.
        self._holders, self._weight_names = ([place[i] for place in self._weights] for i in (0, 1))
        self._derivation = recorder.derivation()
        self._pointers = self._addresses()
        self._assemble(tape, arguments, recorder.count, max_watched)
        self._watch(module)

    def _assemble(
        self, tape: Tape, arguments: Sequence[Tensor], n_operators: int, max_watched: int
    ) -> None:
        n_arguments, n_rows = len(arguments), len(arguments[0])
        early, late, between = tape.fixed(max_watched)
        early, late = fused(tape, early, between), fused(tape, late, ())
        self.count = len(late)
        self.slower = _slower(late, n_operators, n_rows)
        ends = list(accumulate((tape.bytes_of(slot, _LINE) for slot in between), initial=0))
        lasting = {slot: (1, end) for slot, end in zip(between, ends, strict=False)}
        # the bases: scratch, what is computed early, given, results, then what stays
        first = {"given": 2, "result": 2 + n_arguments}
        first["weight"] = first["result"] + len(self._results)
        first["constant"] = first["weight"] + len(self._weights)
        first["derived"] = first["constant"] + len(tape.constants)
        self._constants, self._lasting = tape.constants, ends[-1]
        codes, scratch = [], []
        for instructions in (early, late):
            offsets, numbers = tape.places(instructions, _LINE, between)
            scratch.append(numbers)
            places = lasting | {slot: (0, at) for slot, at in offsets.items()}
            codes.append(b"".join([_packed(step, tape, first, places) for step in instructions]))
        self._early, self._late = (array("b", code) for code in codes)
        self._early_count, self._scratch = len(early), max(scratch)
        self._late_address = _address(self._late)
        fixed = [x.data_ptr() for x in tape.constants]
        self._bases = array("q", [0] * first["weight"] + self._pointers + fixed)
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
        indices = set()
        for owner, name in self._derivation.weights.values():
            same = [i for i, (o, n) in enumerate(self._weights) if o is owner and n == name]
            if not same or owner[name].numel() > _WATCHED:
                raise RefusedError("it computes by PyTorch from a weight of too many numbers")
            indices.add(same[0])
        return indices

    def _prepare(self) -> "_Prepared":
        """Compute what follows from weights alone, as they are now."""
        weights = [self._weights[i][0][self._weights[i][1]].detach() for i in self._watched]
        snapshots = [x.clone() for x in weights]  # of the same strides: all are dense
        derived = self._derivation()
        fixed = [x.untyped_storage().data_ptr() for x in derived]
        table = self._bases + array("q", fixed)
        scratch = torch.empty(self._scratch, dtype=torch.uint8, device="cpu")
        lasting = torch.empty(self._lasting, dtype=torch.uint8, device="cpu")
        bases = table[:]
        table[0], table[1] = scratch.data_ptr(), lasting.data_ptr()
        program = (_address(self._early), self._early_count, _address(table))
        _KERNEL(self._compute_dtype, *program, 0, 0, 0)
        triples = array("q")
        for x, y in zip(weights, snapshots, strict=True):
            triples.extend((x.data_ptr(), y.data_ptr(), x.numel() * x.element_size()))
        return _Prepared(lasting, derived, bases, snapshots, triples)

    def _watch(self, module: nn.Module) -> None:
        """Remember what else than weights the recording may have depended on."""
        parts = list(module.modules())
        self._hooks: list[Mapping[int, Any]] = []
        children, values = list[tuple[Any, str, Any]](), list[Any]()
        self._getters: list[tuple[Callable[[Any], Any], dict[str, Any]]] = []
        for part in parts:
            self._hooks += [part._forward_hooks, part._forward_pre_hooks]
            children += [(part._modules, name, m) for name, m in part._modules.items()]
            names = [] if _without_facts(type(part)) else list(vars(part))
            attributes = [k for k in names if not k.startswith("_") and _comparable(vars(part)[k])]
            if attributes:
                self._getters.append((operator.itemgetter(*attributes), vars(part)))
                values.append(operator.itemgetter(*attributes)(vars(part)))
        self._values, self._everything = values, [vars(part) for part in parts]
        self._lengths = list(map(len, self._everything))
        columns: Any = zip(*children, strict=True) if children else ((), (), ())
        self._owners, self._names, self._children = map(list, columns)
        self._ids = list(map(id, self._children))

    def _addresses(self) -> list[int]:
        read: Any = dict.get
        return list(map(Tensor.data_ptr, map(read, self._holders, self._weight_names)))

    def current(self) -> bool:
        """Whether modules and weights are what they were."""
        try:
            return (
                self._addresses() == self._pointers
                and list(map(id, map(dict.get, self._owners, self._names))) == self._ids
                and list(map(len, self._everything)) == self._lengths
                and [get(attributes) for get, attributes in self._getters] == self._values
            )
        except (KeyError, TypeError):  # an attribute or a weight has gone
            return False

    def welcome(self) -> bool:
        """Whether nobody wants to see, or to change, what the modules compute."""
        return not (any(self._hooks) or any(EVERY_MODULES_HOOKS))

    def __call__(self, arguments: Sequence[Any]) -> list[Tensor] | None:
        """The results, None where a tensor is not like the recorded one.

        Nor where what was assumed of them is not so.
        """
        for x, (shape, dtype) in zip(arguments, self._argument_types, strict=True):
            if type(x) is not Tensor or x.dtype is not dtype or x.shape != shape or not x.is_cpu:
                return None
        arguments = list(map(dense, arguments))
        prepared = self._prepared
        while True:
            if prepared is None:
                prepared = self._prepared = self._prepare()
            results = list(map(empty, self._results))
            if self._run(prepared, (*arguments, *results)):
                if not all([bool(y.all()) for y in results[self._answers :]]):
                    return None
                computed = iter(results)
                return [arguments[n] if n else next(computed) for n in self._passed]
            prepared = None

    def _run(self, prepared: "_Prepared", moving: Sequence[Tensor]) -> bool:
        """Compute; False where a weight is not what it was."""
        scratch = torch.empty(self._scratch, dtype=torch.uint8, device="cpu")
        table, differ = prepared.bases[:], array("q", (0,))
        table[0], table[1] = scratch.data_ptr(), prepared.memory.data_ptr()
        table[2 : 2 + len(moving)] = array("q", map(Tensor.data_ptr, moving))
        program = (self._late_address, self.count, _address(table))
        watched = (_address(prepared.watched), len(prepared.watched) // 3)
        _KERNEL(self._compute_dtype, *program, *watched, _address(differ))
        return not differ[0]


class _Prepared(NamedTuple):
    """Results computed from weights alone."""

    memory: Tensor
    derived: list[Tensor]
    """By PyTorch."""
    bases: "array[int]"
    """Addresses, all but those that change from step to step."""
    weights: list[Tensor]
    """Their numbers at that time."""
    watched: "array[int]"
    """The address of each, of what it was, and how many bytes."""


def _slower(instructions: Sequence[Instruction], n_operators: int, n_rows: int) -> bool:
    """Whether that many operators take less time than the instructions: see `_NUMBERS`."""
    # the operator of a quantized product is the same kernel
    costs = {**dict.fromkeys(PRODUCTS, 0.0), "product": _TERM * max(0.0, 1 - _FEW / n_rows)}
    numbers = sum([prod(step.size) * costs.get(step.op, 1.0) for step in instructions])
    return numbers > _NUMBERS * n_operators


def _address(x: "array[int]") -> int:
    return x.buffer_info()[0]


def _without_facts(kind: type) -> bool:
    """Whether modules of that class have nothing that decides what they compute but weights."""
    return kind in _WITHOUT_FACTS or bool(vars(kind).get("reads_weights_only"))


def _comparable(x: object) -> bool:
    """Whether a value of Python can be compared."""
    return all(map(_comparable, x)) if isinstance(x, tuple) else isinstance(x, _COMPARABLE_TYPES)


def _passed(tape: Tape, y: Tensor, arguments: Sequence[Tensor]) -> int:
    """The index of the argument, from the second on, that a result is; 0: it is computed."""
    slot = tape.slot(y)
    if slot is None or slot.kind != "given" or slot.number == 0:
        return 0
    same_layout = y.shape == arguments[slot.number].shape and y.is_contiguous()
    return slot.number if same_layout and y.dtype is arguments[slot.number].dtype else 0


def _packed(
    step: Instruction, tape: Tape, first: Mapping[str, int], places: Mapping[Slot, tuple[int, int]]
) -> bytes:
    """An instruction as the kernel reads it.

    Memory in ``places`` lies some bytes behind a base; other memory has one, ``first`` of its kind.
    """
    sizes, strides = collapsed(step)
    opcodes = operations()
    if step.op not in opcodes:
        raise RefusedError(f"the kernels are of another version, without {step.op!r}")
    code = _HEAD.pack(opcodes[step.op], DTYPES[step.dtype], step.value, *sizes)
    for x, along in zip((step.to, *step.read), strides, strict=True):
        if isinstance(x, View):
            dtype = tape.dtypes[x.slot]
            base, at = places.get(x.slot) or (first[x.slot.kind] + x.slot.number, 0)
            code += _OPERAND.pack(base, at + x.offset * dtype.itemsize, _CODES[dtype], *along, 0.0)
        else:
            code += _OPERAND.pack(-1, 0, 0, 0, 0, 0, 0, x)
    return code + _ABSENT_OPERAND * (3 - len(step.read))


@functools.cache
def operations() -> dict[str, int]:
    """The number of each operation that the kernels know; none without kernels."""
    layout = native.handle("recorded_step").linrnn_record_layout
    names = (layout(b"recorded operations") or b"").decode().split()
    return {name: i for i, name in enumerate(names)}


class Kind:
    """Calls of one kind, and what became of them."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.reason = ""
        self.slower = False
        """Whether the operators are faster."""
        self.calls = 0
        """The number of calls that were not run by a program."""
        self.form: Any = None
        """How the caller makes tensors of its arguments, and its results of tensors."""

    def given_up(self) -> bool:
        """Whether this call is not to be recorded; asked once a call.

        Where calls go other ways than most, as the first ones of many streams do, a record is tried
        again and again, but so rarely that it costs next to nothing.
        """
        self.calls += 1
        rare = self.calls > TRIES and self.calls & (self.calls - 1) != 0
        return bool(self.reason) and (self.reason != NOT_NOW or rare)

    def record(
        self,
        module: nn.Module,
        function: Callable[[list[Tensor]], tuple[Sequence[Tensor], str | None]],
        arguments: Sequence[Tensor],
        compute_dtype: torch.dtype,
        max_watched: int = _WATCHED,
        constants: Sequence[Tensor] = (),
        if_faster: bool = False,
    ) -> None:
        """Run a function as it is, and write it down, unless another thread has just done so.

        Args:
            module: whose weights it reads.
            function: of copies of ``arguments``: its results, and why not to record them.
            arguments: as of `Program`.
            compute_dtype: what is computed in.
            max_watched: as of `Program`.
            constants: that the function reads, beside.
            if_faster: give up where the operators are taken to be faster.
        """
        # what is drawn here is drawn again by the call that is answered
        with drawing(), torch.no_grad():
            if self.program is not None:
                return
            tape = Tape(compute_dtype)
            for x in constants:
                tape.hold(x)
            copies = [x.clone(memory_format=torch.contiguous_format) for x in arguments]
            recorder = Recorder(tape, module)
            for i, x in enumerate(copies):
                if i and x.dtype not in STORED:
                    recorder.reason = recorder.reason or f"the state has numbers of {x.dtype}"
                tape.know(x, Slot("given", i), STORED.get(x.dtype, tape.wide))
            with recorder:
                results, reason = function(copies)
            reason = reason or recorder.reason
            if reason is None:
                try:
                    program = Program(recorder, module, arguments, results, max_watched)
                    self.slower = program.slower and if_faster
                    if self.slower:
                        raise RefusedError(SLOWER)
                    self.program = program
                except RefusedError as error:
                    reason = f"{error}"
            self.reason = reason or ""


def kind_of(kinds: Replays, key: tuple[Any, ...], module: nn.Module) -> Kind | None:
    """Look up the record of calls like one; None where it must be run as it is."""
    kind: Kind | None = kinds.get(key)
    if kind is None or (kind.program is not None and not kind.program.current()):
        if kind is None and len(kinds) >= kinds.MOST and kinds.replaced >= _REPLACED:
            return None
        kind = Kind()
        kinds.store(key, kind)
    if kind.program is not None:
        return kind if kind.program.welcome() else None
    return None if kind.given_up() or _hooked(module) else kind


def _hooked(module: nn.Module) -> bool:
    parts = module.modules()
    return any(EVERY_MODULES_HOOKS) or any(
        part._forward_hooks or part._forward_pre_hooks for part in parts
    )
