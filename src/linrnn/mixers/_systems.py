"""Layers whose channels are systems of one input and one output each: S4D, S4, DSS, DLR, GSS."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.mixers._base import FFT_REACHES_BACK, Mixer
from linrnn.ops import siso
from linrnn.ops._precision import without_autocast
from linrnn.state_spec import Part, complex_


class Systems(Mixer):
    """Such a mixer says its systems, by `system`, and what is around them, if anything is.

    ``form`` is "scan" (matrix products inside blocks of time, the state carried over the blocks)
    or "conv" (an FFT of twice the length; it cannot reset inside a sequence nor take times, and a
    huge step changes those before it by roundings of the largest output, one that is not finite
    makes them NaN). With times every step has a system of its own, and all states are held.
    """

    family: ClassVar[str] = "ssm"
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    ops: ClassVar[ModuleType] = siso
    """What computes them: ``step``, ``scan``, ``convolve`` and ``varying``."""

    form: str
    modes: int
    """Numbers of a channel's state."""

    def system(self, times: Tensor | None = None) -> Any:
        """The systems in double precision; of times (...) those of each."""
        raise NotImplementedError

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(d_model=self.d_model, modes=self.modes)

    def _read(
        self, x: Tensor, h: Tensor, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        (u, beside), ops = self._project_in(x), self.ops
        with without_autocast(x.device):
            u, system = u.to(h.real.dtype), self.system(dt)
            if dt is not None:
                y, last = ops.varying(system, u, h, reset)
            elif self.form == "conv":
                y, last = ops.convolve(system, u, h)
            else:
                y, last = ops.scan(system, u, h, reset)
        return self._project_out(y, beside), last

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        u, beside = self._project_in(x_t)
        y, h = self.ops.step(self.system(dt), u.to(h.real.dtype), h)
        return self._project_out(y, beside), h

    def _project_in(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the systems read, and what `_project_out` needs beside what they write."""
        return x, x

    def _project_out(self, y: Tensor, beside: Tensor) -> Tensor:
        return y.to(beside.dtype)


def double(re: Tensor, im: Tensor | None = None) -> Tensor:
    """A parameter, or its two parts, in double precision."""
    return re.double() if im is None else torch.complex(re.double(), im.double())


def copy(value: Tensor, re: Tensor | None, im: Tensor | None = None) -> None:
    """Store a number in the parameters of its parts, those that there are."""
    if re is not None:
        re.copy_(value.real)
    if im is not None:
        im.copy_(value.imag)
