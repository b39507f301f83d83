"""Liquid-S4, a state-space layer whose transition is moved by its input."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers.s4d import S4D
from linrnn.ops.conv import siso
from linrnn.ops.conv.past import last_inputs, recall
from linrnn.state_spec import Part, real

_KERNELS = ("pb", "kb", "exact")


class LiquidS4(Mixer):
    r"""Liquid-S4: diagonal state-space models that also read products of consecutive inputs.

    Equation:
        "exact"  h_t = (a + b x_t) * h_{t-1} + b x_t
        "kb"     h_t = a * h_{t-1} + b x_t + sum_{p=2}^{degree} b^p (x_t x_{t-1} ... x_{t-p+1})
        "pb"     h_t = a * h_{t-1} + b x_t
        y_t = 2 Re(sum_n C_n h_{t,n}) + D x_t         each channel x_t alone, all powers by modes
        "pb" adds   2 Re(sum_{p=2}^{degree} sum_n C_n b_n^p) (x_t x_{t-1} ... x_{t-p+1})
        a = (1 + dt A/2) / (1 - dt A/2), b = dt B / (1 - dt A/2), or by zero-order hold
        Written as sums over products of inputs, "exact" has one for every choice of earlier
        steps; "kb" keeps those of consecutive ones, "pb" has a = 1 in these. A product of inputs
        from before a reset is zero.
        Initially as S4D with init="legs" and a separate B.
        Parameters: those of S4D, in ``linear``

    Args:
        d_state: size of a channel's real system; half of each conjugate pair is kept.
        kernel: "pb", "kb" or "exact". The last is stable only while ``|a + b x_t|`` is below 1
            most of the time, so not for large inputs.
        degree: inputs in the longest product, 1 or more; 1 is S4D. Not for "exact".
        discretisation, dt_min, dt_max: see S4D.
        form: how the linear system computes a sequence: see S4D; "scan" alone for "exact", which
            holds all states.

    Departures from the paper:
        A is diagonal, the normal part of the paper's diagonal plus low rank: the products of B and
        h are elementwise in the basis where it is, so that a low rank part has no part in them.
        The public code takes its products from the end of the sequence and reverses them in time,
        which is not causal, and raises the sum of B to powers, not B.

    Example:
        >>> y, state = LiquidS4(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["h"].shape, state["past"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 4]), torch.Size([2, 1, 4]))

    Reference:
        Hasani et al., "Liquid Structural State-Space Models", ICLR 2023, arXiv:2209.12951.
        Key: hasani2022liquid.
    """

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="complex diagonal", gate="learned", memory="systems")
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        kernel: Literal["pb", "kb", "exact"] = "pb",
        degree: int = 2,
        discretisation: Literal["zoh", "bilinear"] = "bilinear",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.kernel, self.degree = d_model, d_state, kernel, degree
        self.discretisation, self.form = discretisation, form
        self.dt_min, self.dt_max = dt_min, dt_max
        check_positive_int("LiquidS4", degree=degree)
        check_in("LiquidS4", "kernel", kernel, _KERNELS)
        check_in("LiquidS4", "form", form, self.forms)
        if kernel == "exact" and form != "scan":
            raise ArgumentError(
                f"LiquidS4: form must be 'scan' for kernel='exact', got {form!r}. Its steps "
                "differ, and are no convolution."
            )
        self.linear = S4D(
            d_model,
            d_state=d_state,
            init="legs",
            discretisation=discretisation,
            dt_min=dt_min,
            dt_max=dt_max,
            separate_B=True,
            form=form,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.linear.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the systems, and the last inputs where products want them."""
        past = 0 if self.kernel == "exact" else self.degree - 1
        spec = {"h": self.linear.state_spec()}
        return {**spec, "past": real(steps=past, d_model=self.d_model)} if past else spec

    def _read(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = state["h"]
        with without_autocast(x.device):
            u, system = x.to(h.real.dtype), self.linear.system(dt)
            run = partial(self.linear.run, reset=reset, varying=dt is not None)
            if self.kernel == "exact":
                moved = system._replace(a=system.a + system.b * u[..., None])
                y, last = siso.varying(moved, u, h, reset)
                return y, {"h": last}
            y, last = run(system, u, h)
            if "past" not in state:
                return y, {"h": last}
            product, power = u, system.b
            for lag in range(1, self.degree):
                product = product * recall(u, state["past"], lag, reset)
                power = power * system.b
                if self.kernel == "pb":
                    y = y + (system.c * power).real.sum(-1).to(u.dtype) * product
                else:
                    powered = system._replace(b=power, d=torch.zeros_like(system.d))
                    more = run(powered, product, torch.zeros_like(h))
                    y, last = y + more[0], last + more[1]
        return y, {"h": last, "past": last_inputs(u, state["past"], reset)}

    def _step(
        self, x_t: Tensor, state: dict[str, Tensor], dt: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = state["h"]
        u, system = x_t.to(h.real.dtype), self.linear.system(dt)
        if self.kernel == "exact":
            system = system._replace(a=system.a + system.b * u[..., None])
        y, h = siso.step(system, u, h)
        if "past" not in state:
            return y, {"h": h}
        past, product, power = state["past"], u, system.b
        for lag in range(1, self.degree):
            product, power = product * past[:, -lag], power * system.b
            added = power.to(h.dtype) * product[..., None]
            y = y + (system.c.to(h.dtype) * added).real.sum(-1)
            h = h + added if self.kernel == "kb" else h
        # past: (B, lag, d_model)
        return y, {"h": h, "past": torch.cat([past[:, 1:], u[:, None]], 1)}
