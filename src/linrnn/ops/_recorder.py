"""Writes down the operators of a step while they run: see `linrnn.ops._recorded_step`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from linrnn.ops._layout import aligned
from linrnn.ops._op import ALL
from linrnn.ops._recorded_ops import is_constant
from linrnn.ops._recorded_sums import RULES
from linrnn.ops._recorded_tape import RefusedError, Slot, Tape

#: What numbers are stored as.
STORED = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.int64: torch.int64,
    torch.bfloat16: torch.bfloat16,
}


class Recorder(TorchDispatchMode):
    """Runs operators, and writes down what they do.

    Args:
        tape: the instructions; what is given to the step is known to it.
        module: whose parameters and buffers may be read.
    """

    def __init__(self, tape: Tape, module: nn.Module) -> None:
        super().__init__()
        self.tape = tape
        self.reason: str | None = None
        """What kept the step from being recorded."""
        self.weights: list[tuple[Mapping[str, Any], str]] = []
        self._owners: dict[int, tuple[Mapping[str, Any], str]] = {}
        for part in module.modules():
            for owner in (part._parameters, part._buffers, vars(part)):
                found = {id(x): (owner, k) for k, x in owner.items() if isinstance(x, Tensor)}
                self._owners = found | self._owners

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep a compiler out of here PyTorch would import it, which takes a second."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, function._schema.name.partition("::")[2]
        if function.namespace == "linrnn" and name in ALL:
            with self:
                return ALL[name].decomposition(*args)
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            function.name(), "CompositeImplicitAutograd"
        ):
            with self:
                return function.decompose(*args, **kwargs)
        if self.reason is None:
            self._meet((*args, *kwargs.values()))
        found = function(*args, **kwargs)
        if self.reason is None:
            try:
                self._write(function, name, args, kwargs, found)
            except RefusedError as error:
                self.reason = f"{name}: {error}"
        return found

    def _meet(self, args: Any) -> None:
        """Weights that are read for the first time."""
        for x in torch.utils._pytree.tree_leaves(args):
            if isinstance(x, Tensor) and self.tape.slot(x) is None and id(x) in self._owners:
                slot = Slot("weight", len(self.weights))
                self.weights.append(self._owners[id(x)])
                if not _readable(x):
                    self.reason = "a weight is of another dtype or device, or not in plain memory"
                self.tape.know(x, slot, x.dtype.to_real() if x.is_complex() else x.dtype)

    def _write(self, function: Any, name: str, args: Any, kwargs: Any, found: Any) -> None:
        tape = self.tape
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        if torch.Tag.nondeterministic_seeded in function.tags and name not in RULES:
            raise RefusedError("it draws random numbers")
        if torch.Tag.data_dependent_output in function.tags or not isinstance(results[0], Tensor):
            raise RefusedError("it looks at numbers")
        returns = function._schema.returns[0].alias_info
        written = returns is not None and returns.is_write
        if not written and all(tape.slot(x) is not None for x in results):
            if name.startswith("view") and name not in ("view", "view_as_real", "view_as_complex"):
                raise RefusedError("it has no instructions")
            return  # a view
        if not written and is_constant(name, (args, list(kwargs.values())), tape):
            for x in results:
                tape.hold(x)
            return
        if name == "detach" or name == "alias":
            raise RefusedError("it reads a tensor that is no parameter or buffer")
        write = RULES.get(name.removesuffix("_"))
        if write is None:
            raise RefusedError("it has no instructions")
        if name.removesuffix("_") in _COPIES and _narrows(args, results[0]):
            raise RefusedError("it makes other numbers of them")
        to = tape.result(args[0] if written else results[0])
        kwargs = {k: x for k, x in kwargs.items() if k not in _OF_COPIES or name not in _COPIES}
        write(tape, to, *args, **kwargs)


def _narrows(args: Sequence[Any], found: Tensor) -> bool:
    """Whether a copy rounds to whole numbers or truth values."""
    kinds = [x.dtype for x in args if isinstance(x, Tensor)]
    whole = not (found.dtype.is_floating_point or found.dtype.is_complex)
    return whole and any(kind is not found.dtype and kind is not torch.bool for kind in kinds)


_COPIES = ("_to_copy", "clone", "copy")
_OF_COPIES = ("dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format")


def _readable(x: Tensor) -> bool:
    """Whether the kernel can read a weight where it is."""
    plain = type(x) in (Tensor, nn.Parameter, nn.Buffer) and x.is_cpu and x.is_contiguous()
    return plain and x.dtype in STORED and aligned(x)
