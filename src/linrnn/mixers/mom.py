"""Mixture of memories: a router sends every step to a few of several memories."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import wide_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.mixers._families.routes import Route
from linrnn.nn import CausalConv, GatedOut, Heads, empty_parameters, l2_normalise
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.state_spec import Part, real


class MoM(Mixer):
    r"""Mixture of memories: a router picks a few Gated DeltaNet memories for each step.

    Equation:
        s_t = softmax(R x_t)                                  one for each memory
        w_t = s_t where it is among the top largest, and 0 elsewhere, divided by the sum
        Memory m sees those steps alone for which w_t is not 0, one after the other:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k^m x)), silu(conv(W_v^m x)), q and k then scaled
        to length 1; the convolution is depthwise, and that of all memories. In each head
        S' = exp(g_t) S,   S = S' + beta_t k_t (v_t - S'^T k_t)^T,   o_t^m = S^T q_t / sqrt(d_key)
        g_t = -exp(A_log) softplus(W_a^m x_t + dt_bias),   beta_t = sigmoid(W_b^m x_t)
        o_t = sum over m of w_t^m o_t^m
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        Initially exp(A_log) is uniform on [0.01, 16], softplus(dt_bias) log-uniform on
        [0.001, 0.1], and everything else as in `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        memories: that are routed to.
        top: how many of them a step reads and writes. With 1 the router learns nothing: w_t is 1.
        shared: add a memory that every step reads and writes, with a weight of 1.
        own_maps: False for W_k, W_v, W_a and W_b that all memories have in common.
        n_heads: heads. Default: half of d_model / 256, rounded, or 1.
        d_key: channels of a head's keys. Default: d_model / 2 / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        gate: "silu" as above, or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. The loss that keeps memories equally busy is not there. All
        steps are mapped for every memory, which then reads as many as the one with the most does;
        in a graph it reads all. Published is exp(A_log) on [0, 16], whose lower end has no
        logarithm. The norm of the heads has no weight: that of W_o is the same.

    Example:
        >>> y, state = MoM(d_model=8, memories=3, n_heads=1)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 3, 1, 4, 8]), torch.Size([2, 3, 3, 16]))

    Reference:
        Du et al., "MoM: Linear Sequence Modeling with Mixture-of-Memories", ICLR 2026,
        arXiv:2502.13685. Key: du2026mom.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        steps="staged",
        output="gated",
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("decay.A_log", "decay.dt_bias")
    weight_parameters: ClassVar[tuple[str, ...]] = ("router",)
    # rounded it would send steps to other memories
    single_precision: ClassVar[tuple[str, ...]] = ("router",)

    def __init__(
        self,
        d_model: int,
        *,
        memories: int = 8,
        top: int = 2,
        shared: bool = False,
        own_maps: bool = True,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        gate: Literal["silu", "none"] = "silu",
        d_conv: int = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.memories, self.top = d_model, memories, top
        self.shared, self.own_maps, self.gate = shared, own_maps, gate
        self.d_conv, self.conv_bias, self.norm_eps = d_conv, conv_bias, norm_eps
        check_positive_int("MoM", memories=memories, top=top, d_conv=d_conv)
        check_in("MoM", "gate", gate, ("silu", "none"))
        if top > memories:
            raise ArgumentError(f"MoM: top must be at most memories={memories}, got {top}.")
        if top == memories and not own_maps:
            raise ArgumentError(
                f"MoM: top must be below memories={memories} without own_maps, got {top}. All "
                "memories would be the same."
            )
        sizes = wide_sizes("MoM", d_model, n_heads, d_key, d_value, share=(1, 2))
        self.n_heads, self.d_key, self.d_value = H, K, V = sizes
        check_positive_int("MoM", d_key=K, d_value=V)
        self.count = memories + shared
        self.maps = maps = self.count if own_maps else 1
        to: Any = {"device": device, "dtype": dtype}
        self.router = empty_parameters(**to)(memories, d_model)
        self.heads = Heads(d_model, (H, maps * H, maps * H, maps * H), (K, K, V, 1), **to)
        self.conv1d = CausalConv(H * (2 * K + V), d_conv, bias=conv_bias, silu=True, **to)
        self.decay = LogDecay("MoM", d_model, H, copies=maps, **to)
        self.out = GatedOut(d_model, H, V, eps=norm_eps, gate=gate, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.uniform_(self.router, -(self.d_model**-0.5), self.d_model**-0.5)
        for part in (self.heads, self.conv1d, self.decay, self.out):
            part.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S of each memory, and what its convolution saw last."""
        sizes = {"heads": self.n_heads, "d_key": self.d_key, "d_value": self.d_value}
        channels = self.n_heads * (2 * self.d_key + self.d_value)
        past = real(memory=self.count, past=self.d_conv - 1, channels=channels)
        return {"memory": real(memory=self.count, **sizes), "conv": past}

    def _weights(self, x: Tensor) -> Tensor:
        """Weights of the memories, (B, T, count), in at least float32."""
        scores = F.linear(wide(x), wide(self.router)).softmax(-1)
        weights = scores * (_places(scores) < self.top)
        weights = weights / weights.sum(-1, keepdim=True)
        return F.pad(weights, (0, int(self.shared)), value=1.0)

    def _seen(self, x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Parts of what the convolution reads (B, count, T, channels), rates and decays (.., H)."""
        q, k, v, beta = self.heads(x)
        k, v, beta = (z.unflatten(2, (self.maps, self.n_heads)) for z in (k, v, beta))
        each = (z.flatten(3).transpose(1, 2) for z in (k, v))  # (B, maps, T, channels)
        k, v = (z.expand(-1, self.count, -1, -1) for z in each)
        q = q.flatten(2)[:, None].expand(-1, self.count, -1, -1)
        beta, g = wide(beta[..., 0]).sigmoid(), self.decay(x)  # (B, T, maps, H)
        beta, g = (z.transpose(1, 2).expand(-1, self.count, -1, -1) for z in (beta, g))
        return [q, k, v], beta, g

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.out.out_proj.weight.dtype)
        H, K, V = self.n_heads, self.d_key, self.d_value
        with without_autocast(x.device):
            weights = self._weights(x)
        parts, beta, g = self._seen(x)
        past = state["conv"].to(parts[0].dtype)
        # (B, maps, T)
        route = Route(weights.transpose(1, 2) != 0, reset)  # a step of NaN spoils all
        rows = torch.cat([route.gather(z) for z in parts], -1)  # (B count, rows, channels)
        c, _ = self.conv1d(rows, past.flatten(0, 1), route.reset)  # (R, S, channels)
        # the batch alone is the first axis, where exported steps are taken apart
        c = wide(c).unflatten(0, route.sent.shape[:2])  # (B, maps, S, channels)
        # (B, maps, S, H K), (B, maps, S, H K), (B, maps, S, H V)
        q, k, v = c.split([H * K, H * K, H * V], -1)
        # (B, maps, S, H, K), (B, maps, S, H, K), (B, maps, S, H, V)
        q, k, v = q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (H, V))
        # (R, S, H, K), (R, S, H, K), (R, S, H, V)
        q, k, v = (z.flatten(0, 1) for z in (l2_normalise(q), l2_normalise(k), v))
        beta, g = route.gather(beta), route.gather(g)
        start, scale = state["memory"].flatten(0, 1), K**-0.5  # start: (R, H, K, V)
        with without_autocast(x.device):
            o, memory = delta_scan(q, k, v, beta, g, start, scale=scale, reset=route.reset)
            # (B, maps, T, H V)
            o = route.scatter(o.flatten(2)) * weights.transpose(1, 2)[..., None]
        y = self.out(o.sum(1).unflatten(-1, (H, V)), x)  # (B, T, d_model)
        return y, {"memory": route.last(memory), "conv": wide(route.last_rows(rows, past))}


def _places(scores: Tensor) -> Tensor:
    """How many scores of the last axis come before each: larger ones, and equal ones before it.

    Comparisons, for which a recorded step has instructions, and ties go the same way always.
    """
    one, other = scores[..., :, None], scores[..., None, :]
    i = torch.arange(scores.shape[-1], device=scores.device)
    # in words of logic: onnxruntime chooses among numbers alone
    before = (other > one) | ((i < i[:, None]) & (other >= one))
    return before.to(scores.dtype).sum(-1)
