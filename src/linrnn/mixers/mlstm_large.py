"""The matrix LSTM as xLSTM 7B has it."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.mlstm import EPS as EPS
from linrnn.mixers._families.mlstm import check_gate, forget_slowly, memory_spec, read_memory
from linrnn.nn import HeadNorm, default_heads
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part


class MLSTMLarge(Mixer):
    r"""mLSTM of xLSTM 7B: dense projections, soft-capped gates and an output gate.

    Equation:
        q, k, v = W_q x, W_k x, W_v x                          in each head
        i, f = cap(W_i x + b_i), cap(W_f x + b_f)              a number a head
        cap(a) = gate_soft_cap tanh(a / gate_soft_cap)
        S_t = sigmoid(f_t) S_{t-1} + exp(i_t) k_t v_t^T
        n_t = sigmoid(f_t) n_{t-1} + exp(i_t) k_t
        h_t = S_t^T q_t / max(|n_t . q_t|, sqrt(d_key))
        y = W_out (sigmoid(W_o x) * w * layer_norm(h in each head))
        The state is that of `MLSTM`.
        Initially W_i = W_f = W_o = 0, b_f from 3 in the first head to 6 in the last, b_i = -10,
        w = 1, W_out ~ N(0, 4 / d_model), W_q, W_k, W_v ~ N(0, 0.4 / d_model).

    Args:
        n_heads: heads. Default: 8, fewer if they had less than 16 of d_model channels each.
        d_key: channels of a head's queries and keys. Default: d_model / (2 n_heads), rounded up.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        gate_soft_cap: bound of the gates' preactivations.
        input_gate: "exp", or "sigmoid": sigmoid(i_t) for exp(i_t), and no m: mLSTMsig of
            Beck et al., 2025, "Tiled Flash Linear Attention", arXiv 2503.14376.
        normalize: divide; False with the sigmoid gate alone: h_t = S_t^T q_t / sqrt(d_key).
        norm_eps: of the norm of heads.
        init_input_gate: initial b_i.

    Departures from the paper:
        Extension beyond the survey. Names and rows of parameters are those of published
        checkpoints. The code divides the initial W_out by the depth, which a layer does not know.

    Example:
        >>> y, state = MLSTMLarge(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["m"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 2, 5]), torch.Size([2, 2]))

    Reference:
        Beck et al., "xLSTM 7B: A Recurrent LLM for Fast and Efficient Inference", 2025,
        arXiv:2503.13427. Key: beck2025xlstm.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="scalar", gate="input", memory="matrix", normaliser="sum", output="gated"
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        gate_soft_cap: float = 15.0,
        input_gate: Literal["exp", "sigmoid"] = "exp",
        normalize: bool = True,
        norm_eps: float = 1e-6,
        init_input_gate: float = -10.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        n_heads = default_heads(d_model, 8) if n_heads is None else n_heads
        self.n_heads, self.norm_eps = n_heads, norm_eps
        self.gate_soft_cap, self.init_input_gate = gate_soft_cap, init_input_gate
        self.input_gate, self.normalize = input_gate, normalize
        check_gate("MLSTMLarge", input_gate, normalize)
        check_positive_int("MLSTMLarge", n_heads=n_heads)
        check_positive("MLSTMLarge", gate_soft_cap=gate_soft_cap, norm_eps=norm_eps)
        self.d_key = -(-d_model // (2 * n_heads)) if d_key is None else d_key
        self.d_value = -(-d_model // n_heads) if d_value is None else d_value
        check_positive_int("MLSTMLarge", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        keys, values = n_heads * self.d_key, n_heads * self.d_value
        self.q, self.k = (Linear(d_model, keys, bias=False, **to) for _ in range(2))
        self.v, self.ogate_preact = (Linear(d_model, values, bias=False, **to) for _ in range(2))
        self.igate_preact, self.fgate_preact = (Linear(d_model, n_heads, **to) for _ in range(2))
        self.multihead_norm = HeadNorm(n_heads, self.d_value, norm="layer", eps=norm_eps, **to)
        self.out_proj = Linear(values, d_model, bias=False, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.q, self.k, self.v):
            nn.init.normal_(linear.weight, std=(0.4 / self.d_model) ** 0.5)
        nn.init.normal_(self.out_proj.weight, std=2 * self.d_model**-0.5)
        forget_slowly(self.fgate_preact)
        for gate in (self.igate_preact, self.ogate_preact):
            nn.init.zeros_(gate.weight)
        nn.init.constant_(self.igate_preact.bias, self.init_input_gate)
        self.multihead_norm.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S with n as last column, and m."""
        return memory_spec(self.n_heads, self.d_key, self.d_value, **self._gating)

    @property
    def _gating(self) -> dict[str, Any]:
        return {"input_gate": self.input_gate, "normalize": self.normalize}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x, cap = x.to(self.q.weight.dtype), self.gate_soft_cap
        i, f = (
            cap * (wide(gate(x)) / cap).tanh() for gate in (self.igate_preact, self.fgate_preact)
        )
        # (B, T, H, K or V)
        q, k, v = (wide(z(x)).unflatten(-1, (self.n_heads, -1)) for z in (self.q, self.k, self.v))
        h, state = read_memory(q, k, v, i, f, state, reset, **self._gating)
        gate = self.ogate_preact(x).sigmoid()
        return self.out_proj(gate * self.multihead_norm(h).to(gate.dtype)), state
