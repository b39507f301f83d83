"""Falcon-H1's layer: Mamba-2 and attention side by side."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.errors import check_positive
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers.attention import Attention
from linrnn.mixers.mamba2 import Mamba2
from linrnn.nn.kv_cache import ALWAYS_GROWS, check_cache
from linrnn.state_spec import Spec

_OF_MAMBA = (
    *("d_state", "n_groups", "d_conv", "rmsnorm", "norm_before_gate", "norm_eps", "dt_low"),
    *("dt_high", "conv_bias", "bias", "z_scale", "s_scale", "B_scale", "C_scale", "dt_scale"),
)


class FalconH1(Mixer):
    r"""Falcon-H1: Mamba-2 and softmax attention in parallel, summed.

    Equation:
        y = ssm_out mamba2(x) + attention_out attention(x)
        mamba2 is `linrnn.mixers.Mamba2`, with numbers before z, s, B, C and dt; attention is
        `linrnn.mixers.Attention`, whose scores are multiplied by score_scale.
        Initially both are as they are alone.

    Args:
        n_heads, d_head, n_kv_heads, d_rotary: as in `linrnn.mixers.Attention`. Default: its own.
        base: as in `linrnn.mixers.Attention`.
        attention_bias: biases in its projections.
        d_state, n_groups, d_conv, conv_bias, bias: as in `linrnn.mixers.Mamba2`.
        d_inner: channels of Mamba-2's heads together. Default: its own.
        rmsnorm, norm_before_gate, norm_eps, dt_low: as in `linrnn.mixers.Mamba2`.
        dt_high: largest step size of Mamba-2. Default: unbounded.
        mamba_head: channels of a head of Mamba-2. Default: its own.
        z_scale, s_scale, B_scale, C_scale, dt_scale: as in `linrnn.mixers.Mamba2`.
        ssm_out, attention_out, score_scale: see above.
        scaling, factor, trained_length: of attention.

    Departures from the paper:
        Matrices start as in torch.nn and are Glorot-uniform in attention; the public code draws
        them from N(0, 0.02^2). It multiplies the inputs of both, and keys, by numbers as well; here
        the numbers before what is made of them are those together.

    Example:
        >>> layer = FalconH1(d_model=8, n_heads=2, d_state=4)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 100, 2, 8]))

    Reference:
        Zuo et al., "Falcon-H1: A Family of Hybrid-Head Language Models Redefining Efficiency and
        Performance", 2025, arXiv:2507.22448. Key: zuo2025falcon.
    """

    family: ClassVar[str] = "attention"
    choices = Choices(
        transition="scalar", gate="input", memory="past", normaliser="softmax", output="gated"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = ALWAYS_GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    widening: ClassVar[bool] = True

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        d_rotary: int | None = None,
        base: float = 10_000.0,
        attention_bias: bool = False,
        d_state: int = 64,
        mamba_head: int | None = None,
        n_groups: int = 1,
        d_conv: int = 4,
        d_inner: int | None = None,
        rmsnorm: bool = False,
        norm_before_gate: bool = False,
        norm_eps: float = 1e-5,
        dt_low: float = 0.0,
        dt_high: float | None = None,
        conv_bias: bool = True,
        bias: bool = False,
        z_scale: float = 1.0,
        s_scale: float = 1.0,
        B_scale: float = 1.0,
        C_scale: float = 1.0,
        dt_scale: float = 1.0,
        ssm_out: float = 1.0,
        attention_out: float = 1.0,
        score_scale: float = 1.0,
        scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none",
        factor: float = 1.0,
        trained_length: int = 8192,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.base, self.attention_bias = d_model, base, attention_bias
        self.d_state, self.n_groups, self.d_conv = d_state, n_groups, d_conv
        self.rmsnorm, self.norm_before_gate, self.norm_eps = rmsnorm, norm_before_gate, norm_eps
        self.dt_low, self.dt_high, self.conv_bias, self.bias = dt_low, dt_high, conv_bias, bias
        self.z_scale, self.s_scale, self.B_scale = z_scale, s_scale, B_scale
        self.C_scale, self.dt_scale = C_scale, dt_scale
        self.ssm_out, self.attention_out, self.score_scale = ssm_out, attention_out, score_scale
        self.scaling, self.factor, self.trained_length = scaling, factor, trained_length
        scales = {"ssm_out": ssm_out, "attention_out": attention_out, "score_scale": score_scale}
        check_positive("FalconH1", **scales)
        to: Any = {"device": device, "dtype": dtype}
        shared: Any = {name: getattr(self, name) for name in _OF_MAMBA}
        self.mamba = Mamba2(d_model, d_head=mamba_head, d_inner=d_inner, **shared, **to)
        self.mamba_head, self.d_inner = self.mamba.d_head, self.mamba.d_inner
        rotary: Any = {"d_rotary": d_rotary, "base": base, "scaling": scaling}
        rotary |= {"factor": factor, "trained_length": trained_length}
        sizes: Any = {"n_heads": n_heads, "d_head": d_head, "n_kv_heads": n_kv_heads}
        self.attention = Attention(d_model, bias=attention_bias, **sizes, **rotary, **to)
        self.n_heads, self.d_head = self.attention.n_heads, self.attention.d_head
        self.n_kv_heads, self.d_rotary = self.attention.n_kv_heads, self.attention.d_rotary
        if score_scale != 1:
            self.attention.scale = score_scale * self.d_head**-0.5

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.mamba.reset_parameters()
        self.attention.reset_parameters()

    def state_spec(self) -> dict[str, Spec]:
        """See `Mixer.state_spec`: keys and values of attention, and Mamba-2's state."""
        return {**self.attention.state_spec(), "mamba": self.mamba.state_spec()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        check_cache("FalconH1", state)
        cache = {name: part for name, part in state.items() if name != "mamba"}
        looked_up, cache = self.attention._read(x, cache, reset)
        if x.shape[1] == 1 and reset is None:  # in one native call
            y_t, memory = self.mamba.step(x[:, 0], state["mamba"])
            remembered = y_t.unsqueeze(1)  # (B, 1, D)
        else:
            remembered, memory = self.mamba._read(x, state["mamba"], reset, None)
        y = self.ssm_out * remembered + self.attention_out * looked_up
        return y, {**cache, "mamba": memory}
