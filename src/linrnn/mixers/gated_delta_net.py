"""Gated DeltaNet: the delta rule on a memory that forgets."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta
from linrnn.nn import bounded_exp, empty_parameters, softplus_steps


class GatedDeltaNet(ConvDelta):
    r"""Gated DeltaNet: the delta rule on a memory that first forgets, at a rate the input chooses.

    Equation:
        q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then scaled to
        length 1; the convolution is depthwise. In each head
        S' = exp(g_t) S_{t-1},   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T      d_key by d_value
        g_t = -exp(A_log) softplus(w_a x_t + dt_bias),   beta_t = beta_max sigmoid(w_b x_t)
        o_t = S_t^T q_t / sqrt(d_key)
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        Initially exp(A_log) is uniform on [0.01, 16], softplus(dt_bias) log-uniform on
        [0.001, 0.1], or dt_bias 1, and everything else as in `torch.nn.Linear` and
        `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: three quarters of d_model / 256, rounded, or 1.
        key_heads: heads of queries and keys, which n_heads / key_heads heads of values share, each
            with a memory of its own; a divisor. Default: n_heads.
        d_key: channels of a head's keys. Default: 3/4 d_model / n_heads, rounded up.
        d_value: channels of a head's values. Default: twice d_key.
        beta_max: largest rate, above 0 and at most 2, with which a memory can change its sign.
        gate: "silu" as above, "sigmoid", or "none": y_t = W_o concat of the normed o_t.
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution.
        conv_bias: add a bias to the convolution.
        dt_start: "log-uniform" or "one", where dt_bias starts; the latter in Qwen3-Next.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. Published is exp(A_log) on [0, 16], whose lower end has no
        logarithm. The norm of the heads has no weight: that of W_o is the same. Norm and
        feed-forward layer around it belong to the block.

    Example:
        >>> y, state = GatedDeltaNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 3, 6]), torch.Size([2, 3, 24]))

    Reference:
        Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
        2025, arXiv:2412.06464. Key: yang2025gated.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "dt_bias")

    choices = Choices(
        transition="decay and delta",
        gate="input",
        memory="matrix",
        normaliser="norm",
        output="gated",
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        key_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        beta_max: float = 1.0,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        dt_start: Literal["log-uniform", "one"] = "log-uniform",
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.beta_max, self.gate = d_model, beta_max, gate
        self.d_conv, self.conv_bias, self.dt_start = d_conv, conv_bias, dt_start
        check_in("GatedDeltaNet", "gate", gate, ("silu", "sigmoid", "none"))
        check_in("GatedDeltaNet", "dt_start", dt_start, ("log-uniform", "one"))
        self.n_heads = max(1, round(0.75 * d_model / 256)) if n_heads is None else n_heads
        check_positive_int("GatedDeltaNet", n_heads=self.n_heads)
        self.key_heads = self.n_heads if key_heads is None else key_heads
        self.d_key = -(-3 * d_model // (4 * self.n_heads)) if d_key is None else d_key
        self.d_value = 2 * self.d_key if d_value is None else d_value
        self.norm_eps = norm_eps
        to: Any = {"device": device, "dtype": dtype}
        self._make(self.key_heads, {"eps": norm_eps, "gate": gate}, **to)
        empty = empty_parameters(device, dtype)
        self.a_proj = nn.Linear(d_model, self.n_heads, bias=False, **to)
        self.A_log, self.dt_bias = empty(self.n_heads), empty(self.n_heads)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.a_proj.reset_parameters()
        self.A_log.copy_(torch.empty(self.n_heads, dtype=torch.float64).uniform_(0.01, 16).log())
        if self.dt_start == "one":
            self.dt_bias.fill_(1)
        else:
            self.dt_bias.copy_(softplus_steps(self.n_heads, 1e-3, 0.1))

    def _log_decay(self, x: Tensor) -> Tensor:
        step = F.softplus(wide(self.a_proj(x)) + wide(self.dt_bias))
        return -bounded_exp(wide(self.A_log)) * step
