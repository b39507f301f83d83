"""Layers whose channels are systems of one input and one output each: S4D, S4, DSS, DLR, GSS."""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers.modal import stand_in
from linrnn.nn.modal import Modes
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, complex_


class Systems(Mixer):
    """Such a mixer says its systems, by `system`, and what is around them, if anything is.

    ``form`` is "scan" (matrix products inside blocks of time, the state carried over the blocks)
    or "conv" (an FFT of twice the length; it cannot reset inside a sequence nor take times, and a
    huge step changes those before it by roundings of the largest output, one that is not finite
    makes them NaN). With times every step has its own system, and all states are held.
    """

    family: ClassVar[str] = "ssm"
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    ops: ClassVar[ModuleType] = siso
    """The functions that compute them: ``step``, ``scan``, ``convolve`` and ``varying``."""
    filters: bool = True
    """Whether they read the channels of the input, one each, and so are long filters of these."""

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
        u, side_input = self._project_in(x)
        with without_autocast(x.device):
            varying = dt is not None
            y, last = self.run(self.system(dt), u.to(h.real.dtype), h, reset, varying=varying)
        return self._project_out(y, side_input), last

    def run(
        self, system: Any, u: Tensor, h: Tensor, reset: Tensor | None, *, varying: bool
    ) -> tuple[Tensor, Tensor]:
        """Such a system over ``u`` (B, T, channels), in the form of this layer: ``(y, h)``.

        Args:
            system, u, h, reset: see `linrnn.ops.conv.siso`.
            varying: whether every step has its own system.
        """
        read: tuple[Tensor, Tensor]
        if varying:
            read = self.ops.varying(system, u, h, reset)
        elif self.form == "conv":
            read = self.ops.convolve(system, u, h)
        else:
            read = self.ops.scan(system, u, h, reset)
        return read

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        u, side_input = self._project_in(x_t)
        y, h = self.ops.step(self.system(dt), u.to(h.real.dtype), h)
        return self._project_out(y, side_input), h

    def _project_in(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the systems, and what `_project_out` needs beside their output."""
        return x, x

    def _project_out(self, y: Tensor, side_input: Tensor) -> Tensor:
        return y.to(side_input.dtype)

    @torch.no_grad()
    def impulse_responses(self, length: int) -> Tensor | None:
        """See `Mixer.impulse_responses`."""
        if not self.filters:
            return None
        system = self.system()
        u = system.d.new_zeros(1, length, self.d_model, dtype=torch.float64)
        u[:, 0] = 1
        h = u.new_zeros(1, self.d_model, self.modes, dtype=system[0].dtype)
        return self.run(system, u, h, None, varying=False)[0].transpose(1, 2)

    def distilled(self, modes: Iterable[Modes]) -> Mixer:
        """See `Mixer.distilled`."""
        return stand_in(self, *modes) if self.filters else super().distilled(modes)


def double(re: Tensor, im: Tensor | None = None) -> Tensor:
    """A parameter, or its two parts, in double precision."""
    return re.double() if im is None else torch.complex(re.double(), im.double())


def number(re: Tensor, im: Tensor | None = None) -> Tensor:
    """The same in a parameter's own precision, which is single precision at least."""
    return wide(re) if im is None else torch.complex(wide(re), wide(im))


def copy(value: Tensor, re: Tensor | None, im: Tensor | None = None) -> None:
    """Store a number in the parameters of its parts, those that there are."""
    if re is not None:
        re.copy_(value.real)
    if im is not None:
        im.copy_(value.imag)
