"""Legendre memory unit: a nonlinear cell around a linear memory of a window of time."""

from math import sqrt
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import block_linear, cell
from linrnn.compute.composed import composed
from linrnn.compute.layout import stacked
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import empty_parameters
from linrnn.nn.hippo import hippo
from linrnn.nn.linear import Linear
from linrnn.nn.lti import LTISteps, each_step, pushed, rows_of
from linrnn.ops import cell_scan
from linrnn.ops.half_linear import half_linear
from linrnn.ops.linear.matrix_scan import dense_scan
from linrnn.state_spec import Part, real


@cell(state="h m", matrix="e_h e_m A into W_h W_m")
def lmu(
    h: Any, m: Any, w: Any, u: Any, e_h: Any, e_m: Any, A: Any, into: Any, W_h: Any, W_m: Any
) -> tuple[Any, Any]:
    """One step; ``A`` has a block for each row of the memory."""
    w = w + F.linear(h, e_h) + F.linear(m, e_m)
    m = block_linear(m, A) + F.linear(w, into)
    h = torch.tanh(u + F.linear(h, W_h) + F.linear(m, W_m))
    return h, (h, m)


def _shapes(
    w: Tensor,
    u: Tensor,
    h: Tensor,
    m: Tensor,
    system: list[Tensor],
    weights: list[Tensor],
    reset: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return u.new_empty(u.shape), h.new_empty(h.shape), m.new_empty(m.shape)


@composed(
    "timed_lmu",
    "Tensor w, Tensor u, Tensor h, Tensor m, Tensor[] system, Tensor[] weights, Tensor? reset, "
    "str rule",
    _shapes,
)
def timed_lmu(
    w: Tensor,
    u: Tensor,
    h: Tensor,
    m: Tensor,
    system: list[Tensor],
    weights: list[Tensor],
    reset: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence with a matrix for each step, as `each_step` makes them of ``system``.

    ``weights`` are W_m, and where h and m act on the next step W_h, e_h and e_m.
    """
    W_m, *back = weights
    states = []
    A, B, lengths = system
    for t, (a, b) in enumerate(each_step(A, B, lengths, rule)):
        if reset is not None:
            now = reset[:, t, None]
            h, m = torch.where(now, 0, h), torch.where(now[..., None], 0, m)
        w_t, u_t = w[:, t], u[:, t]
        if back:
            W_h, e_h, e_m = back
            w_t = w_t + F.linear(h, e_h) + F.linear(m.flatten(1), e_m)
            u_t = u_t + F.linear(h, W_h)
        m = pushed(m, w_t, a, b)
        h = torch.tanh(u_t + F.linear(m.flatten(1), W_m))
        states.append(h)
    return stacked(states, h), h, m


def lmu_system(order: int) -> tuple[Tensor, Tensor]:
    """The matrices of a window of length 1: HiPPO's "legt", coefficient n (-1)^n sqrt(2n+1) fold.

    Example:
        >>> lmu_system(2)[1].round(decimals=6)
        tensor([ 1., -3.], dtype=torch.float64)
    """
    A, B = hippo("legt", order)
    n = torch.arange(order, dtype=torch.float64)
    scale = (-1.0) ** n * (2 * n + 1).sqrt()
    return scale[:, None] * A / scale, scale * B


class LMU(Mixer):
    r"""Legendre memory unit: an RNN with Legendre coefficients of a window of theta steps.

    Equation:
        w_t = E_x x_t + E_h h_{t-1} + E_m m_{t-1}           in R^{d_memory}
        m_t = a m_{t-1} + b w_t, for each entry of w_t      in R^{d_memory x order}
        h_t = tanh(W_x x_t + W_h h_{t-1} + W_m m_t)         h in R^{d_state}
        a and b are steps of theta m' = A m + B w, the best rational approximation of a delay:
        w_{t - r theta} is about sum_i P_i(2r - 1) m_{t,i}, 0 <= r <= 1.
        Read out is h_t, mapped by a linear layer where d_state is not d_model. Initially E_x and
        E_h are uniform with variance 1 / fan_in, E_m = 0, and W are Glorot-normal. Where it is not
        recurrent, E_h, E_m and W_h are left out: the memory is a linear scan, and all steps are
        read at once.

    Args:
        d_state: channels of h. Default: d_model.
        d_memory: how many numbers of a step are remembered.
        order: coefficients of each.
        theta: the window, in steps; above 0.
        recurrent: whether h and m act on what is remembered and on the next h.
        learn_theta: learn the window, of which log_dt is the logarithm of 1/theta.
        discretisation: "zoh", or "euler", which needs theta > 4 order to be stable.

    Departures from the paper:
        None. The time between steps, where it is given, multiplies 1/theta; a sequence is then read
        step after step, each with its own matrices.

    Example:
        >>> y, state = LMU(d_model=4, order=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["m"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 1, 8]))

    Reference:
        Voelker, Kajic and Eliasmith, "Legendre Memory Units: Continuous-Time Representation in
        Recurrent Neural Networks", NeurIPS 2019; not recurrent: Chilkuri and Eliasmith,
        "Parallelizing Legendre Memory Unit Training", ICML 2021, arXiv:2102.11417 (Key:
        chilkuri2021parallelizing). Key: voelker2019legendre.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("E_x", "W_x", "W_m", "E_h", "E_m", "W_h")

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="dense", gate="learned", memory="vector", steps="nonlinear")
    cost: Literal["parallel", "sequential", "quadratic"] = "sequential"  # type: ignore[misc]
    timed: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("memory.log_dt",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        d_memory: int = 1,
        order: int = 16,
        theta: float = 100.0,
        recurrent: bool = True,
        learn_theta: bool = False,
        discretisation: Literal["zoh", "euler"] = "zoh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.d_memory, self.order, self.theta = d_memory, order, theta
        self.recurrent, self.learn_theta = recurrent, learn_theta
        self.discretisation = discretisation
        check_positive_int("LMU", d_state=self.d_state, d_memory=d_memory, order=order)
        check_positive("LMU", theta=theta)
        check_in("LMU", "discretisation", discretisation, ("zoh", "euler"))
        if discretisation == "euler" and theta <= 4 * order:
            raise ArgumentError(
                f"LMU: theta must be more than 4 * order = {4 * order} for discretisation='euler', "
                f"which is unstable below, got {theta}. Use 'zoh'."
            )
        self.cost = "sequential" if recurrent else "parallel"
        N, M, Q = self.d_state, d_memory, d_memory * order
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        empty = empty_parameters(device, dtype)
        self.memory = LTISteps(
            lambda: lmu_system(order), 1 / theta, discretisation, learn=learn_theta, **to
        )
        self.E_x, self.W_x, self.W_m = empty(M, d_model), empty(N, d_model), empty(N, Q)
        self.E_h = empty(M, N) if recurrent else None
        self.E_m = empty(M, Q) if recurrent else None
        self.W_h = empty(N, N) if recurrent else None
        self.out_proj: nn.Module = nn.Identity()
        if d_model != N:
            self.out_proj = Linear(N, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.memory.reset_parameters()
        for E in (self.E_x, self.E_h):
            if E is not None:
                nn.init.uniform_(E, -sqrt(3 / E.shape[1]), sqrt(3 / E.shape[1]))
        if self.E_m is not None:
            nn.init.zeros_(self.E_m)
        for W in (self.W_x, self.W_h, self.W_m):
            if W is not None:
                nn.init.xavier_normal_(W)
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the memory, and h where it is recurrent."""
        memory = {"m": real(d_memory=self.d_memory, order=self.order)}
        return {"h": real(d_state=self.d_state), **memory} if self.recurrent else memory

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Any]:
        x = x.to(self.E_x.dtype)
        w, u = wide(half_linear(x, self.E_x)), wide(half_linear(x, self.W_x))
        with without_autocast(x.device):
            a, b = self.memory()  # (order, order), (order,)
            if dt is not None:
                y, last = self._between(w, u, dt, state, reset)
            elif self.recurrent:
                y, last = self._cell(w, u, a, b, state, reset)
            else:
                m = self._window(w, a, b, state["m"], reset)
                y = torch.tanh(u + F.linear(m.flatten(2), wide(self.W_m)))  # (B, T, d_state)
                last = {"m": m[:, -1]}
        out: Tensor = self.out_proj(y.to(self.E_x.dtype))
        return out, last

    def _between(
        self, w: Tensor, u: Tensor, dt: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Steps that are as long as times say."""
        names = ("W_m", "W_h", "E_h", "E_m") if self.recurrent else ("W_m",)
        weights = [wide(getattr(self, name)) for name in names]
        h = state["h"] if self.recurrent else torch.zeros_like(u[:, 0])
        system = list(self.memory.continuous(dt))
        rule = self.discretisation
        y, h, m = timed_lmu(w, u, h, state["m"], system, weights, reset, rule)
        return y, {"h": h, "m": m} if self.recurrent else {"m": m}

    def _cell(
        self, w: Tensor, u: Tensor, a: Tensor, b: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, Any]:
        M = self.d_memory
        inputs: dict[str, Any] = {"w": w, "u": u, **rows_of(M, a, b)}
        inputs |= {name: wide(getattr(self, name)) for name in ("W_h", "W_m")}
        inputs |= {"e_h": wide(self.E_h), "e_m": wide(self.E_m)}  # type: ignore[arg-type]
        start = state["h"], state["m"].flatten(1)  # (B, d_state), (B, M order)
        y, (h, m) = cell_scan(lmu, **inputs, state=start, reset=reset)
        return y, {"h": h, "m": m.unflatten(1, (M, -1))}

    @staticmethod
    def _window(w: Tensor, a: Tensor, b: Tensor, m: Tensor, reset: Tensor | None) -> Tensor:
        """The memory after every step, (batch, time, d_memory, order): each row by itself."""
        rows = w.shape[2]
        pushed = (w[..., None] * b).transpose(1, 2).flatten(0, 1)  # (B M, T, order)
        cut = None if reset is None else reset.repeat_interleave(rows, 0)  # (B M, T)
        states, _ = dense_scan(a, pushed, m.flatten(0, 1), cut)  # (B M, T, order)
        memory: Tensor = states.unflatten(0, (-1, rows)).transpose(1, 2)  # (B, T, M, order)
        return memory
