"""LSSL, the linear state-space layer: a dense system for every channel."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.composed import composed
from linrnn.compute.layout import stacked
from linrnn.compute.modes import may_look
from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.discretise import dense
from linrnn.nn.hippo import POLYNOMIALS, check_dt, draw_log_dt, hippo
from linrnn.nn.legs import legs_bilinear
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops.conv import dense_ssm
from linrnn.state_spec import Part, real


def structured(measure: str, size: int) -> dict[str, Tensor]:
    """`hippo`'s A as ``-diag(left) (diag(middle) + T^-1) diag(right)``, T tridiagonal; float64.

    Example:
        >>> structured("legs", 3)["middle"][1:]
        tensor([-0.3333, -0.4000], dtype=torch.float64)
    """
    n, one = torch.arange(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    root = one if measure == "lagt" else (2 * n + 1).sqrt()
    parts = {"left": root, "right": root, "middle": 0 * one, "diagonal": one}
    parts |= {"below": -one[1:], "above": 0 * one[1:]}
    if measure == "legs":
        parts["middle"] = -n / (2 * n + 1)
    elif measure == "legt":
        ends = (n == 0).double() + (n == size - 1).double()
        parts |= {"diagonal": ends / 2, "below": -one[1:] / 2, "above": one[1:] / 2}
    return parts


def _moved(h: Tensor, u: Tensor, lengths: Tensor, system: list[Tensor], alpha: float) -> Tensor:
    """States (batch, d_model, d_state) after one step; of no ``system`` that of "legs"."""
    if not system:
        return legs_bilinear(h, u, lengths.to(h.dtype))
    A, B = system
    a, b = (x.to(h.dtype) for x in dense(A, B, lengths, alpha))
    return (a @ h.unsqueeze(-1)).squeeze(-1) + b * u.unsqueeze(-1)


def _shapes(
    u: Tensor,
    h: Tensor,
    lengths: Tensor,
    system: list[Tensor],
    reset: Tensor | None,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    return h.new_empty(u.shape[0], u.shape[1], *h.shape[1:]), h.new_empty(h.shape)


@composed(
    "timed_lssl",
    "Tensor u, Tensor h, Tensor lengths, Tensor[] system, Tensor? reset, float alpha",
    _shapes,
)
def timed_lssl(
    u: Tensor,
    h: Tensor,
    lengths: Tensor,
    system: list[Tensor],
    reset: Tensor | None,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    """All states (batch, time, d_model, d_state), and the last; each step has its own length."""
    states = []
    for t, (u_t, length) in enumerate(zip(u.unbind(1), lengths.unbind(1), strict=True)):
        if reset is not None:
            h = torch.where(reset[:, t, None, None], 0, h)
        h = _moved(h, u_t, length, system, alpha)
        states.append(h)
    return stacked(states, h), h


class LSSL(Mixer):
    r"""Linear state-space layer: a dense system per channel, initialised as a HiPPO memory.

    Equation:
        h_t = a h_{t-1} + b x_t                      h in R^{d_model x d_state}, each channel alone
        s_t = C h_t + D x_t                          s in R^{d_model x n_outputs}
        y_t = W gelu(s_t) + b_W                      W maps d_model * n_outputs to d_model
        a = (I - alpha dt A)^-1 (I + (1 - alpha) dt A),  b = (I - alpha dt A)^-1 dt B
        dt = exp(log_dt), one a channel; A and B are those of HiPPO, A fixed or learned, one for all
        channels, as -diag(left) (diag(middle) + T^-1) diag(right) with a tridiagonal T.
        Initially C and D are N(0, 1), and dt is uniform in the logarithm.

    Args:
        d_state: size N of a channel's system. Default: d_model.
        n_outputs: M, how many outputs each system has.
        measure: "legs", "legt" (a window of 1/dt steps) or "lagt".
        learn_A: learn A, not dt, C and D alone.
        alpha: of the generalised bilinear rule: 1/2 is the bilinear one, 1 backward Euler. Below
            1/2 short steps alone are stable.
        dt_min, dt_max: bounds of the initial dt, in input steps.
        form: how a sequence is computed, with the same numbers: "scan" (a tree of products with
            powers of a; all states are held at once) or "conv" (Krylov matrices by squaring and an
            FFT of twice the length; it cannot reset inside a sequence, and a huge step changes
            those before it by roundings of the largest output, one that is not finite makes them
            NaN).

    Departures from the paper:
        Products with inverses are solved as dense systems, in double precision. The time between
        steps, where it is given, multiplies dt; a sequence is then read step after step, in the
        form "scan".

    Example:
        >>> y, state = LSSL(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 8]))

    Reference:
        Gu et al., "Combining Recurrent, Convolutional, and Continuous-time Models with Linear
        State-Space Layers", NeurIPS 2021, arXiv:2110.13985. Key: gu2021combining.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)
    single_precision: ClassVar[tuple[str, ...]] = (
        "log_dt",
        "A_left",
        "A_right",
        "A_middle",
        "A_diagonal",
        "A_below",
        "A_above",
    )

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="dense", gate="learned", memory="systems")
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        "log_dt",
        *(f"A_{name}" for name in ("left", "right", "middle", "diagonal", "below", "above")),
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        n_outputs: int = 1,
        measure: Literal["legs", "legt", "lagt"] = "legs",
        learn_A: bool = False,
        alpha: float = 0.5,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.n_outputs = n_outputs
        self.measure, self.learn_A, self.alpha = measure, learn_A, alpha
        self.dt_min, self.dt_max, self.form = dt_min, dt_max, form
        check_positive_int("LSSL", d_state=self.d_state, n_outputs=n_outputs)
        check_in("LSSL", "measure", measure, POLYNOMIALS)
        check_in("LSSL", "form", form, self.forms)
        check_dt("LSSL", dt_min, dt_max)
        if not 0 <= alpha <= 1:
            raise ArgumentError(f"LSSL: alpha must lie between 0 and 1, got {alpha}. Use 0.5.")
        empty, (H, M, N) = empty_parameters(device, dtype), (d_model, n_outputs, self.d_state)
        self.log_dt, self.C, self.D = empty(H), empty(H, M, N), empty(H, M)
        if learn_A:
            for name, x in structured(measure, N).items():
                setattr(self, f"A_{name}", empty(len(x)))
        self.out = Linear(H * M, H, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.log_dt.copy_(draw_log_dt(self.d_model, self.dt_min, self.dt_max))
        nn.init.normal_(self.C)
        nn.init.normal_(self.D)
        if self.learn_A:
            for name, x in structured(self.measure, self.d_state).items():
                getattr(self, f"A_{name}").copy_(x)
        self.out.reset_parameters()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_model=self.d_model, d_state=self.d_state)

    def continuous(self) -> tuple[Tensor, Tensor]:
        """A (d_state, d_state) and B (d_state,), float64.

        Raises:
            ArgumentError: A is learned, and its matrix T has become singular.
        """
        A, B = (x.to(self.log_dt.device) for x in hippo(self.measure, self.d_state))
        if not self.learn_A:
            return A, B
        p = {name: getattr(self, f"A_{name}").double() for name in structured("legs", 1)}
        T = torch.diag(p["diagonal"])
        T = T + torch.diag(p["below"], -1) + torch.diag(p["above"], 1)
        inverse, error = torch.linalg.inv_ex(T)
        if may_look(T) and bool(error):
            raise ArgumentError(
                "LSSL: the tridiagonal matrix of A must have an inverse, got one that is singular. "
                "Lower the learning rate of A_diagonal, A_below and A_above."
            )
        inner = torch.diag(p["middle"]) + inverse
        return -p["left"][:, None] * inner * p["right"], B

    def system(self) -> dense_ssm.DenseSystem:
        """The systems of all channels, in steps."""
        dt = bounded_exp(self.log_dt.double())
        if self._is_plain():
            eye = torch.eye(self.d_state, dtype=dt.dtype, device=dt.device)
            a = legs_bilinear(
                eye.expand(len(dt), -1, -1), torch.zeros_like(dt)[:, None], dt[:, None]
            ).mT
            b = legs_bilinear(torch.zeros_like(eye[:1]), torch.ones_like(dt), dt)
        else:
            a, b = dense(*self.continuous(), dt, self.alpha)
        return dense_ssm.DenseSystem(a, b, self.C, self.D)

    def _is_plain(self) -> bool:
        """Whether steps need no dense solves."""
        return self.measure == "legs" and self.alpha == 0.5 and not self.learn_A

    def _read(
        self, x: Tensor, h: Tensor, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(x.device):
            u = x.to(h.dtype)
            if dt is not None:
                states, last = timed_lssl(u, h, *self._lengths(dt), reset, self.alpha)
                s = dense_ssm.read_out(self.C, self.D, u, states)
            elif self.form == "conv":
                s, last = dense_ssm.convolve(self.system(), u, h)
            else:
                s, last = dense_ssm.scan(self.system(), u, h, reset)
        return self._mixed(s), last

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        with without_autocast(x_t.device):
            u = x_t.to(h.dtype)
            if dt is not None:
                h = _moved(h, u, *self._lengths(dt), self.alpha)
                s = dense_ssm.read_out(self.C, self.D, u, h)
            elif self._is_plain():
                h = legs_bilinear(h, u, bounded_exp(self.log_dt.to(h.dtype)))
                s = dense_ssm.read_out(self.C, self.D, u, h)
            else:
                s, h = dense_ssm.step(self.system(), u, h)
        return self._mixed(s), h

    def _lengths(self, dt: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Step lengths of every channel (..., d_model) for times (...), and A, B unless plain."""
        lengths = dt.double().unsqueeze(-1) * bounded_exp(self.log_dt.double())
        return lengths, [] if self._is_plain() else [*self.continuous()]

    def _mixed(self, s: Tensor) -> Tensor:
        y: Tensor = self.out(F.gelu(s.flatten(-2)).to(self.out.weight.dtype))
        return y
