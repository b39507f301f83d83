"""GateLoop: linear attention whose memory decays and turns as the input says."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, lecun_normal
from linrnn.nn.linear import Linear
from linrnn.ops import linear_scan
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.ops.matrix.turns import phases
from linrnn.state_spec import Part, real


class GateLoop(Mixer):
    r"""GateLoop: linear attention with input-dependent complex decays.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t           in each head
        alpha_t, beta_t = W_a x_t + b_a                     in each channel of keys, or each head
        a_t = sigmoid(alpha_t) exp(i beta_t),               or with z_t = alpha_t + i beta_t
        a_t = sigmoid(|z_t|) z_t / |z_t|                    1/2 where z_t is 0
        S_t = diag(a_t) S_{t-1} + k_t v_t^T,   o_t = Re(S_t^T q_t)       S complex
        y_t = W_o (silu(W_g x_t) * norm(o_t))
        Computed with the sum phi_t of all phases: S_t exp(-i phi_t) is a memory that decays only,
        and cos and sin of phi_t are factors of queries and keys.
        Initially weights are N(0, 1 / channels in), b_a = 0.

    Args:
        d_inner: channels of queries, keys and values together. Default: d_model.
        d_head: channels of a head, a divisor of d_inner. 1 is a recurrence of d_inner numbers.
        transition: "split" takes decay and phase from two numbers, "polar" from one complex one,
            whose decay is at least 1/2.
        transition_of: each "channel" of the keys, or each "head".
        norm: over all heads together, "none" or "layer", with 1e-5 under the root.

    Departures from the paper:
        The paper names no initial values. With those of torch.nn, smaller by sqrt(3), a product of
        four of them all but vanishes in a second layer without a norm before it.
        Public code slows the training of W_a down by a factor on its gradient; here it is one of
        `recurrent_parameters`, which have a learning rate of their own.

    Example:
        >>> y, state = GateLoop(d_model=8, d_head=4)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 8, 4]))

    Reference:
        Katsch, "GateLoop: Fully Data-Controlled Linear Recurrence for Sequence Modeling", 2023,
        arXiv:2311.01927. Key: katsch2023gateloop.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="complex diagonal", gate="input", memory="vector", output="gated")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("a_proj.weight", "a_proj.bias")

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        d_head: int = 1,
        transition: Literal["split", "polar"] = "split",
        transition_of: Literal["channel", "head"] = "channel",
        norm: Literal["none", "layer"] = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_head, self.norm = d_model, d_head, norm
        self.transition, self.transition_of = transition, transition_of
        self.d_inner = d_model if d_inner is None else d_inner
        check_positive_int("GateLoop", d_inner=self.d_inner, d_head=d_head)
        check_in("GateLoop", "transition", transition, ("split", "polar"))
        check_in("GateLoop", "transition_of", transition_of, ("channel", "head"))
        check_in("GateLoop", "norm", norm, ("none", "layer"))
        if self.d_inner % d_head:
            raise ArgumentError(
                f"GateLoop: d_head must divide d_inner={self.d_inner}, got d_head={d_head}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self.n_heads = self.d_inner // d_head
        self.heads = Heads(d_model, self.n_heads, (d_head,) * 3, **to)
        self.a_proj = Linear(
            d_model, 2 * (self.d_inner if transition_of == "channel" else self.n_heads), **to
        )
        self.out = GatedOut(d_model, 1, self.d_inner, norm=norm, eps=1e-5, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.a_proj, self.out.gate_proj, self.out.out_proj)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the rows of S, real parts before imaginary ones."""
        return {"memory": real(n_heads=self.n_heads, parts=2 * self.d_head, d_value=self.d_head)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, d_head)
        log_a, phase = self._transition(x)
        with without_autocast(x.device):
            o, memory = _turning(q, k, v, log_a, phase, state["memory"], reset)
        return self.out(o.flatten(-2).unsqueeze(-2), x), {"memory": memory}  # (B, T, d_model)

    def _transition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the modulus, and phase, of every a_t: (B, T, H, d_head or 1)."""
        parts = wide(self.a_proj(x.to(self.a_proj.weight.dtype)))
        alpha, beta = (z.unflatten(-1, (self.n_heads, -1)) for z in parts.chunk(2, -1))
        if self.transition == "split":
            return F.logsigmoid(alpha), beta
        # nothing is differentiable at the origin, where the slopes are those of z = 1
        origin = (alpha.square() + beta.square() == 0).to(alpha.dtype)
        alpha = alpha + origin
        return F.logsigmoid(torch.hypot(alpha, beta) - origin), torch.atan2(beta, alpha)


def _turning(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, phase: Tensor, S: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A real scan of twice the width, in a frame that turns with the memory."""
    total, _ = phases(phase, reset)  # (B, T, H, N) or (B, H, N), and N is 1 of a head
    cos, sin = total.cos().to(q.dtype), total.sin().to(q.dtype)
    q, k = (torch.cat([z * cos, -z * sin], -1) for z in (q, k))  # (B, T, H, 2 d_head)
    if v.shape[-1] == 1:  # no matrices, but two numbers a head
        h, last = linear_scan(log_a.exp(), k * v, S.squeeze(-1), reset=reset)
        o, S = (q * h).sum(-1, keepdim=True), last[..., None]
    else:
        g = log_a.squeeze(-1) if log_a.shape[-1] == 1 else torch.cat([log_a, log_a], -1)
        o, S = outer_scan(q, k, v, g, S, reset=reset)
    re, im = S.chunk(2, 2)  # (B, H, d_head, d_value)
    cos, sin = cos[:, -1, :, :, None], sin[:, -1, :, :, None]
    return o, torch.cat([cos * re - sin * im, sin * re + cos * im], 2)
