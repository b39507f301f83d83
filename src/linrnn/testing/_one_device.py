"""Whether tensors of two devices meet, found on a machine that has one: by the meta device."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linrnn.testing._tolerance import BrokenPropertyError

_MOVES = ("aten.copy_", "aten._to_copy")


class one_device(TorchDispatchMode):  # noqa: N801  # used as a function is
    """Inside it an operator with tensors of two devices, but for a copy, breaks a law.

    The meta device itself lets tensors of a CPU pass, where a GPU would raise an error. For these a
    tensor without axes is a number, which goes with any device.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator if its tensors are on one device."""
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        devices = {x.device.type for x in tensors if x.ndim or x.device.type != "cpu"}
        if len(devices) > 1 and not str(function).startswith(_MOVES):
            raise BrokenPropertyError(
                f"{function} is given tensors of {' and '.join(sorted(devices))}"
            )
        return function(*args, **(kwargs or {}))
