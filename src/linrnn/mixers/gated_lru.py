"""A linear recurrence between two products of linear maps, which can be linear attention."""

from math import pi
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.parts import parts
from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_not_negative, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn import bounded_exp, check_ring, lecun_normal, ring, uniform
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part, complex_, real


@cell(state="h", constant="lam")
def gated_lru(h: Any, m: Any, x: Any, lam: Any) -> tuple[Any, Any]:
    """One step."""
    h = lam * h + m * x
    return h, h


@cell(state="h")
def timed_gated_lru(h: Any, m: Any, x: Any, lam: Any) -> tuple[Any, Any]:
    """One step with its own decay."""
    h = lam * h + m * x
    return h, h


@cell(state="h", constant="lam", complex="h lam")
def turning_gated_lru(h: Any, re: Any, im: Any, lam: Any) -> tuple[Any, Any]:
    """One step of complex numbers."""
    h = lam * h + torch.complex(re, im)
    return (h.real, h.imag), h


@cell(state="h", complex="h lam")
def timed_turning_gated_lru(h: Any, re: Any, im: Any, lam: Any) -> tuple[Any, Any]:
    """One such step with its own decay and turn."""
    h = lam * h + torch.complex(re, im)
    return (h.real, h.imag), h


class GatedLRU(Mixer):
    r"""Diagonal linear recurrence with multiplicative gates on its input and output.

    Equation:
        h_t = lam * h_{t-1} + (W_m x_t + b_m) * (W_x x_t + b_x)         h in R^{d_state}
        y_t = D ((V_m h_t + c_m) * (V_x h_t + c_x))                     V h in R^{d_out}
        lam = exp(-exp(nu_log)), in (0, 1), or with decay="free" a parameter of any value.
        "complex"  h in C^{d_state}: its real parts, then the imaginary ones, are pushed by products
        of 2 d_state numbers, and V sees both; lam = exp(-exp(nu_log) + i theta)
        For a step a time dt after the one before, lam is lam^dt; a free one has no such power.
        Free, with lam = 1 for d^2 channels and 0 for d, it is linear attention exactly; above 1
        the state grows without bound. Initially lam^2 is uniform on [r_min^2, r_max^2]; weights are
        N(0, 1 / fan_in), rows of W_m times sqrt(1 - |lam|^2), so that h, or each of its parts,
        has variance 1 where x has; biases 0; theta is uniform on [0, max_phase].

    Args:
        d_state: channels of h. Default: d_model.
        d_out: products at the way out. Default: d_state.
        decay: "exp", "free" or "complex", as above.
        r_min, r_max: range of the initial |lam|, 0 <= r_min < r_max <= 1.
        max_phase: largest initial theta, in radians per step.
        bias: the vectors b and c; the paper appends a constant 1 to x.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        It trains an LRU of complex lam with gates around, "complex" here; by default all numbers
        are real, as in its construction. It does not say how the gates start.

    Example:
        >>> y, state = GatedLRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Zucchet et al., "Gated Recurrent Neural Networks Discover Attention", 2023,
        arXiv:2309.01775. Key: zucchet2023gated.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("nu_log", "theta", "lam")

    family: ClassVar[str] = "diagonal"
    choices = Choices(transition="diagonal", gate="learned", memory="vector", output="gated")
    learned: LearnedStart = LearnedStart("h")  # type: ignore[misc]
    timed: ClassVar[bool] = True
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("nu_log", "theta", "lam")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        d_out: int | None = None,
        decay: Literal["exp", "free", "complex"] = "exp",
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * pi,
        bias: bool = True,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.d_out = self.d_state if d_out is None else d_out
        self.decay, self.r_min, self.r_max, self.bias = decay, r_min, r_max, bias
        check_positive_int("GatedLRU", d_state=self.d_state, d_out=self.d_out)
        self.max_phase = max_phase
        check_in("GatedLRU", "decay", decay, ("exp", "free", "complex"))
        check_not_negative("GatedLRU", max_phase=max_phase)
        check_ring("GatedLRU", r_min, r_max)
        self.timed = decay != "free"  # type: ignore[misc]
        turns = decay == "complex"
        to: Any = {"device": device, "dtype": dtype}
        self.learned = LearnedStart("h", pairs=turns)
        self.learned.add(self, learn_initial, self.d_state, **to)
        numbers = (1 + turns) * self.d_state
        self.in_proj = Linear(d_model, 2 * numbers, bias, **to)  # m, x
        self.out_gates = Linear(numbers, 2 * self.d_out, bias, **to)
        self.out_proj = Linear(self.d_out, d_model, False, **to)
        rate = nn.Parameter(torch.empty(self.d_state, **to))
        self.nu_log = None if decay == "free" else rate
        self.theta = nn.Parameter(torch.empty(self.d_state, **to)) if turns else None
        self.lam = rate if decay == "free" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.in_proj, self.out_gates, self.out_proj)
        nu = ring(uniform(self.d_state), self.r_min, self.r_max)
        if self.nu_log is not None:
            self.nu_log.copy_(nu.log())
        if self.lam is not None:
            self.lam.copy_(torch.exp(-nu))
        for inputs in self.in_proj.weight.chunk(2)[0].split(self.d_state):
            inputs *= torch.sqrt(-torch.expm1(-2 * nu))[:, None].to(inputs)
        if self.theta is not None:
            self.theta.copy_(self.max_phase * uniform(self.d_state))
        self.learned.reset(self)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state) if self.theta is None else complex_(d_state=self.d_state)

    def eigenvalues(self) -> Tensor:
        """``lam`` as complex numbers, the diagonal of the transition."""
        lam = self._decay()
        return lam if lam.is_complex() else torch.complex(lam, torch.zeros_like(lam))

    def _decay(self, dt: Tensor | None = None) -> Tensor:
        """``lam``, at least float32; of times (...) ``lam^dt``, (..., d_state)."""
        if self.nu_log is not None:
            nu = bounded_exp(wide(self.nu_log))
            times = 1.0 if dt is None else dt.unsqueeze(-1)
            modulus = torch.exp(-nu * times)
            if self.theta is None:
                return modulus
            return torch.polar(modulus, wide(self.theta) * times)
        return wide(self.get_parameter("lam"))

    def _read(
        self, x: Tensor, h: Tensor, reset: Tensor | None, dt: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        m, x = parts(self.in_proj(x.to(self.in_proj.weight.dtype)), 2)
        step, lam = gated_lru if dt is None else timed_gated_lru, self._decay(dt)
        inputs = {"m": m, "x": x}
        if self.theta is not None:
            step = turning_gated_lru if dt is None else timed_turning_gated_lru
            inputs = dict(zip(("re", "im"), parts(wide(m) * wide(x), 2), strict=True))
        y, last = self.learned.scan(self, step, {"h": h}, reset, **inputs, lam=lam)
        y = torch.cat(y, -1) if self.theta is not None else y  # (B, T, d_model)
        m, x = parts(self.out_gates(y.to(self.out_gates.weight.dtype)), 2)
        return self.out_proj(m * x), last["h"]
