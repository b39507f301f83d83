"""The scalar LSTM of xLSTM."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell, block_linear
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import BlockDiagonal, CausalConv, HeadNorm, default_heads, empty_parameters
from linrnn.nn.channel_mix import check_layer, fractions
from linrnn.ops import cell_scan
from linrnn.ops.linear.weighted_mean import EMPTY, shares
from linrnn.state_spec import Part, real

LOG_GATES: dict[str, Any] = {"sigmoid": F.logsigmoid, "exp": lambda f: f}
"""The logarithm of the forget gate, by the gate."""


def _cell(forget: str) -> Cell:
    """One step; c and n of the paper are ``mean * exp(log_norm)`` and ``exp(log_norm)``."""

    def slstm(
        h: Any, mean: Any, log_norm: Any, i: Any, f: Any, z: Any, o: Any,
        Ri: Any, Rf: Any, Rz: Any, Ro: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        i, f = i + block_linear(h, Ri), f + block_linear(h, Rf)
        z, o = torch.tanh(z + block_linear(h, Rz)), torch.sigmoid(o + block_linear(h, Ro))
        log_past = log_norm + LOG_GATES[forget](f)
        past, new = shares(log_past - i)
        mean = past * mean + new * z
        h = o * mean
        return h, (h, mean, torch.logaddexp(log_past, i))

    states, start = "h mean log_norm", {"log_norm": EMPTY}
    return Cell(slstm, state=states, matrix="Ri Rf Rz Ro", start=start, name=f"slstm_{forget}")


CELLS = {forget: _cell(forget) for forget in LOG_GATES}


class SLSTM(Mixer):
    r"""sLSTM: a multi-head LSTM with exponential input gates and a normaliser state.

    Equation:
        c_t = SiLU(conv(x)_t + b)                         depthwise, causal, d_conv taps
        i_t = W_i c_t + R_i h_{t-1}                       f_t = W_f c_t + R_f h_{t-1} + b_f
        z_t = W_z x_t + R_z h_{t-1} + b_z                 o_t = W_o x_t + R_o h_{t-1} + b_o
        C_t = sigmoid(f_t) C_{t-1} + exp(i_t) tanh(z_t)
        n_t = sigmoid(f_t) n_{t-1} + exp(i_t)
        h_t = sigmoid(o_t) * C_t / n_t                    |h_t| < 1
        y_t = w * layer_norm(h_t in each head)
        W and R are diagonal in n_heads blocks. The state holds C / n and log n, which are what C
        and n come to with any stabiliser, and nothing overflows.
        Initially R = 0, W ~ N(0, 0.4 / d_model), w = 1, conv as torch.nn, b_z = b_o = 0; channel j
        of d in each head has b_f = 5 - 12 (j / (d - 1))^(0.3 + 1.3 layer / (n_layers - 1)).

    Args:
        n_heads: heads, a divisor of d_model. Default: 4, fewer where these do not divide d_model or
            had less than 16 channels.
        d_conv: taps of the convolution; 0 leaves it and the SiLU out.
        forget: "sigmoid", or "exp" for exp(f_t) in its place.
        recurrent_init: "zeros", or "uniform" for R within d_model^(-1/2).
        forget_bias: "power", as above, or "linear" for b_f from 3 to 6 in each head.
        norm_eps: of the norm of heads.
        layer, n_layers: place in the stack, counted from 0.

    Departures from the paper:
        Extension beyond the survey. The paper's i has a bias, which C / n does not depend on: it
        would have no gradient. Its W are full matrices; those of its blocks, and of the code, are
        as here.

    Example:
        >>> y, state = SLSTM(d_model=4, n_heads=2)(torch.randn(2, 100, 4))
        >>> y.shape, state["mean"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Beck et al., "xLSTM: Extended Long Short-Term Memory", 2024, arXiv:2405.04517.
        Key: beck2024xlstm.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "gated"
    choices = Choices(
        transition="dense",
        gate="state",
        memory="vector",
        normaliser="sum",
        steps="nonlinear",
        output="gated",
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("R",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_conv: int = 4,
        forget: Literal["sigmoid", "exp"] = "sigmoid",
        recurrent_init: Literal["zeros", "uniform"] = "zeros",
        forget_bias: Literal["power", "linear"] = "power",
        norm_eps: float = 1e-5,
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_conv, self.norm_eps = d_model, d_conv, norm_eps
        self.forget, self.recurrent_init, self.forget_bias = forget, recurrent_init, forget_bias
        self.layer, self.n_layers = layer, n_layers
        heads = range(1, default_heads(d_model, 4) + 1)
        self.n_heads = max(h for h in heads if d_model % h == 0) if n_heads is None else n_heads
        check_positive_int("SLSTM", n_heads=self.n_heads)
        check_positive("SLSTM", norm_eps=norm_eps)
        check_in("SLSTM", "forget", forget, LOG_GATES)
        check_in("SLSTM", "recurrent_init", recurrent_init, ("zeros", "uniform"))
        check_in("SLSTM", "forget_bias", forget_bias, ("power", "linear"))
        check_layer("SLSTM", layer, n_layers)
        if d_model % self.n_heads:
            raise ArgumentError(
                f"SLSTM: n_heads must divide d_model={d_model}, got {self.n_heads}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self.conv1d = CausalConv(d_model, d_conv, silu=True, **to) if d_conv != 0 else None
        self.i_gate, self.f_gate, self.z_gate, self.o_gate = (
            BlockDiagonal(d_model, self.n_heads, bias=gate != "i", **to) for gate in "ifzo"
        )
        size = d_model // self.n_heads
        self.R = empty_parameters(**to)(4, self.n_heads, size, size)  # of i, f, z, o: out, in
        self.outnorm = HeadNorm(self.n_heads, size, norm="layer", eps=norm_eps, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.conv1d is not None:
            self.conv1d.reset_parameters()
        for gate in (self.i_gate, self.f_gate, self.z_gate, self.o_gate):
            gate.reset_parameters()
            nn.init.normal_(gate.weight, std=(0.4 / self.d_model) ** 0.5)
        place = fractions(self.d_model // self.n_heads)
        power = 0.3 + 1.3 * self.layer / max(self.n_layers - 1, 1)
        bias = 5 - 12 * place**power if self.forget_bias == "power" else 3 + 3 * place
        self.f_gate.bias.copy_(bias)  # type: ignore[union-attr]
        bound = 0.0 if self.recurrent_init == "zeros" else self.d_model**-0.5
        nn.init.uniform_(self.R, -bound, bound)
        self.outnorm.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h, C / n, log n, and inputs of the convolution."""
        h, log_norm = real(d_model=self.d_model), real(d_model=self.d_model, start=EMPTY)
        spec = {"h": h, "mean": h, "log_norm": log_norm}
        return spec if self.conv1d is None else {**spec, "conv": self.conv1d.state_spec()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.R.dtype)
        c, past = x, {}
        if self.conv1d is not None:
            c, past["conv"] = self.conv1d(x, state["conv"], reset)  # and SiLU
        inputs: dict[str, Any] = {"i": self.i_gate(c), "f": self.f_gate(c)}
        inputs |= {"z": self.z_gate(x), "o": self.o_gate(x)}
        # (H, d_head, d_head) each
        inputs |= zip(("Ri", "Rf", "Rz", "Ro"), wide(self.R).unbind(), strict=True)
        start = state["h"], state["mean"], state["log_norm"]
        y, last = cell_scan(CELLS[self.forget], **inputs, state=start, reset=reset)
        final = dict(zip(("h", "mean", "log_norm"), last, strict=True))
        # (B, T, d_model)
        return self.outnorm(wide(y).unflatten(-1, (self.n_heads, -1))), {**final, **past}
