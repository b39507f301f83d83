"""Writes down the operators of a step while they run: see `linrnn.engine.replay.step`."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from torch.utils._pytree import tree_map

from linrnn.compute.layout import aligned
from linrnn.compute.op import ALL
from linrnn.engine.replay.operands import RefusedError, Slot, tensors_in
from linrnn.engine.replay.rules import is_constant
from linrnn.engine.replay.sums import COMPOSED, RULES
from linrnn.engine.replay.tape import Tape

#: The dtype that a tensor's numbers are stored as.
STORED = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.int64: torch.int64,
    torch.bfloat16: torch.bfloat16,
}


NOT_NOW = "it went another way than most"


def assumed(x: Tensor) -> bool:
    """Whether a step is being recorded, from here on for steps where all of ``x`` is true alone.

    So a step can go the way that most go, and be recorded, though numbers of its state decide.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() == 0:
        return False
    mode = _get_current_dispatch_mode()
    return isinstance(mode, Recorder) and mode.assume(x)


class Call(NamedTuple):
    """An operator that was run on what follows from weights alone."""

    function: Any
    args: Any
    kwargs: Any
    results: list[Tensor]


class Recorder(TorchDispatchMode):
    """Runs operators, and writes down what they do.

    An operator that has no instructions is run by PyTorch, once, where it is given nothing but
    weights and what follows from them: a matrix exponential, say.

    Args:
        tape: the instructions; what is given to the step is known to it.
        module: whose parameters and buffers may be read.
    """

    def __init__(self, tape: Tape, module: nn.Module) -> None:
        super().__init__()
        self.tape = tape
        self.reason: str | None = None
        """Why the step could not be recorded."""
        self.count = 0
        """The number of operators, of views too."""
        self.weights: list[tuple[Mapping[str, Any], str]] = []
        self.assumed: list[Tensor] = []
        """Truth values of the step: the record holds for steps where they are all true."""
        self.derived: list[Tensor] = []
        """Tensors that PyTorch computed from weights alone."""
        self._owners: dict[int, tuple[Mapping[str, Any], str]] = {}
        self._early: dict[int, Call | None] = {}
        self._alive: list[Call] = []  # so that no identity comes again
        for part in module.modules():
            for owner in (part._parameters, part._buffers, vars(part)):
                owners = {id(x): (owner, k) for k, x in owner.items() if isinstance(x, Tensor)}
                self._owners = owners | self._owners

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep a compiler out of here PyTorch would import it, which takes a second."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, facts = kwargs or {}, _facts(function)
        if facts.ours is not None:
            with self:
                return facts.ours.decomposition(*args)
        if facts.composite:
            with self:
                return function.decompose(*args, **kwargs)
        if self.reason is not None:
            return function(*args, **kwargs)
        tensors = tensors_in((*args, *kwargs.values()) if kwargs else args)
        self._meet(tensors)
        output = function(*args, **kwargs)
        if self.reason is not None:
            return output
        results = list(output) if isinstance(output, (tuple, list)) else [output]
        call = self._call(function, facts, (args, kwargs), tensors, results)
        try:
            self._write(facts, args, kwargs, results)
        except RefusedError as error:
            if call is None:
                self.reason = f"{facts.name}: {error}"
            else:
                self._derive(call)
        return output

    def _call(
        self,
        function: Any,
        facts: "_Facts",
        arguments: tuple[Any, Any],
        tensors: list[Tensor],
        results: list[Any],
    ) -> Call | None:
        """The call, if it is given nothing but weights and what follows from them."""
        if facts.mutable:
            for x in tensors:
                self._early.pop(id(x), None)
            return None
        early = all([id(x) in self._early or id(x) in self._owners for x in tensors])
        if not early or facts.random:
            return None
        call = Call(function, *arguments, tensors_in(results))
        self._alive.append(call)
        self._early |= {id(x): call for x in call.results}
        return call

    def _derive(self, call: Call) -> None:
        """Let the results of a call be computed by PyTorch; what reads another is refused."""
        for x in call.results:
            if x.dtype in STORED and x.is_cpu and x.layout is torch.strided:
                self.tape.know(x, Slot("derived", len(self.derived)), _stored(x))
                self.derived.append(x)
            else:  # a rule that was refused may have made room, which nothing is written to
                self.tape.forget(x)

    def derivation(self) -> "Derivation":
        """Say how all of `derived` is computed again."""
        needed: dict[int, Call] = {}
        weights: dict[int, tuple[Mapping[str, Any], str]] = {}
        pending = list(self.derived)
        while pending:
            x = pending.pop()
            call = self._early.get(id(x))
            if call is None:
                weights[id(x)] = self._owners[id(x)]
            elif id(call) not in needed:
                needed[id(call)] = call
                pending += tensors_in((call.args, [*call.kwargs.values()]))
        calls = [call for call in self._alive if id(call) in needed]
        return Derivation(calls, weights, self.derived)

    def assume(self, x: Tensor) -> bool:
        """Record for steps where all of ``x`` is true; False if it is not at this one."""
        with _disable_current_modes():
            holds = bool(x.all())
        self.assumed.append(x)
        if not holds:
            self.reason = self.reason or NOT_NOW
        return holds

    def _meet(self, tensors: list[Tensor]) -> None:
        """Weights that are read for the first time."""
        for x in tensors:
            if id(x) in self._owners and self.tape.slot(x) is None:
                slot = Slot("weight", len(self.weights))
                self.weights.append(self._owners[id(x)])
                if not _readable(x):
                    self.reason = "a weight is of another dtype or device, or not in plain memory"
                self.tape.know(x, slot, _stored(x))

    def _write(self, facts: "_Facts", args: Any, kwargs: Any, results: list[Any]) -> None:
        tape, name, base_name = self.tape, facts.name, facts.name.removesuffix("_")
        self.count += 1
        if facts.random and name not in RULES and name not in COMPOSED:
            raise RefusedError("it draws random numbers")
        if facts.looks or not isinstance(results[0], Tensor):
            raise RefusedError("it looks at numbers")
        if not facts.written and all([tape.slot(x) is not None for x in results]):
            if name.startswith("view") and name not in ("view", "view_as_real", "view_as_complex"):
                raise RefusedError("it has no instructions")
            return  # a view
        if not facts.written and is_constant(name, (args, list(kwargs.values())), tape):
            for x in results:
                tape.hold(x)
            return
        if name in ("detach", "alias"):
            raise RefusedError("it reads a tensor that is no parameter or buffer")
        if base_name in COMPOSED:
            self._compose(COMPOSED[base_name], args, kwargs, results[0])
            return
        write = RULES.get(base_name)
        if write is None:
            raise RefusedError("it has no instructions")
        if base_name in _COPIES:
            kwargs = {}  # say how the result lies in memory, and its dtype
            if _narrows(args, results[0]):
                # to whole numbers a copy cuts off, as that of a counter does
                if base_name != "_to_copy" or results[0].dtype is not torch.int64:
                    raise RefusedError("it makes other numbers of them")
                write = RULES["trunc"]
        to = tape.result(args[0] if facts.written else results[0])
        write(tape, to, *args, **kwargs)

    def _compose(self, function: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        """Write an operator as those that it is made of, which count as one."""
        start, count, to = len(self.tape.instructions), self.count, self.tape.result(result)
        with self:
            value = function(*args, **kwargs)
        self.count = count
        if self.reason is None:
            self.tape.deliver(start, to, self.tape.number(value))


class _Facts(NamedTuple):
    """The description of an operator; PyTorch takes longer to say it than the operator to run."""

    name: str
    ours: Any
    """The op of `linrnn.ops` that it is, or None."""
    composite: bool
    """Whether it is written in other operators."""
    mutable: bool
    written: bool
    """Whether its result is the memory of an argument."""
    random: bool
    looks: bool
    """Whether it looks at numbers."""


@functools.cache
def _facts(function: Any) -> _Facts:
    schema, tags = function._schema, function.tags
    name = schema.name.partition("::")[2]
    alias = schema.returns[0].alias_info if schema.returns else None
    return _Facts(
        name,
        ALL.get(name) if function.namespace == "linrnn" else None,
        torch._C._dispatch_has_kernel_for_dispatch_key(
            function.name(), "CompositeImplicitAutograd"
        ),
        schema.is_mutable,
        alias is not None and alias.is_write,
        torch.Tag.nondeterministic_seeded in tags,
        torch.Tag.data_dependent_output in tags,
    )


class Derivation(NamedTuple):
    """The calls of PyTorch that depend on weights alone, and their results."""

    calls: Sequence[Call]
    """Operators, in order."""
    weights: Mapping[int, tuple[Mapping[str, Any], str]]
    """The owner and the name of each weight that they read, by its identity in the calls."""
    results: Sequence[Tensor]
    """Tensors of the calls that the step reads."""

    def __call__(self) -> list[Tensor]:
        """The results, of the weights as they are now, where and as they lay in memory."""
        now: dict[int, Any] = {k: owner[x].detach() for k, (owner, x) in self.weights.items()}

        def current(x: Any) -> Any:
            return now[id(x)] if isinstance(x, Tensor) else x

        with torch.no_grad():
            for call in self.calls:
                args, kwargs = tree_map(current, (call.args, call.kwargs))
                outputs = tensors_in((call.function(*args, **kwargs),))
                now |= {id(x): y for x, y in zip(call.results, outputs, strict=True)}
        results = [now[id(x)] for x in self.results]
        for x, y in zip(self.results, results, strict=True):
            assert (x.stride(), x.storage_offset()) == (y.stride(), y.storage_offset())
        return results


def _stored(x: Tensor) -> torch.dtype:
    return x.dtype.to_real() if x.is_complex() else x.dtype


def _narrows(args: Sequence[Any], result: Tensor) -> bool:
    """Whether a copy rounds to whole numbers or truth values."""
    kinds = [x.dtype for x in args if isinstance(x, Tensor)]
    integral = not (result.dtype.is_floating_point or result.dtype.is_complex)
    return integral and any(kind is not result.dtype and kind is not torch.bool for kind in kinds)


_COPIES = ("_to_copy", "clone", "copy")


def _readable(x: Tensor) -> bool:
    """Whether the kernel can read a weight where it is."""
    addressable = type(x) in (Tensor, nn.Parameter, nn.Buffer) and x.is_cpu and x.is_contiguous()
    return addressable and (x.dtype in STORED or x.dtype is torch.uint8) and aligned(x)
