"""Liquid time-constant network."""

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell, fold, spread
from linrnn.errors import check_few, check_in, check_positive
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import MOST_WRITTEN_OUT, CellRNN, Family, Timed, timed
from linrnn.nn.parameters import empty_parameters

_RANGES = {
    "gleak": (0.001, 1.0),
    "vleak": (-0.2, 0.2),
    "cm": (0.4, 0.6),
    **{f"{who}w": (0.001, 1.0) for who in ("", "sensory_")},
    **{f"{who}sigma": (3.0, 8.0) for who in ("", "sensory_")},
    **{f"{who}mu": (0.3, 0.8) for who in ("", "sensory_")},
}
_POSITIVE = ("w", "sensory_w", "cm", "gleak")
_CONSTANTS = "gleak leak cm output_w output_b "
_CONSTANTS += "sigma shift w drive sensory_sigma sensory_shift sensory_w sensory_drive"


def _cells(inputs: int, units: int, unfolds: int, epsilon: float) -> Timed:
    """The step, in which a vector of synapses has one number for each pair (from, to)."""

    def synapses(x: Any, count: int, sigma: Any, shift: Any, w: Any, drive: Any) -> tuple[Any, Any]:
        """Conductances and what they drive, of each unit, from ``count`` channels."""
        s = torch.sigmoid(sigma * spread(x, units, each=True) + shift)
        return fold(w * s, count), fold(drive * s, count)

    def step(
        v: Any, u: Any, dt: Any, gleak: Any, leak: Any, cm: Any, output_w: Any, output_b: Any,
        sigma: Any, shift: Any, w: Any, drive: Any,
        sensory_sigma: Any, sensory_shift: Any, sensory_w: Any, sensory_drive: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        delta = dt * (1 / unfolds)
        sensory = sensory_sigma, sensory_shift, sensory_w, sensory_drive
        hold_in, pull_in = synapses(u, inputs, *sensory)
        hold_in, pull_in = gleak + hold_in + epsilon, leak + pull_in
        for _ in range(unfolds):
            hold, pull = synapses(v, units, sigma, shift, w, drive)
            above = cm * v + delta * (pull_in + pull)
            v = above / (cm + delta * (hold_in + hold))
        return output_w * v + output_b, v

    return timed(ltc=Cell(step, state="v", constant=_CONSTANTS, name="ltc"))["ltc"]


class LTC(CellRNN):
    r"""Liquid time-constant network (LTC): an ODE with input-dependent time constants.

    Equation:
        cm v' = gleak (vleak - v) + sum_i w_i s(v_i) (erev_i - v) + sum_k w_k s(u_k) (erev_k - v)
        s(z) = sigmoid(sigma (z - mu)), of each synapse; u = input_w * x_t + input_b
        by ``unfolds`` steps of the fused solver, delta = dt_t / unfolds:
        v <- (cm v + delta (gleak vleak + sum w s erev)) / (cm + delta (gleak + sum w s + epsilon))
        y_t = output_w * v + output_b                  v in R^{d_state}
        dt is the time since the step before, 1 by default. v is a mean, with positive weights, of
        itself, vleak and the erev, and so never leaves the range of these: no step is too long.
        Initially gleak, vleak, cm, w, sigma and mu are uniform on [0.001, 1], [-0.2, 0.2],
        [0.4, 0.6], [0.001, 1], [3, 8] and [0.3, 0.8], erev is 1 or, for a third, -1; the maps are
        the identity. Parameters of synapses are (from, to), and those of inputs begin with
        sensory_.

    Args:
        d_state: units, all of them connected. Default: d_model.
        unfolds: steps of the solver for each of the input.
        positive: how w, cm and gleak stay positive: "clip", at 0 after each step of the optimiser,
            or "softplus" of what is learned.
        epsilon: in the denominator, at least 0; positive.

    Departures from the paper:
        This is the synaptic form of the public code, whose names the parameters have; the paper
        has f(v, u) instead of the sums. No sparse wiring.

    Example:
        >>> layer, dt = LTC(d_model=4), torch.rand(2, 100)
        >>> y, state = layer(torch.randn(2, 100, 4), dt=dt)
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Hasani et al., "Liquid Time-constant Networks", AAAI 2021, arXiv:2006.04439.
        Key: hasani2021liquid.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("w", "sensory_w")

    family: ClassVar[str] = "continuous"
    in_laws: ClassVar[Mapping[str, Any]] = {"unfolds": 2}
    choices = Choices(
        transition="flow", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        unfolds: int = 6,
        positive: Literal["clip", "softplus"] = "clip",
        epsilon: float = 1e-8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_few("LTC", MOST_WRITTEN_OUT, unfolds=unfolds)
        check_positive("LTC", epsilon=epsilon)
        check_in("LTC", "positive", positive, ("clip", "softplus"))
        self.unfolds, self.positive, self.epsilon = unfolds, positive, epsilon
        N, D = self._set_sizes(d_model, d_state, {"device": device, "dtype": dtype}), d_model
        empty = empty_parameters(device, dtype)
        self.gleak, self.vleak, self.cm = empty(N), empty(N), empty(N)
        self.w, self.sigma, self.mu, self.erev = (empty(N, N) for _ in range(4))
        self.sensory_w, self.sensory_sigma = empty(D, N), empty(D, N)
        self.sensory_mu, self.sensory_erev = empty(D, N), empty(D, N)
        self.input_w, self.input_b = empty(D), empty(D)
        self.output_w, self.output_b = empty(N), empty(N)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        for name, (low, high) in _RANGES.items():
            nn.init.uniform_(self.get_parameter(name), low, high)
        for erev in (self.erev, self.sensory_erev):
            erev.copy_(torch.where(torch.rand(erev.shape) < 1 / 3, -1.0, 1.0))
        for ones in (self.input_w, self.output_w):
            nn.init.ones_(ones)
        for zeros in (self.input_b, self.output_b):
            nn.init.zeros_(zeros)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """See `Mixer.bounds`: what must be positive is at least 0, unless it is so by softplus."""
        return dict.fromkeys(_POSITIVE, (0.0, inf)) if self.positive == "clip" else {}

    def _key(self) -> tuple[Any, ...]:
        return self.d_model, self.d_state, self.unfolds, self.epsilon

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        gleak, cm = self._size("gleak"), self._size("cm")
        inputs = {"u": self.input_w * x + self.input_b, "gleak": gleak, "cm": cm}
        inputs |= {"leak": gleak * self.vleak, "output_w": self.output_w, "output_b": self.output_b}
        for who in ("", "sensory_"):
            sigma, mu, erev = (getattr(self, who + n) for n in ("sigma", "mu", "erev"))
            w = self._size(who + "w")
            synapses = {"sigma": sigma, "shift": -(sigma * mu), "w": w, "drive": w * erev}
            inputs |= {who + name: x.flatten() for name, x in synapses.items()}
        return inputs

    def _size(self, name: str) -> Tensor:
        """A parameter that is positive."""
        value: Tensor = getattr(self, name)
        return value if self.positive == "clip" else F.softplus(value)
