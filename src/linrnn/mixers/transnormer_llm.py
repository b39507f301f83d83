"""The linear attention of TransNormerLLM, also known as lightning attention."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, head_norm
from linrnn.nn.channel_mix import check_layer
from linrnn.nn.linear import Linear
from linrnn.ops.attention import positions
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, integer, real


class TransNormerLLM(Mixer):
    r"""TransNormerLLM: linear attention with a fixed decay set by head and layer.

    Equation:
        q_t, k_t = silu(W_q x_t), silu(W_k x_t),   v_t, u_t = W_v x_t, W_u x_t    in each head
        S_t = lambda S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t
        y_t = W_o (u_t * o_t / sqrt(mean(o_t^2) + norm_eps))      the mean over all heads together
        or silu(W_v x_t) for v_t, and sigmoid(W_u x_t) for u_t
        lambda of head h = 0..H-1 in layer l = 0..L-1:
        "paper"     exp(-8 h / H (1 - l / L)), of which head 0 forgets nothing
        "released"  exp(-slope_h (1 - l / (L - 1) + 1e-5)), slope_h = 2^(-8 (h + 1) / H); where H is
                    no power of 2, the slopes of the next lower one and every other one of the next
        "minimax"   exp(-slope_h (1 - l / (L - 1 + 1e-5) + 1e-5)), slope_h as above for every H
        Positions (lrpe): q_t becomes [q_t cos(t theta); q_t sin(t theta)], k_t likewise, so that
        channel j of a pair of steps counts cos((t - s) theta_j) times. theta is learned, from
        10000^(-2 j / (H d_head)), j over all heads.
        Weights are N(0, init_std^2).

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        decay: "paper", "released" or "minimax", as above: the first differs from the others by
            orders of magnitude.
        v_activation: "identity", or "silu", as above.
        gate: "identity", or "sigmoid", as above.
        lrpe: positions in the "first" layer as published, "always" or "never".
        norm_eps: of the norm.
        norm_weight: multiply the normed channels, those of all heads, by a learned vector, which
            begins as ones. W_o can do the same; the checkpoints of MiniMax store the two apart.
        init_std: of the weights. Default: of each, 1 / sqrt(its channels in), which is the
            published 0.02 at a width of 2,500.
        layer, n_layers: place in the stack, counted from 0.

    Departures from the paper:
        The feed-forward layer and the norm before the layer belong to the block. The lightning
        attention of MiniMax-01 has decay "minimax", lrpe "never", v_activation "silu" and gate
        "sigmoid" (arXiv:2501.08313). Without ``norm_weight`` the weight of its norm is that of W_o.

    Example:
        >>> y, state = TransNormerLLM(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 8, 4]))

    Reference:
        Qin et al., "TransNormerLLM: A Faster and Better Large Language Model with Improved
        TransNormer", 2023, arXiv:2307.14995. Key: qin2023transnormerllm.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("theta",)

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="scalar", gate="fixed", memory="matrix", normaliser="norm", output="gated"
    )
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        decay: Literal["paper", "released", "minimax"] = "paper",
        v_activation: Literal["identity", "silu"] = "identity",
        gate: Literal["identity", "sigmoid"] = "identity",
        lrpe: Literal["first", "always", "never"] = "first",
        norm_eps: float = 1e-6,
        norm_weight: bool = False,
        init_std: float | None = None,
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "TransNormerLLM"
        self.d_model, self.decay, self.lrpe = d_model, decay, lrpe
        self.v_activation, self.gate = v_activation, gate
        self.norm_eps, self.norm_weight, self.init_std = norm_eps, norm_weight, init_std
        self.layer, self.n_layers = layer, n_layers
        self.n_heads = max(1, d_model // 128) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        check_in(where, "decay", decay, ("paper", "released", "minimax"))
        check_in(where, "v_activation", v_activation, ("identity", "silu"))
        check_in(where, "gate", gate, ("identity", "sigmoid"))
        check_in(where, "lrpe", lrpe, ("first", "always", "never"))
        check_positive(where, norm_eps=norm_eps, init_std=1.0 if init_std is None else init_std)
        check_layer(where, layer, n_layers)
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 4, **to)
        turns = lrpe == "always" or (lrpe == "first" and layer == 0)
        self.theta = nn.Parameter(torch.empty(self.n_heads, self.d_head, **to)) if turns else None
        width = self.n_heads * self.d_head
        self.out_proj = Linear(width, d_model, bias=False, **to)
        self.norm_scale = nn.Parameter(torch.empty(width, **to)) if norm_weight else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.heads.proj, self.out_proj):
            nn.init.normal_(linear.weight, std=self.init_std or linear.in_features**-0.5)
        if self.norm_scale is not None:
            nn.init.ones_(self.norm_scale)
        if self.theta is not None:
            j = torch.arange(self.theta.numel(), dtype=torch.float64)
            self.theta.copy_((10_000 ** (-2 * j / len(j))).view(self.theta.shape))

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and with positions the steps since the last reset."""
        if self.theta is None:
            d_head = self.d_head
            return {"memory": real(n_heads=self.n_heads, d_key=d_head, d_value=d_head)}
        memory = real(n_heads=self.n_heads, d_key=2 * self.d_head, d_value=self.d_head)
        return {"memory": memory, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v, u = (wide(z) for z in self.heads(x))  # (B, T, H, d_head)
        q, k, last = F.silu(q), F.silu(k), {}
        v = F.silu(v) if self.v_activation == "silu" else v
        u = u.sigmoid() if self.gate == "sigmoid" else u
        if self.theta is not None:
            position = positions(state["position"], x.shape[1], reset)
            # in double precision: a float32 is 1e-3 wrong at 16,384 steps
            angle = position[..., None, None] * self.theta.double()
            cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
            q, k = (torch.cat([z * cos, z * sin], -1) for z in (q, k))  # (B, T, H, 2 d_head)
            last["position"] = position[:, -1] + 1
        with without_autocast(x.device):
            g = -self._rates().to(x.device)
            o, last["memory"] = outer_scan(q, k, v, g, state["memory"], reset=reset)
            y = u.flatten(-2) * head_norm(o.flatten(-2), "rms", self.norm_eps)  # (B, T, H d_head)
            y = y if self.norm_scale is None else y * self.norm_scale.to(y.dtype)
        return self.out_proj(y.to(self.out_proj.weight.dtype)), last

    def _rates(self) -> Tensor:
        """How much each head forgets, (H,)."""
        heads, layer, depth = self.n_heads, self.layer, self.n_layers
        if self.decay == "paper":
            places = torch.arange(heads, dtype=torch.float64, device="cpu")
            return 8 * places / heads * (1 - layer / depth)
        if self.decay == "released":
            return _slopes(heads) * (1 - layer / max(depth - 1, 1) + 1e-5)
        places = torch.arange(1, heads + 1, dtype=torch.float64, device="cpu")
        slopes: Tensor = 2 ** (-8 * places / heads)
        return slopes * (1 - layer / (depth - 1 + 1e-5) + 1e-5)


def _slopes(heads: int) -> Tensor:
    """``2^(-8 (h + 1) / heads)``, and where that is no power of 2 those of two that are."""
    lower = 1 << (heads.bit_length() - 1)
    first, finer = (
        2 ** (-8 * torch.arange(1, n + 1, dtype=torch.float64, device="cpu") / n)
        for n in (lower, 2 * lower)
    )
    return torch.cat([first, finer[: 2 * (heads - lower) : 2]])
