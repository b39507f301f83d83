"""HGRN2: a gated linear recurrence whose state is expanded by outer products."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.signals import check_receives
from linrnn.mixers._families.bounds import CumulativeBounds
from linrnn.nn import HeadNorm, Heads
from linrnn.nn.channel_mix import check_layer
from linrnn.nn.conv_heads import add_conv, check_conv, conv_spec, convolved
from linrnn.nn.linear import Linear
from linrnn.nn.starts import start_bound
from linrnn.ops.matrix.log_sigmoid import log_sigmoid
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real
from linrnn.typing import Signals


class HGRN2(Mixer):
    r"""HGRN2: HGRN with a matrix state; each key channel writes what its gate forgets.

    Equation:
        f_t = beta + (1 - beta) * sigmoid(W_f x_t + b_f)                in (beta, 1)^d_head
        v_t = silu(W_v x_t + b_v),  q_t = sigmoid(W_q x_t + b_q)        in each head
        or with d_conv conv(W_f x), conv(W_v x) and conv(W_q x), depthwise, for the three maps
        S_t = diag(f_t) S_{t-1} + (1 - f_t) v_t^T,   o_t = S_t^T q_t
        y_t = W_o (w * norm(concat over heads of o_t)) + b_o
        beta = sigmoid(bound), of every channel, is the layer's own or, in a stack of several, of
        all of them: beta_l is the sum over i = 1 .. l of softmax(gamma)_i, of layers l = 0, 1, ...
        Both start as layer / n_layers; the first layer has no bound, and beta = 0. The rest starts
        as in torch.nn.

    Args:
        d_head: channels of a head, a divisor of d_model. Default: the largest of at most 128.
        q_activation: "sigmoid" as above, or "silu".
        v_activation: "silu" as above, or "identity".
        d_conv: taps of a short convolution, 1 sees only the current step. Default: none.
        conv_bias: add a bias to the convolution.
        bias: b_f, b_v, b_q and b_o.
        norm: over all heads together, "layer" or "rms".
        norm_eps: of the norm.
        lower_bound: in a stack, of the "stack" or of each "layer" by itself, as above.
        layer, n_layers: place in the stack, counted from 0.
        receives: ``("bound",)`` in a layer that a stack gives its bounds. See `Mixer.receives`.

    Departures from the paper:
        Extension beyond the survey. A layer alone has its own bound, with the same start; so
        have the layers of a stack with ``lower_bound="layer"``. The layer of
        flash-linear-attention has q_activation "silu", v_activation "identity", no bias, norm
        "rms", and divides o by sqrt(d_head) before it: norm_eps here is d_head times what it is
        there.

    Example:
        >>> y, state = HGRN2(d_model=8, d_head=4)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]))

    Reference:
        Qin et al., "HGRN2: Gated Linear RNNs with State Expansion", 2024, arXiv:2404.07904.
        Key: qin2024hgrn2.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("bound",)

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="diagonal", gate="input", memory="matrix", normaliser="convex")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("bound",)
    shares: ClassVar[tuple[str, ...]] = ("bound",)

    def __init__(
        self,
        d_model: int,
        *,
        d_head: int | None = None,
        q_activation: Literal["sigmoid", "silu"] = "sigmoid",
        v_activation: Literal["silu", "identity"] = "silu",
        d_conv: int | None = None,
        conv_bias: bool = False,
        bias: bool = True,
        norm: Literal["layer", "rms"] = "layer",
        norm_eps: float = 1e-5,
        lower_bound: Literal["stack", "layer"] = "stack",
        layer: int = 0,
        n_layers: int = 1,
        receives: tuple[str, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.norm, self.norm_eps = d_model, norm, norm_eps
        self.layer, self.n_layers, self.lower_bound = layer, n_layers, lower_bound
        self.q_activation, self.v_activation = q_activation, v_activation
        self.d_conv, self.conv_bias, self.bias = d_conv, conv_bias, bias
        check_positive("HGRN2", norm_eps=norm_eps)
        check_in("HGRN2", "q_activation", q_activation, ("sigmoid", "silu"))
        check_in("HGRN2", "v_activation", v_activation, ("silu", "identity"))
        check_conv("HGRN2", d_conv, conv_bias)
        check_layer("HGRN2", layer, n_layers)
        check_in("HGRN2", "lower_bound", lower_bound, ("stack", "layer"))
        check_receives("HGRN2", receives, self.shares)
        self.receives = tuple(receives) if lower_bound == "stack" else ()
        largest = next(n for n in range(128, 0, -1) if d_model % n == 0)
        self.d_head = largest if d_head is None else d_head
        check_positive_int("HGRN2", d_head=self.d_head)
        if d_model % self.d_head:
            raise ArgumentError(
                f"HGRN2: d_head must divide d_model={d_model}, got d_head={self.d_head}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self.n_heads = d_model // self.d_head
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, bias=bias, **to)
        self.conv1d = add_conv(self.heads, d_conv, bias=conv_bias, silu=False, **to)
        has_bound = layer > 0 and not self.receives
        self.bound = nn.Parameter(torch.empty(d_model, **to)) if has_bound else None
        self.out_norm = HeadNorm(1, d_model, norm=norm, eps=norm_eps, **to)
        self.out_proj = Linear(d_model, d_model, bias=bias, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.heads, self.conv1d, self.out_norm, self.out_proj):
            if part is not None:
                part.reset_parameters()
        if self.bound is not None:
            start_bound(self.bound, self.layer, self.n_layers)

    def signal_spec(self) -> dict[str, Part]:
        """See `Mixer.signal_spec`: the logit of the lower bound."""
        return {"bound": real(d_model=self.d_model)}

    @classmethod
    def shared_part(cls, layers: Iterable["HGRN2"]) -> CumulativeBounds:
        """See `Mixer.shared_part`: the bounds of these layers."""
        stack = list(layers)
        like = stack[0]._parameter()
        return CumulativeBounds(len(stack), stack[0].d_model, device=like.device, dtype=like.dtype)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what a convolution saw last."""
        memory = real(n_heads=self.n_heads, d_head=self.d_head, d_value=self.d_head)
        return {"memory": memory, **conv_spec(self.conv1d)}

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, signals: Signals
    ) -> tuple[Tensor, Any, Signals]:
        proj = self.heads.proj
        z, past = convolved(self.conv1d, proj(x.to(proj.weight.dtype)), state, reset)
        v, q, f = (wide(part) for part in self.heads.split(z))  # (B, T, H, d_head)
        q = q.sigmoid() if self.q_activation == "sigmoid" else F.silu(q)
        v = F.silu(v) if self.v_activation == "silu" else v
        k, g = f.neg().sigmoid(), log_sigmoid(f)  # 1 - f without cancellation
        bound = signals.get("bound", self.bound)
        if bound is not None:
            bound = wide(bound).unflatten(0, (self.n_heads, -1))  # (H, d_head)
            k = k * bound.neg().sigmoid()
            g = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + g)
        with without_autocast(x.device):
            o, memory = outer_scan(q, k, v, g, state["memory"], reset=reset)
        y = self.out_norm(o.flatten(-2).unsqueeze(-2))  # (B, T, d_model)
        return self.out_proj(y.to(self.out_proj.weight.dtype)), {"memory": memory, **past}, {}
