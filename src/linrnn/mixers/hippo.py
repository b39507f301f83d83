"""HiPPO-RNN, a gated network whose memory is a polynomial through all it has read."""

from math import sqrt
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import block_linear, cell
from linrnn.compute import modes
from linrnn.compute.composed import composed
from linrnn.compute.layout import stacked
from linrnn.compute.modes import plain
from linrnn.compute.parts import parts
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import (
    ArgumentError,
    check_in,
    check_not_negative,
    check_positive,
    check_positive_int,
)
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import empty_parameters
from linrnn.nn.hippo import MEASURES, hippo
from linrnn.nn.legs import LEGS_RULES, legs_move, legs_transitions
from linrnn.nn.linear import Linear
from linrnn.nn.lti import TABLE, LTISteps, each_step, pushed, rows_of
from linrnn.ops import cell_scan, linear_scan
from linrnn.state_spec import Part, real


@cell(state="h c", matrix="W_f A into V_h V_g")
def even(
    h: Any, c: Any, f: Any, u: Any, g: Any, W_f: Any, A: Any, into: Any, V_h: Any, V_g: Any
) -> tuple[Any, Any]:
    """One step of a memory whose steps are all alike; ``A`` has a block for each of its rows."""
    c = block_linear(c, A) + F.linear(f + F.linear(h, W_f), into)
    h = torch.lerp(h, torch.tanh(u + F.linear(c, V_h)), torch.sigmoid(g + F.linear(c, V_g)))
    return h, (h, c)


