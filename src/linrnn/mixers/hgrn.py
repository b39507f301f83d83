"""HGRN: a complex gated linear recurrence whose deeper layers forget less."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.parts import parts
from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.signals import check_receives
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.mixers._families.bounds import CumulativeBounds
from linrnn.nn import HeadNorm
from linrnn.nn.channel_mix import check_layer
from linrnn.nn.linear import Linear
from linrnn.nn.starts import start_bound
from linrnn.ops.gated_norm import has_gpu_kernel
from linrnn.state_spec import Part, complex_, real
from linrnn.typing import Signals


@cell(state="h", constant="bound turn", complex="h turn")
def hgrn(h: Any, re: Any, im: Any, f: Any, bound: Any, turn: Any) -> tuple[Any, Any]:
    """One step; ``bound`` is the logit of the least modulus."""
    span = torch.sigmoid(-bound)
    keep, write = torch.sigmoid(bound) + span * torch.sigmoid(f), span * torch.sigmoid(-f)
    h = keep * turn * h + torch.complex(write * F.silu(re), write * F.silu(im))
    return (h.real, h.imag), h


class HGRN(Mixer):
    r"""HGRN: a complex gated recurrence whose forget gates have a learned lower bound.

    Equation:
        c_t = silu(W_re x_t + b_re) + i silu(W_im x_t + b_im)               in C^{d_state}
        lam_t = beta + (1 - beta) * sigmoid(W_f x_t + b_f)                  in (beta, 1)
        h_t = lam_t * exp(i theta) * h_{t-1} + (1 - lam_t) * c_t
        sigmoid  y_t = W_o (w * norm(sigmoid(W_g x_t + b_g) * [Re h_t; Im h_t])) + b_o
        silu     y_t = W_o (silu(W_g x_t + b_g) * w * norm([Re h_t; Im h_t])) + b_o
        The input's weight is 1 - lam, of the modulus. beta = sigmoid(bound), of every channel,
        is the layer's own or, in a stack of several, of all of them: beta_l is the sum over
        i = 1 .. l of softmax(gamma)_i, of layers l = 0, 1, ... Both start as layer / n_layers; the
        first layer has no bound, and beta = 0. Initially theta_k is 10000^(-2k / d_state),
        k = 0, 1, ...; the rest starts as in torch.nn.

    Args:
        d_state: complex channels. Default: d_model.
        gate: of the output, "sigmoid" before the norm or "silu" after it, as above.
        norm: over all channels, "layer" or "rms".
        norm_eps: of the norm.
        learn_initial: learn the state that a sequence begins from.
        lower_bound: in a stack, of the "stack" or of each "layer" by itself, as above.
        layer, n_layers: place in the stack, counted from 0.
        receives: ``("bound",)`` in a layer that a stack gives its bounds. See `Mixer.receives`.

    Departures from the paper:
        A layer alone has its own bound, with the same start; so have the layers of a stack
        with ``lower_bound="layer"``.

    Example:
        >>> y, state = HGRN(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Qin, Yang and Zhong, "Hierarchically Gated Recurrent Neural Network for Sequence Modeling",
        NeurIPS 2023, arXiv:2311.04823. Key: qin2023hierarchically.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("bound", "theta")

    family: ClassVar[str] = "gated"
    choices = Choices(
        transition="complex diagonal",
        gate="input",
        memory="vector",
        normaliser="convex",
        output="gated",
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("bound", "theta")
    shares: ClassVar[tuple[str, ...]] = ("bound",)
    learned: ClassVar[LearnedStart] = LearnedStart("h", pairs=True)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        gate: Literal["sigmoid", "silu"] = "sigmoid",
        norm: Literal["layer", "rms"] = "layer",
        norm_eps: float = 1e-5,
        learn_initial: bool = False,
        lower_bound: Literal["stack", "layer"] = "stack",
        layer: int = 0,
        n_layers: int = 1,
        receives: tuple[str, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.gate, self.norm, self.norm_eps = gate, norm, norm_eps
        self.layer, self.n_layers, self.lower_bound = layer, n_layers, lower_bound
        check_positive_int("HGRN", d_state=self.d_state)
        check_positive("HGRN", norm_eps=norm_eps)
        check_in("HGRN", "gate", gate, ("sigmoid", "silu"))
        check_layer("HGRN", layer, n_layers)
        check_in("HGRN", "lower_bound", lower_bound, ("stack", "layer"))
        check_receives("HGRN", receives, self.shares)
        self.receives = tuple(receives) if lower_bound == "stack" else ()
        to: Any = {"device": device, "dtype": dtype}
        self.learned.add(self, learn_initial, self.d_state, **to)
        self.in_proj = Linear(d_model, 3 * self.d_state, **to)  # re, im, f
        self.gate_proj = Linear(d_model, 2 * self.d_state, **to)
        self.theta = nn.Parameter(torch.empty(self.d_state, **to))
        has_bound = layer > 0 and not self.receives
        self.bound = nn.Parameter(torch.empty(self.d_state, **to)) if has_bound else None
        self.out_norm = HeadNorm(1, 2 * self.d_state, norm=norm, eps=norm_eps, **to)
        self.out_proj = Linear(2 * self.d_state, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.gate_proj, self.out_norm, self.out_proj):
            part.reset_parameters()
        k = torch.arange(self.d_state, dtype=torch.float64)
        self.theta.copy_(10000 ** (-2 * k / self.d_state))
        if self.bound is not None:
            start_bound(self.bound, self.layer, self.n_layers)
        self.learned.reset(self)

    def signal_spec(self) -> dict[str, Part]:
        """See `Mixer.signal_spec`: the logit of the lower bound."""
        return {"bound": real(d_state=self.d_state)}

    @classmethod
    def shared_part(cls, layers: Iterable["HGRN"]) -> CumulativeBounds:
        """See `Mixer.shared_part`: the bounds of these layers."""
        stack = list(layers)
        like = stack[0]._parameter()
        return CumulativeBounds(len(stack), stack[0].d_state, device=like.device, dtype=like.dtype)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(d_state=self.d_state)

    def _read(
        self, x: Tensor, h: Tensor, reset: Tensor | None, signals: Signals
    ) -> tuple[Tensor, Tensor, Signals]:
        x = x.to(self.in_proj.weight.dtype)
        theta = wide(self.theta)
        bound = signals.get("bound", self.bound)
        low = torch.full_like(theta, -torch.inf) if bound is None else wide(bound)
        inputs = dict(zip(("re", "im", "f"), parts(self.in_proj(x), 3), strict=True))
        turn = torch.polar(torch.ones_like(theta), theta)
        y, last = self.learned.scan(self, hgrn, {"h": h}, reset, **inputs, bound=low, turn=turn)
        o, g = torch.cat(y, -1), self.gate_proj(x)  # (B, T, 2 d_state)
        if o.shape[1] > 1 and has_gpu_kernel(o):
            first = self.gate != "sigmoid"
            # (B, T, d_model)
            o = self.out_norm.gated(o.unsqueeze(-2), g, gate=self.gate, norm_first=first)
        elif self.gate == "sigmoid":
            o = self.out_norm((torch.sigmoid(g) * o).unsqueeze(-2))  # (B, T, 2 d_state)
        else:
            o = F.silu(g) * self.out_norm(o.unsqueeze(-2))  # (B, T, 2 d_state)
        return self.out_proj(o.to(x.dtype)), last["h"], {}
