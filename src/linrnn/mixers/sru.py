"""SRU, the simple recurrent unit."""

from math import exp, isfinite, sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.gated import Gated
from linrnn.nn.linear import Linear
from linrnn.nn.starts import refined, refines, start_gates
from linrnn.state_spec import Part, real


@cell(state="c", constant="b_f b_r v_f v_r")
def sru(
    c: Any, z: Any, f: Any, r: Any, x: Any, b_f: Any, b_r: Any, v_f: Any, v_r: Any
) -> tuple[Any, Any]:
    """One step; both gates see the state before."""
    f, r = torch.sigmoid(f + b_f + v_f * c), torch.sigmoid(r + b_r + v_r * c)
    c = torch.lerp(z, c, f)
    return torch.lerp(x, c, r), c


@cell(state="c", constant="b_f b_r")
def sru_without_peepholes(
    c: Any, z: Any, f: Any, r: Any, x: Any, b_f: Any, b_r: Any
) -> tuple[Any, Any]:
    """The first version, which is linear in c."""
    c = torch.lerp(z, c, torch.sigmoid(f + b_f))
    return torch.lerp(x, c, torch.sigmoid(r + b_r)), c


@cell(state="c", constant="b_f b_r b_s v_f v_r v_s")
def sru_refined(
    c: Any, z: Any, f: Any, r: Any, x: Any, s: Any,
    b_f: Any, b_r: Any, b_s: Any, v_f: Any, v_r: Any, v_s: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """One step whose forget gate another refines, which sees the state before too."""
    f = torch.sigmoid(refined(f + b_f + v_f * c, s + b_s + v_s * c))
    r = torch.sigmoid(r + b_r + v_r * c)
    c = torch.lerp(z, c, f)
    return torch.lerp(x, c, r), c


class SRU(Gated):
    r"""SRU: an elementwise gated recurrence with a highway connection around it.

    Equation:
        f_t = sigmoid(W_f x_t + v_f * c_{t-1} + b_f)
        r_t = sigmoid(W_r x_t + v_r * c_{t-1} + b_r)        both see c_{t-1}
        c_t = f_t * c_{t-1} + (1 - f_t) * W x_t             c in R^{d_state}
        with a refine gate s_t = sigmoid(W_s x_t + v_s * c_{t-1} + b_s),
        2 s_t f_t + (1 - 2 s_t) f_t^2 replaces f_t
        h_t = r_t * c_t + (1 - r_t) * alpha x_t
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        alpha = sqrt(1 + 2 exp(highway_bias)), or 1 without rescale, so that h starts with the
        variance of x; where d_state is not d_model, W_x x instead of x, which starts
        that much larger. c is a weighted mean of the past. Without peepholes v = 0.
        Initially W, and W_x, are uniform within sqrt(3 / d_model), W_f, W_r and W_s
        within sqrt(1.5 / d_model), v within sqrt(1.5); b_f = b_s = 0, b_r = highway_bias.

    Args:
        d_state: channels of c. Default: d_model.
        peepholes: the vectors v. Without them, as in the paper's first version, a scan.
        highway_bias: initial b_r; below 0 more of the input passes by.
        rescale: alpha as above.
        gates: how f starts and whether s refines it: see `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        Rows of the weight lie in blocks (W, W_f, W_r, W_x, W_s), not interleaved as in the
        authors' kernel. W_out is an extension: theirs is as wide as its state.

    Example:
        >>> y, state = SRU(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", EMNLP 2018,
        arXiv:1709.02755. Key: lei2018simple.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="diagonal",
        gate="state",
        memory="vector",
        normaliser="convex",
        steps="nonlinear",
        output="gated",
    )

    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("v",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        peepholes: bool = True,
        highway_bias: float = 0.0,
        rescale: bool = True,
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, gates, t_max, **to)
        self.peepholes, self.highway_bias, self.rescale = peepholes, highway_bias, rescale
        if not isfinite(highway_bias):
            raise ArgumentError(f"SRU: highway_bias must be finite, got {highway_bias}.")
        n_gates = 2 + refines(gates)
        rows = (1 + n_gates + (self.d_state != d_model)) * self.d_state
        self.in_proj = Linear(d_model, rows, bias=False, **to)
        self.bias = nn.Parameter(torch.empty(n_gates, self.d_state, **to))
        self.v = nn.Parameter(torch.empty(n_gates, self.d_state, **to)) if peepholes else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        bound = (3 / self.d_model) ** 0.5
        sizes = [1.0, 0.5**0.5, 0.5**0.5]
        sizes += [self.alpha] * (self.d_state != self.d_model) + [0.5**0.5] * refines(self.gates)
        for rows, size in zip(self.in_proj.weight.split(self.d_state), sizes, strict=True):
            nn.init.uniform_(rows, -size * bound, size * bound)
        if self.v is not None:
            nn.init.uniform_(self.v, -(1.5**0.5), 1.5**0.5)
        nn.init.zeros_(self.bias[0])
        nn.init.constant_(self.bias[1], self.highway_bias)
        for bias in self.bias[2:]:
            nn.init.zeros_(bias)
        start_gates(self.gates, self.t_max, self.bias[0], *self.bias[2:])
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()
        self.learned.reset(self)

    @property
    def alpha(self) -> float:
        """How much larger the input passes by than it came."""
        return sqrt(1 + 2 * exp(self.highway_bias)) if self.rescale else 1.0

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, c: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x.to(self.in_proj.weight.dtype)
        z, f, r, *more = self._blocks(self.in_proj, x)
        s = more.pop() if refines(self.gates) else None
        biases, cell = list(wide(self.bias)), sru_without_peepholes
        if s is not None and self.v is None:  # which sees the input alone
            f = refined(wide(f) + biases[0], wide(s) + biases.pop())
            biases[0] = torch.zeros_like(biases[0])
        inputs = {"z": z, "f": f, "r": r, "x": more[0] if more else self.alpha * x}
        inputs |= zip(("b_f", "b_r", "b_s"), biases, strict=False)
        if self.v is not None:
            inputs |= zip(("v_f", "v_r", "v_s"), wide(self.v), strict=False)
            cell = sru if s is None else sru_refined
            inputs |= {} if s is None else {"s": s}
        y, last = self.learned.scan(self, cell, {"c": c}, reset, **inputs)
        return self._project_out(y), last["c"]