class HiPPO(Mixer):
    r"""HiPPO-RNN: an RNN with a memory of polynomial coefficients of its past features.

    Equation:
        f_t = W_f [x_t; h_{t-1}] + b_f                      in R^{d_memory}
        c_t = a c_{t-1} + b f_t, for each entry of f_t      in R^{d_memory x order}
        h_t = (1 - g_t) * h_{t-1} + g_t * tanh(W_h [x_t; c_t] + b_h)
        g_t = sigmoid(W_g [x_t; c_t] + b_g)                 h and g in R^{d_state}
        a and b are steps of c' = A c + B f, the coefficients of Legendre polynomials on
        "legs"  all the past: A/k and B/k at step k = 1, 2, ..., and the first step sets c = (f, 0,
                ...): no time scale, and what is old is held ever more coarsely;
        "legt"  a window of theta steps;  "fout"  the same by a Fourier series;
        "lagt"  Laguerre polynomials, and steps of 1/theta.
        Read out is h_t, mapped by a linear layer where d_state is not d_model. Initially W_f is
        uniform with variance 1 / fan_in, W_h is Glorot-normal, the maps of x and c each for itself,
        W_g is N(0, 1 / fan_in), and biases are uniform on +-1 / sqrt(fan_in).

    Args:
        d_state: channels of h. Default: d_model.
        d_memory: how many numbers of a step are remembered.
        order: coefficients of each. Default: d_state.
        measure: "legs", "legt", "lagt" or "fout"; the last has an even order.
        discretisation: "bilinear", "backward" (Euler's rule), or "zoh", the exact solution for an
            input that is constant during a step.
        theta: of "legt" and "fout" the window, of "lagt" the unit of time, in steps; above 0.
        beta: the tilt of "lagt", at least 0. The public code's "lagt" has 0, its "glagt" 0.01 with
            B a tenth as large; both theta 1.

    Departures from the paper:
        The equation is that of the public code. Its LegS stops to count at the longest sequence of
        training; here k goes on. Its forward Euler rule, which is not stable, is left out. The time
        between steps, where it is given, multiplies 1/theta; of "legs" it is taken in parts of all
        the time before, 1/k where all are 1. A sequence is then read step after step.

    Example:
        >>> y, state = HiPPO(d_model=4, order=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["c"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 1, 8]))

    Reference:
        Gu, Dao, Ermon, Rudra and Re, "HiPPO: Recurrent Memory with Optimal Polynomial
        Projections", NeurIPS 2020, arXiv:2008.07669. Key: gu2020hippo.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("f_h", "u_c")

    family: ClassVar[str] = "ssm"
    choices = Choices(
        transition="dense", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    timed: ClassVar[bool] = True
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        d_memory: int = 1,
        order: int | None = None,
        measure: Literal["legs", "legt", "lagt", "fout"] = "legs",
        discretisation: Literal["bilinear", "backward", "zoh"] = "bilinear",
        theta: float = 100.0,
        beta: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.d_memory, self.order = d_memory, self.d_state if order is None else order
        self.measure, self.discretisation = measure, discretisation
        self.theta, self.beta = theta, beta
        check_positive_int("HiPPO", d_state=self.d_state, d_memory=d_memory, order=self.order)
        check_in("HiPPO", "measure", measure, MEASURES)
        check_in("HiPPO", "discretisation", discretisation, LEGS_RULES)
        check_positive("HiPPO", theta=theta)
        check_not_negative("HiPPO", beta=beta)
        if measure == "fout" and self.order % 2:
            raise ArgumentError(f"HiPPO: order must be even for measure='fout', got {self.order}.")
        N, M = self.d_state, d_memory
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        empty = empty_parameters(device, dtype)
        self.f_x, self.f_h = Linear(d_model, M, **to), empty(M, N)
        self.u_x = Linear(d_model, 2 * N, **to)  # of h, then g
        self.u_c = empty(2 * N, M * self.order)
        self.memory: LTISteps | None = None
        if measure != "legs":
            self.memory = LTISteps(
                lambda: hippo(measure, self.order, beta=beta), 1 / theta, discretisation, **to
            )
        self.out_proj: nn.Module = nn.Identity()
        if d_model != N:
            self.out_proj = Linear(N, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        N, read = self.d_state, self.d_model + self.d_memory * self.order
        for weight in (self.f_x.weight, self.f_h):
            nn.init.uniform_(weight, -sqrt(3 / (self.d_model + N)), sqrt(3 / (self.d_model + N)))
        for weight in (self.u_x.weight, self.u_c):
            nn.init.xavier_normal_(weight[:N])
            nn.init.normal_(weight[N:], std=read**-0.5)
        for bias, fan_in in ((self.f_x.bias, self.d_model + N), (self.u_x.bias, read)):
            nn.init.uniform_(bias, -(fan_in**-0.5), fan_in**-0.5)
        if self.memory is not None:
            self.memory.reset_parameters()
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h, the memory, and for "legs" the time since the last reset."""
        spec = {
            "h": real(d_state=self.d_state),
            "c": real(d_memory=self.d_memory, order=self.order),
        }
        position = Part("real", {}, double=True)
        return {**spec, "position": position} if self.measure == "legs" else spec

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Any]:
        f, u, weights = self._given(x)
        sequence, rule = (f, u, state["h"], state["c"]), self.discretisation
        with without_autocast(x.device):
            if self.memory is None:
                lengths, begins, position = _parts_of_all(state["position"], f, reset, dt)
                parts_of_all = lengths, begins
                even = dt is None and not state["position"].requires_grad
                y, h, c = legs_rnn(*sequence, *parts_of_all, weights, reset, rule, even)
                last = {"h": h, "c": c, "position": position}
            elif dt is not None:
                system = list(self.memory.continuous(dt))
                y, h, c = timed_rnn(*sequence, system, weights, reset, rule)
                last = {"h": h, "c": c}
            else:
                y, last = self._even(f, u, weights, self.memory(), state, reset)
        return self._out(y), last

    def _step(self, x_t: Tensor, state: Any, dt: Tensor | None) -> tuple[Tensor, Any]:
        if self.measure != "legs" or dt is not None:
            return super()._step(x_t, state, dt)
        f, u, (W_f, V) = self._given(x_t)
        k = state["position"]
        with without_autocast(x_t.device):
            f = torch.addmm(f, state["h"], W_f.t())
            begins = k == 0
            length = 1 / torch.where(begins, 1, k)
            c = _remembered(state["c"], f, length, begins, self.discretisation)
            h = _hidden(u, state["h"], c, V)
        return self._out(h), {"h": h, "c": c, "position": k + 1}

    def _given(self, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The input's part of f, that of h and g together, and the maps of h and c."""
        x = x.to(self.f_h.dtype)
        return wide(self.f_x(x)), wide(self.u_x(x)), [wide(self.f_h), wide(self.u_c)]

    def _out(self, y: Tensor) -> Tensor:
        out: Tensor = self.out_proj(y.to(self.f_h.dtype))
        return out

    def _even(
        self,
        f: Tensor,
        u: Tensor,
        weights: list[Tensor],
        steps: tuple[Tensor, Tensor],
        state: Any,
        reset: Tensor | None,
    ) -> tuple[Tensor, Any]:
        M = self.d_memory
        inputs: dict[str, Any] = rows_of(M, *steps)
        inputs |= zip(("u", "g"), parts(u, 2), strict=True)
        inputs |= zip(("V_h", "V_g"), weights[1].chunk(2), strict=True)
        start = state["h"], state["c"].flatten(1)  # (B, d_state), (B, M order)
        y, (h, c) = cell_scan(even, f=f, W_f=weights[0], **inputs, state=start, reset=reset)
        return y, {"h": h, "c": c.unflatten(1, (M, -1))}


def _parts_of_all(
    position: Tensor, like: Tensor, reset: Tensor | None, dt: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each step's time relative to the one before, whether it is first, and the total.

    Args:
        position: the time before the first step, (batch,), float64.
        like: (batch, time, ...).
        reset: boolean (batch, time), or None.
        dt: times (batch, time), or None for 1 everywhere.
    """
    times = like.new_ones(like.shape[:2]) if dt is None else dt
    times, one = times.double()[..., None], position.new_ones(1)
    after, last = linear_scan(one, times, position[:, None], reset=reset)  # (B, T, 1), (B, 1)
    before = torch.cat([position[:, None, None], after[:, :-1]], 1)
    begins = before == 0 if reset is None else (before == 0) | reset[..., None]
    lengths = torch.where(begins, 0, times) / torch.where(begins, 1, before)
    return lengths.squeeze(-1), begins.squeeze(-1), last.squeeze(-1)


def _timed_shapes(
    f: Tensor,
    u: Tensor,
    h: Tensor,
    c: Tensor,
    system: list[Tensor],
    weights: list[Tensor],
    reset: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor]:
    y = u.new_empty(u.shape[0], u.shape[1], h.shape[1])
    return y, h.new_empty(h.shape), c.new_empty(c.shape)


@composed(
    "timed_rnn",
    "Tensor f, Tensor u, Tensor h, Tensor c, Tensor[] system, Tensor[] weights, Tensor? reset, "
    "str rule",
    _timed_shapes,
)
def timed_rnn(
    f: Tensor,
    u: Tensor,
    h: Tensor,
    c: Tensor,
    system: list[Tensor],
    weights: list[Tensor],
    reset: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence with a matrix for each step, as `each_step` makes them of ``system``."""
    (W_f, V), (A, B, lengths), states = weights, system, []
    for t, (a, b) in enumerate(each_step(A, B, lengths, rule)):
        if reset is not None:
            now = reset[:, t, None]
            h, c = torch.where(now, 0, h), torch.where(now[..., None], 0, c)
        c = pushed(c, torch.addmm(f[:, t], h, W_f.t()), a, b)
        h = _hidden(u[:, t], h, c, V)
        states.append(h)
    return stacked(states, h), h, c


def _shapes(
    f: Tensor,
    u: Tensor,
    h: Tensor,
    c: Tensor,
    lengths: Tensor,
    begins: Tensor,
    weights: list[Tensor],
    reset: Tensor | None,
    rule: str,
    even: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    y = u.new_empty(u.shape[0], u.shape[1], h.shape[1])
    return y, h.new_empty(h.shape), c.new_empty(c.shape)


@composed(
    "legs_rnn",
    "Tensor f, Tensor u, Tensor h, Tensor c, Tensor lengths, Tensor begins, Tensor[] weights, "
    "Tensor? reset, str rule, bool even",
    _shapes,
)
def legs_rnn(
    f: Tensor,
    u: Tensor,
    h: Tensor,
    c: Tensor,
    lengths: Tensor,
    begins: Tensor,
    weights: list[Tensor],
    reset: Tensor | None,
    rule: str,
    even: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence with "legs", step after step: the memory's matrix depends on the time.

    Rows that are equally far have their matrices in common, where no times were given, ``even``;
    others do without.
    """
    W_f, V = weights
    size, states = c.shape[-1], []
    block = max(1, TABLE // size**2)
    steps = zip(f.unbind(1), u.unbind(1), lengths.unbind(1), begins.unbind(1), strict=True)
    for t, (f_t, u_t, length, first) in enumerate(steps):
        if t % block == 0:
            ahead = slice(t, t + block)
            a = b = None  # times that were given have derivatives, in each row its own
            if even:
                a, b = _in_common(lengths[:, ahead], begins[:, ahead], size, rule, c)
        if reset is not None:
            now = reset[:, t, None]
            h, c = torch.where(now, 0, h), torch.where(now[..., None], 0, c)
        f_t = torch.addmm(f_t, h, W_f.t())
        if a is None or b is None:
            c = _remembered(c, f_t, length, first, rule)
        else:
            i = t % block
            c = torch.addmm(f_t.reshape(-1, 1) * b[i], c.reshape(-1, size), a[i].t()).view(c.shape)
        h = _hidden(u_t, h, c, V)
        states.append(h)
    return stacked(states, h), h, c


def _in_common(
    lengths: Tensor, begins: Tensor, size: int, rule: str, like: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    steps = plain(lengths)
    if lengths.shape[0] == 0 or modes.captured(steps):
        return None, None
    if not bool((steps == steps[..., :1, :]).all()):
        return None, None
    a, b = legs_transitions(size, lengths[0], begins[0], rule)
    return a.to(like), b.to(like)


def _remembered(c: Tensor, f: Tensor, length: Tensor, begins: Tensor, rule: str) -> Tensor:
    """The memory after one step, of another length in each row."""
    if rule == "bilinear":
        return legs_move(c, f, length[:, None], begins[:, None])
    a, b = legs_transitions(c.shape[-1], length, begins, rule)
    return pushed(c, f, a, b)


def _hidden(u: Tensor, h: Tensor, c: Tensor, V: Tensor) -> Tensor:
    candidate, gate = torch.addmm(u, c.flatten(1), V.t()).chunk(2, -1)
    return torch.lerp(h, torch.tanh(candidate), torch.sigmoid(gate))
