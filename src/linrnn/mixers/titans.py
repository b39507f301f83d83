"""Titans: a deep memory that learns by surprise, with momentum, and forgets."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.inner_memory import InnerMemory
from linrnn.nn import ConvHeads, GatedOut, l2_normalise
from linrnn.nn.conv_heads import check_conv, conv_spec
from linrnn.nn.linear import Linear
from linrnn.ops.attention import positions
from linrnn.ops.inner import ACTIVATIONS
from linrnn.state_spec import integer

_DEEPEST = 64  # a list of more layers than memory holds is refused before it is made


class Titans(Mixer):
    r"""Titans' long-term memory: a network trained while reading, with momentum and decay.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        theta_t = rate_max sigmoid(w_theta x_t + b_theta)
        eta_t, alpha_t = sigmoid(w_eta x_t + b_eta), sigmoid(w_alpha x_t + b_alpha)
        S_t = eta_t S_{t-1} - theta_t grad |f(k_t) - v_t|^2 at the weights where the mini-batch of
        t begins,   M_t = (1 - alpha_t) M_{t-1} + S_t
        o_t = f(q_t) with the weights M_t
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        f is a perceptron of ``depth`` layers, without biases. With mini_batch=1 gradients are at
        M_{t-1}, and a single layer is the delta rule with momentum. Initially weights of the memory
        are Glorot-uniform, b_alpha is -4, other biases 0, and everything else as in
        torch.nn.Linear and torch.nn.Conv1d.

    Args:
        n_heads: heads. Default: d_model / 64, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        depth: layers of the memory, at most 64; 1 is a matrix.
        expand: channels between its layers, times d_head.
        activation: "gelu", "gelu_tanh" or "silu", between its layers.
        mini_batch: rows whose gradients are taken at the same weights; they are computed together.
        rate_max: the largest theta. Rows of a mini-batch that have one key add up.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. This is the memory alone, LMM; `titans_attention` has MAG and
        MAL. Persistent tokens are not there, for first weights are learned. The paper does not say
        how gates start, and what they depend on beside the token.

    Example:
        >>> y, state = Titans(d_model=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["velocity"]["W1"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 1, 8, 16]))

    Reference:
        Behrouz, Zhong and Mirrokni, "Titans: Learning to Memorize at Test Time", 2025,
        arXiv:2501.00663. Key: behrouz2025titans.
    """

    family: ClassVar[str] = "test-time"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    in_laws: ClassVar[Mapping[str, Any]] = {"mini_batch": 4}
    choices = Choices(
        transition="gradient",
        gate="state",
        memory="network",
        normaliser="norm",
        steps="nonlinear",
        output="gated",
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        depth: int = 2,
        expand: int = 2,
        activation: Literal["gelu", "gelu_tanh", "silu"] = "gelu",
        mini_batch: int = 16,
        rate_max: float = 0.02,
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.depth, self.expand = d_model, depth, expand
        self.activation, self.mini_batch, self.rate_max = activation, mini_batch, rate_max
        self.d_conv, self.conv_bias, self.norm_eps = d_conv, conv_bias, norm_eps
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        sizes = {"depth": depth, "expand": expand, "mini_batch": mini_batch}
        check_positive_int("Titans", n_heads=self.n_heads, **sizes)
        if depth > _DEEPEST:
            raise ArgumentError(f"Titans: depth must be at most {_DEEPEST}, got {depth}.")
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int("Titans", d_head=self.d_head)
        check_positive("Titans", rate_max=rate_max, norm_eps=norm_eps)
        check_in("Titans", "activation", activation, ACTIVATIONS)
        check_conv("Titans", d_conv, conv_bias)
        to: Any = {"device": device, "dtype": dtype}
        conv: Any = {"d_conv": d_conv, "conv_bias": conv_bias}
        self.qkv = ConvHeads(d_model, self.n_heads, (self.d_head,) * 3, **conv, **to)
        self.gates = Linear(d_model, 3 * self.n_heads, **to)  # theta, eta, alpha
        widths = [self.d_head, *[expand * self.d_head] * (depth - 1), self.d_head]
        kind: Any = {"rule": "regression", "activation": activation, "bias": False}
        kind |= {"mini_batch": mini_batch, "momentum": True}
        self.memory = InnerMemory(self.n_heads, widths, **kind, **to)
        self.out = GatedOut(d_model, self.n_heads, self.d_head, eps=norm_eps, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.qkv, self.gates, self.out):
            part.reset_parameters()
        self.gates.bias.zero_()
        self.gates.bias[-self.n_heads :] = -4
        self.memory.reset_parameters(nn.init.xavier_uniform_)

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: moves of weights, past of the convolution, steps so far."""
        conv = conv_spec(self.qkv.conv1d)
        return {**self.memory.state_spec(), **conv, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.gates.weight.dtype)
        position = positions(state["position"], x.shape[1], reset)
        vectors, past = self.qkv.read(x, state, reset)
        q, k, v = map(wide, vectors)  # (B, T, H, d_head)
        theta, eta, alpha = wide(self.gates(x)).sigmoid().chunk(3, -1)  # (B, T, H)
        with without_autocast(x.device):
            q, k = l2_normalise(q), l2_normalise(k)
            numbers = {"momentum": eta, "decay": alpha}
            rate = self.rate_max * theta
            o, learned = self.memory(q, k, v, rate, position, state, **numbers)
        return self.out(o, x), {**learned, **past, "position": position[:, -1] + 1}
