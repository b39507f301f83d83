"""Momentum DeltaNet: a delta rule whose corrections have momentum."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, square_sizes
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.nn import bounded_exp, empty_parameters
from linrnn.nn.heads import for_each_head
from linrnn.nn.linear import Linear
from linrnn.ops.matrix.momentum_delta import momentum_scan, momentum_step
from linrnn.state_spec import Part


class MomentumDeltaNet(ConvDelta):
    r"""Momentum DeltaNet: delta-rule updates with momentum in a second memory.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x))     depthwise, in heads
        q' = norm(q - exp(D) k),   k' = norm(k),   norm scales to length 1
        eta_t = 1 + tanh(w_e x_t / sqrt(d_model)),   r_t = (exp(phi) eta_t)^2
        alpha_t = exp(g_t) / (1 + r_t),   beta_t = beta_max sigmoid(w_b x_t) r_t / (1 + r_t)
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   mu_t = max(exp(h_t), exp(log_mu_min))
        h_t = -exp(Mu_log) softplus(w_m x_t + mu_bias)
        M_t = mu_t M_{t-1} + eta_t k'_t (v_t - alpha_t S_{t-1}^T k'_t)^T     d_key by d_value
        S_t = alpha_t S_{t-1} + beta_t M_t,   o_t = S_t^T q'_t / sqrt(d_key)
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        Initially exp(A_log) and exp(Mu_log) are uniform on [0.01, 16], exp(phi) on [0.01, 4] and
        exp(D) on [0.01, 1], softplus(dt_bias) is log-uniform on [0.001, 0.1], mu_bias is dt_bias,
        and everything else is as in `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: d_model / 256, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with its own memories; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        beta_max: largest rate, above 0 and at most 2.
        read: "decayed" as above, or "whole": M is moved by v_t - S_{t-1}^T k'_t.
        correction: False for queries as they are.
        log_mu_min: see above, at most 0; None for no bound.
        gate: "silu" as above, or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. Published are uniform starts from 0, which has no logarithm.
        Heads that share keys have an A_log, Mu_log and phi each. The norm of the heads has no
        weight: that of W_o is the same. No native kernel computes it: chunks of 32 steps are
        triangular systems of PyTorch's operators, one after the other.

    Example:
        >>> y, state = MomentumDeltaNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["momentum"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 8]), torch.Size([2, 2, 4, 8]))

    Reference:
        Huang et al., "MDN: Parallelizing Stepwise Momentum for Delta Linear Attention", 2026,
        arXiv:2605.05838. Key: huang2026mdn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("phi", "D")
    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        output="gated",
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        *("decay.A_log", "decay.dt_bias", "inertia.A_log", "inertia.dt_bias", "phi"),
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        key_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        beta_max: float = 1.0,
        read: Literal["decayed", "whole"] = "decayed",
        correction: bool = True,
        log_mu_min: float | None = -2.0,
        gate: Literal["silu", "none"] = "silu",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max, self.gate, self.norm_eps = d_model, beta_max, gate, norm_eps
        self.read, self.correction, self.log_mu_min = read, correction, log_mu_min
        self.d_conv, self.conv_bias = d_conv, conv_bias
        check_in("MomentumDeltaNet", "gate", gate, ("silu", "none"))
        check_in("MomentumDeltaNet", "read", read, ("decayed", "whole"))
        if log_mu_min is not None and not float("-inf") < log_mu_min <= 0:
            raise ArgumentError(
                "MomentumDeltaNet: log_mu_min must be at most 0 and finite, or None, got "
                f"{log_mu_min}. Take -2."
            )
        widths: Any = {"width": 256, "values": 2}
        sizes = square_sizes("MomentumDeltaNet", d_model, n_heads, d_key, d_value, **widths)
        self.n_heads, self.d_key, self.d_value = sizes
        self.key_heads = self.n_heads if key_heads is None else key_heads
        to: Any = {"device": device, "dtype": dtype}
        self._make(self.key_heads, {"eps": norm_eps, "gate": gate}, **to)
        self.decay = LogDecay("MomentumDeltaNet", d_model, self.n_heads, **to)
        self.inertia = LogDecay("MomentumDeltaNet", d_model, self.n_heads, **to)
        self.eta_proj = Linear(d_model, self.n_heads, bias=False, **to)
        empty = empty_parameters(device, dtype)
        self.phi = empty(self.n_heads)
        self.D = empty(self.key_heads) if correction else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.inertia.reset_parameters()
        self.inertia.dt_bias.copy_(self.decay.dt_bias)
        self.eta_proj.reset_parameters()
        for parameter, most in ((self.phi, 4), (self.D, 1)):
            if parameter is not None:
                start = torch.empty(parameter.shape, dtype=torch.float64).uniform_(0.01, most)
                parameter.copy_(start.log())

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, M, and what the convolution of q, k and v saw last."""
        spec = super().state_spec()
        return {**spec, "momentum": spec["memory"]}

    def _rates(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``eta, alpha, mu, beta``, (B, T, H) each."""
        eta = 1 + (wide(self.eta_proj(x)) / self.d_model**0.5).tanh()  # (B, T, H)
        pull = (bounded_exp(wide(self.phi)) * eta).square()
        log_mu = self.inertia(x)  # (B, T, H)
        if self.log_mu_min is not None:
            log_mu = log_mu.clamp(min=self.log_mu_min)
        beta = self._rate(x, v) * (pull / (1 + pull))  # (B, T, H)
        return eta, self.decay(x).exp() / (1 + pull), log_mu.exp(), beta

    def _recall(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: Any,
        reset: Tensor | None,
        scan: Callable[..., tuple[Tensor, ...]] = momentum_scan,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.D is not None:
            q = q - bounded_exp(wide(self.D))[:, None] * k  # (B, T, H, d_key)
        q, k, v = self._activated(q, k, v)  # (B, T, H, d_key), (B, T, H, d_key), (B, T, H, d_value)
        q, k = (for_each_head(z, self.n_heads) for z in (q, k))
        with without_autocast(x.device):
            eta, alpha, mu, beta = self._rates(x, v)  # each (B, T, H)
            p = alpha[..., None] * k if self.read == "decayed" else k  # (B, T, H, d_key)
            vectors = (q * self.d_key**-0.5, eta[..., None] * k, v, p)
            start = (state["memory"], state["momentum"])
            o, memory, momentum = scan(*vectors, alpha, mu, beta, *start, reset, None)
        return o, {"memory": memory, "momentum": momentum}

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        recall = partial(self._recall, scan=momentum_step)
        y, state = self._around(recall, x_t.unsqueeze(1), state, None)  # (B, 1, d_model)
        return y.squeeze(1), state  # (B, d_model)
