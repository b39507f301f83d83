"""The matrix LSTM of xLSTM."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.mlstm import check_gate, forget_slowly, memory_spec, read_memory
from linrnn.nn import BlockDiagonal, CausalConv, HeadNorm
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part


class MLSTM(Mixer):
    r"""mLSTM: a matrix memory per head with a forget gate and an exponential input gate.

    Equation:
        [u; z] = W_up x,  c = SiLU(conv(u) + b)               each in R^{d_inner}, d_conv taps
        q, k, v = W_q c, W_k c, W_v u                         in diagonal blocks of qkv_block
        i = W_i [q; k; v] + b_i,  f = W_f [q; k; v] + b_f     a number a head
        S_t = sigmoid(f_t) S_{t-1} + exp(i_t) k_t v_t^T
        n_t = sigmoid(f_t) n_{t-1} + exp(i_t) k_t
        h_t = S_t^T q_t / max(|n_t . q_t|, sqrt(d_head))
        y = W_down ((w * layer_norm(h in each head) + skip * c) * SiLU(z))
        The state holds S exp(-m) and n exp(-m) with m_t = max(log sigmoid(f_t) + m_{t-1}, i_t), so
        nothing overflows; the quotient does not depend on m, but that 1e-6 is added to what is
        divided by.
        Initially W_i = W_f = 0, b_f from 3 in the first head to 6 in the last, b_i ~ N(0, 0.1^2),
        skip = w = 1, W_down ~ N(0, 4 / d_model), the rest N(0, 0.4 / d_model), conv as torch.nn.

    Args:
        n_heads: heads, a divisor of d_inner.
        d_inner: channels inside. Default: 2 d_model, rounded up to a multiple of 4 n_heads.
        d_conv: taps of the convolution.
        qkv_block: width of the blocks of W_q, W_k and W_v, a divisor of d_inner.
        input_gate: "exp", or "sigmoid": sigmoid(i_t) for exp(i_t), and no m: mLSTMsig of
            Beck et al., 2025, "Tiled Flash Linear Attention", arXiv 2503.14376.
        normalize: divide; False with the sigmoid gate alone: h_t = S_t^T q_t / sqrt(d_head).
        norm_eps: of the norm of heads.

    Departures from the paper:
        Extension beyond the survey. The code divides the initial W_down by the depth, which a
        layer does not know. `MLSTMLarge` is the layer of xLSTM 7B.

    Example:
        >>> y, state = MLSTM(d_model=4, n_heads=2)(torch.randn(2, 100, 4))
        >>> y.shape, state["memory"].shape, state["m"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 2, 4, 5]), torch.Size([2, 2]))

    Reference:
        Beck et al., "xLSTM: Extended Long Short-Term Memory", 2024, arXiv:2405.04517.
        Key: beck2024xlstm.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="scalar", gate="input", memory="matrix", normaliser="sum", output="gated"
    )
    widening: ClassVar[bool] = True

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int = 4,
        d_inner: int | None = None,
        d_conv: int = 4,
        qkv_block: int = 4,
        input_gate: Literal["exp", "sigmoid"] = "exp",
        normalize: bool = True,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.d_conv = d_model, n_heads, d_conv
        self.qkv_block, self.norm_eps = qkv_block, norm_eps
        self.input_gate, self.normalize = input_gate, normalize
        check_gate("MLSTM", input_gate, normalize)
        check_positive_int("MLSTM", n_heads=n_heads, d_conv=d_conv, qkv_block=qkv_block)
        check_positive("MLSTM", norm_eps=norm_eps)
        default = -(-d_model // (2 * n_heads)) * 4 * n_heads
        self.d_inner = inner = default if d_inner is None else d_inner
        check_positive_int("MLSTM", d_inner=inner)
        if inner % n_heads or inner % qkv_block:
            raise ArgumentError(
                f"MLSTM: n_heads and qkv_block must divide d_inner={inner}, "
                f"got n_heads={n_heads}, qkv_block={qkv_block}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self.proj_up = Linear(d_model, 2 * inner, bias=False, **to)
        self.conv1d = CausalConv(inner, d_conv, silu=True, **to)
        self.q_proj, self.k_proj, self.v_proj = (
            BlockDiagonal(inner, inner // qkv_block, bias=False, **to) for _ in range(3)
        )
        self.igate, self.fgate = (Linear(3 * inner, n_heads, **to) for _ in range(2))
        self.outnorm = HeadNorm(n_heads, inner // n_heads, norm="layer", eps=norm_eps, **to)
        self.learnable_skip = nn.Parameter(torch.empty(inner, **to))
        self.proj_down = Linear(inner, d_model, bias=False, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.proj_up, self.q_proj, self.k_proj, self.v_proj):
            nn.init.normal_(part.weight, std=(0.4 / self.d_model) ** 0.5)
        nn.init.normal_(self.proj_down.weight, std=2 * self.d_model**-0.5)
        self.conv1d.reset_parameters()
        self.outnorm.reset_parameters()
        nn.init.ones_(self.learnable_skip)
        forget_slowly(self.fgate)
        nn.init.zeros_(self.igate.weight)
        nn.init.normal_(self.igate.bias, std=0.1)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S with n as last column, m, and u of the last steps."""
        d_head = self.d_inner // self.n_heads
        memory = memory_spec(self.n_heads, d_head, d_head, **self._gating)
        return {**memory, "conv": self.conv1d.state_spec()}

    @property
    def _gating(self) -> dict[str, Any]:
        return {"input_gate": self.input_gate, "normalize": self.normalize}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        u, z = self.proj_up(x.to(self.proj_up.weight.dtype)).chunk(2, -1)  # (B, T, d_inner)
        c, past = self.conv1d(u, state["conv"], reset)  # and SiLU
        q, k, v = self.q_proj(c), self.k_proj(c), self.v_proj(u)  # each (B, T, d_inner)
        qkv = torch.cat([q, k, v], -1)  # (B, T, 3 d_inner)
        i, f = (wide(gate(qkv)) for gate in (self.igate, self.fgate))  # (B, T, H)
        q, k, v = (wide(part).unflatten(-1, (self.n_heads, -1)) for part in (q, k, v))
        h, memory = read_memory(q, k, v, i, f, state, reset, **self._gating)
        mixed = self.outnorm(h).to(c.dtype) + self.learnable_skip * c  # (B, T, d_inner)
        return self.proj_down(mixed * F.silu(z)), {**memory, "conv": past}
