"""One step that writes its state where it lies: a decoder's, without gradients.

All checks and the choice of who computes are made once for every kind of call: shapes, strides,
dtypes and flags. A call like one before fills in addresses (`linrnn.compute.replay`). Compilers
see an operator that says which argument it writes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from linrnn.compute import native
from linrnn.compute.arguments import check_device, check_numbers
from linrnn.compute.backend import BACKENDS, WRITTEN_FOR, choose, requested
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.op import STOPPED, _library, _ReachedError, watched
from linrnn.compute.precision import without_autocast
from linrnn.compute.replay import Read, Replay, Replays, empty, kinds, outline
from linrnn.errors import ArgumentError

#: Every update that has been described, by name.
UPDATES: dict[str, "Update"] = {}

_WORDS_OF_OPERAND = 5
_ABSENT = (0,) * _WORDS_OF_OPERAND
_MODULES = (("cpu", __name__),)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="conv_update")


def operand_fields(names: str) -> str:
    """The fields of a record for tensors that a kernel reads as operands (``operand_args.h``).

    Example:
        >>> operand_fields("x")
        'x x_dtype x_row x_head x_lane'
    """
    return " ".join(f"{x} {x}_dtype {x}_row {x}_head {x}_lane" for x in names.split())


def operand(x: Tensor | None, row: int = -1, head: int = -1, lane: int = -1) -> tuple[int, ...]:
    """Address, dtype and strides of a tensor, for which axes are its rows, heads and lanes."""
    if x is None:
        return _ABSENT
    strides = (x.stride(axis) if axis >= 0 and x.shape[axis] > 1 else 0 for axis in (row, head))
    step = x.stride(lane) if lane >= 0 else 0
    return (x.data_ptr(), native.DTYPES[x.dtype], *strides, step)


def without_overlap(state: Tensor) -> bool:
    """Whether no two numbers of a state share memory, as far as strides show."""
    needed = 1
    for stride, size in sorted(zip(state.stride(), state.shape, strict=True)):
        if size > 1:
            if stride < needed:
                return False
            needed = stride * (size - 1) + needed
    return True


def kind_of_call(
    arguments: Sequence[Any], tensors: int, backend: str | None
) -> tuple[Any, ...] | None:
    """The key that calls with the same record share; None where nothing is recorded.

    Args:
        arguments: of the call, tensors or None first, then numbers and words.
        tensors: how many come first.
        backend: that an argument requests.
    """
    if watched():
        return None
    of_tensors = kinds(arguments[:tensors], gradient=False)
    if of_tensors is None:
        return None
    key = (requested(backend)[0], native.threads(), *of_tensors, *arguments[tensors:])
    try:
        hash(key)
    except TypeError:  # an argument of another kind
        return None
    return key


class Plan(NamedTuple):
    """How calls of one kind are computed by a kernel that writes one output."""

    replay: Replay
    result: Tensor  # an outline

    def __call__(self, tensors: Sequence[Tensor | None]) -> Tensor | None:
        """The output; None where a tensor lies where the kernel cannot read it."""
        y = empty(self.result)
        return y if self.replay.run(tensors, (y,)) else None


def planned(
    kernel: native.Kernel, record: bytes, words: Sequence[str], tensors: Sequence[Any], y: Tensor
) -> Plan:
    """A plan for calls like one whose record is written.

    Args:
        kernel: that computes it.
        record: of the call.
        words: the field of each tensor's address.
        tensors: of the call, or None.
        y: the output.
    """
    reads = [
        Read(kernel.places[word], i, 0, x.element_size() - 1)
        for i, (word, x) in enumerate(zip(words, tensors, strict=True))
        if x is not None
    ]
    return Plan(Replay(kernel.name, record, reads, [(kernel.places["y"], 0)]), outline(y))


class Update:
    """One step of a recurrence that writes the state in place and returns the output.

    Args:
        name: of the operator, of the kernel and in messages.
        arguments: the schema, tensors first; the state is marked ``Tensor(a!)``.
        check: called with the arguments; raises where they do not fit together.
        definition: called with the arguments; the output and the next state, as new tensors.
        fields: of the kernel's record, behind dtype and threads.
        record: called with the arguments and the output; the values of the fields, or None where
            the kernel cannot compute the call.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        *,
        check: Callable[..., None],
        definition: Callable[..., tuple[Tensor, Tensor]],
        fields: str,
        record: Callable[..., Sequence[Any] | None],
    ) -> None:
        self.name, self.definition, self._check, self._record = name, definition, check, record
        parts = arguments.split(", ")
        self.names = [part.split()[-1] for part in parts]
        self._tensors = sum(part.startswith("Tensor") for part in parts)
        self._state = next(i for i, part in enumerate(parts) if part.startswith("Tensor(a!)"))
        self.kernel = native.Kernel(name, fields)
        self._plans = Replays()
        _library.define(f"{name}({arguments}, str? backend) -> Tensor")
        _library.impl(name, self._run_operator, "CompositeExplicitAutograd")
        torch.library.register_fake(f"linrnn::{name}", self._fake, lib=_library)
        UPDATES[name] = self

    def __call__(self, *arguments: Any, backend: str | None = None) -> Tensor:
        """The output; the state has the next one when it returns."""
        if torch.compiler.is_compiling():
            self._checked(arguments)
            y: Tensor = getattr(torch.ops.linrnn, self.name).default(*arguments, backend)
            return y
        key = kind_of_call(arguments, self._tensors, backend)
        plan = None if key is None else self._plans.get(key)
        if plan is not None:
            result: Tensor | None = plan(arguments[: self._tensors])
            if result is not None:
                increment_version(arguments[self._state])
                return result
        return self._whole(arguments, key, backend)

    def explain(self, arguments: Sequence[Any], backend: str | None) -> str:
        """The backend that would compute a call, and why."""
        state: Tensor = arguments[self._state]
        name, why = choose(self.name, _MODULES, backend, state.device, state.dtype)
        if name == "cpu" and self._values(arguments, self._output(arguments)) is None:
            return "composed of PyTorch's operators: no kernel for these strides or dtypes"
        return why

    def problems(self, device: torch.device, dtype: torch.dtype) -> dict[str, str | None]:
        """Each backend, and why it cannot compute on that device and dtype, or None."""
        missing = "it has no kernel for this op"
        reasons = {name: missing if name in WRITTEN_FOR else None for name in BACKENDS}
        return {**reasons, "cpu": unavailable(device, dtype)}

    def _whole(
        self, arguments: Sequence[Any], key: tuple[Any, ...] | None, backend: str | None
    ) -> Tensor:
        """A call with all checks, of any kind."""
        self._checked(arguments)
        if STOPPED.get():
            raise _ReachedError(self, arguments, backend)
        state: Tensor = arguments[self._state]
        name, _ = choose(self.name, _MODULES, backend, state.device, state.dtype)
        if key is not None and name == "cpu" and key not in self._plans and state.numel():
            y = self._output(arguments)
            values = self._values(arguments, y)
            if values is not None:
                tensors = arguments[: self._tensors]
                words = [name.replace("dt_bias", "bias") for name in self.names[: self._tensors]]
                record = self.kernel.pack(native.DTYPES[state.dtype], native.threads(), *values)
                self._plans.store(key, planned(self.kernel, record, words, tensors, y))
                result = self._plans[key](tensors)
                if result is not None:
                    increment_version(state)
                    return cast(Tensor, result)
        return self._by_definition(arguments)

    def _checked(self, arguments: Sequence[Any]) -> None:
        tensors = dict(zip(self.names, arguments[: self._tensors], strict=False))
        state = tensors["state"]
        check_numbers(self.name, {"state": state}, real=True, **tensors | {"state": None})
        self._check(*arguments)
        check_device(self.name, "state", state.device, **tensors)
        wanting = [n for n, x in tensors.items() if x is not None and x.requires_grad]
        if torch.is_grad_enabled() and wanting:
            raise ArgumentError(
                f"{self.name}: {wanting[0]} must need no gradient, which a step in place has not, "
                f"got requires_grad=True. Call it inside torch.no_grad()."
            )
        if not torch.compiler.is_compiling() and not without_overlap(state):
            raise ArgumentError(
                f"{self.name}: state must have separate memory for every number, "
                f"got strides {state.stride()}. Use state.clone()."
            )

    def _output(self, arguments: Sequence[Any]) -> Tensor:
        """Memory for the output, which is like the input that comes first beside the state."""
        return torch.empty_like(self._like(arguments), memory_format=torch.contiguous_format)

    def _like(self, arguments: Sequence[Any]) -> Tensor:
        like: Tensor = arguments[self.names.index("v" if "v" in self.names else "x")]
        return like

    def _values(self, arguments: Sequence[Any], y: Tensor) -> Sequence[Any] | None:
        """The values of the record; None where the definition computes."""
        state: Tensor = arguments[self._state]
        tensors = [x for x in arguments[: self._tensors] if x is not None]
        wide = torch.float64 in (x.dtype for x in tensors)
        if wide != (state.dtype == torch.float64) or any(x.is_neg() for x in tensors):
            return None
        return self._record(*arguments, y)

    def _by_definition(self, arguments: Sequence[Any]) -> Tensor:
        state: Tensor = arguments[self._state]
        with torch.no_grad(), without_autocast(state.device):
            y, after = self.definition(*arguments)
            state.copy_(after)
        return y.to(self._like(arguments).dtype).contiguous()

    def _run_operator(self, *inputs: Any) -> Tensor:
        *arguments, backend = inputs
        with torch.no_grad():
            return self(*arguments, backend=backend)

    def _fake(self, *inputs: Any) -> Tensor:
        like = self._like(inputs)
        return like.new_empty(like.shape)


def widened(*tensors: Tensor | None) -> Any:
    """Tensors in the dtype a step is computed in: float64 where one is, float32 where none is."""
    dtype = torch.float32
    for x in tensors:
        if x is not None:
            dtype = torch.promote_types(dtype, accumulator_dtype(x.dtype))
    return tuple(None if x is None else x.to(dtype) for x in tensors)
