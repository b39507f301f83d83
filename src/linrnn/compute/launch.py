"""Launch compiled Triton kernels with little Python between the call and the driver."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: In bytes. For tensors that begin elsewhere Triton compiles a kernel a second time.
ALIGNMENT = 16


class Launch:
    """A kernel with all of its arguments but the tensors: what a plan for one layout keeps.

    Triton's own launch looks at every argument, to find what was compiled for its like. Here the
    plan stands for all that could differ, except for how tensors are aligned and which are None. So
    the first launch takes Triton's way, and those after it call what it compiled.

    Args:
        kernel: of Triton.
        programs: how many run.
        fixed: its arguments by name, but for the tensors; others are left out.
        options: what it is compiled for, beside those; ``num_warps`` and the like.
    """

    __slots__ = ("_arguments", "_direct", "_kernel", "_open", "_options", "_programs", "tensors")

    def __init__(
        self, kernel: Any, programs: int, fixed: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        names, values = kernel.arg_names, {**fixed, **options}
        self._kernel, self._programs = kernel, programs
        self._options = {n: x for n, x in options.items() if n not in names}
        self._arguments = [values.get(n) for n in names]
        self._open = [i for i, n in enumerate(names) if n not in values]
        #: Names of the arguments that a call passes, in their order.
        self.tensors = [names[i] for i in self._open]
        self._direct: dict[int, Any] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch it on tensors of the plan's layout and dtypes, on the current device."""
        arguments, addresses, absent = self._arguments.copy(), 0, 0
        for i, x in zip(self._open, tensors, strict=True):
            if x is None:
                absent |= 1 << i
            else:
                arguments[i] = x
                addresses |= x.data_ptr()
        aligned = addresses % ALIGNMENT == 0
        if aligned and (direct := self._direct.get(absent)) is not None:
            direct(*arguments)
            return
        grid = (self._programs, 1, 1)
        for i in self._open:
            arguments[i] = _real(arguments[i])
        compiled = self._kernel[grid](*arguments, **self._options)
        if aligned and compiled is not None:  # as it is in Triton's interpreter
            self._direct[absent] = compiled[grid]


_MOST = 1024
_launches: dict[tuple[Any, ...], Launch] = {}


def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch a kernel on the current device, where no plan keeps its `Launch`.

    Args:
        kernel: of Triton.
        programs: how many run.
        arguments: all but those that it is compiled for, in its order.
        options: those, and ``num_warps`` and the like.
    """
    kinds = (x.dtype if isinstance(x, Tensor) else x for x in arguments)
    device = next((x.device for x in arguments if isinstance(x, Tensor)), None)
    key = (kernel, programs, device, *kinds, *options.values())
    plan = _launches.get(key)
    if plan is None:
        if len(_launches) >= _MOST:
            _launches.clear()
        values = zip(kernel.arg_names, arguments, strict=False)
        fixed = {n: x for n, x in values if not isinstance(x, Tensor)}
        plan = _launches[key] = Launch(kernel, programs, fixed, options)
    plan(*(x for x in arguments if isinstance(x, Tensor)))


def layout(x: Tensor | None) -> tuple[Any, ...] | None:
    """All of a tensor that a plan depends on."""
    return None if x is None else (x.shape, x.stride(), x.dtype)


def _real(x: Tensor | None) -> Tensor | None:
    """Triton knows no complex numbers; they lie in memory as pairs of real ones."""
    return torch.view_as_real(x) if x is not None and x.is_complex() else x
