"""RWKV-4 time mixing."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.cells import Cell
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.mean_rwkv import MeanRWKV
from linrnn.ops.cell.weighted_mean import wkv_scan
from linrnn.ops.linear.weighted_mean import EMPTY, wkv
from linrnn.state_spec import closed, real


class RWKV4(MeanRWKV):
    r"""RWKV-4 time mixing: an exponentially decaying weighted mean of values, gated.

    Equation:
        x^k_t = mu_k * x_t + (1 - mu_k) * x_{t-1}, and x^v, x^r likewise    (token_shift)
        k_t = W_k x^k_t,  v_t = W_v x^v_t,  r_t = W_r x^r_t                 in R^{d_state}
        wkv_t = (sum_{s<t} exp(k_s - (t-1-s) w) v_s + exp(u + k_t) v_t) / (same without v)
        y_t = W_o (sigmoid(r_t) * wkv_t)
        w = exp(time_decay) > 0, per step; u = time_first, a bonus for the current step
        wkv is a weighted mean, so |wkv_t| <= max |v_s|, whatever the keys are.
        Computed from the state L_t = logaddexp(L_{t-1} - w, k_t), the logarithm of the sum of
        weights, and the mean m_t = sigmoid(L_{t-1} - w - k_t) m_{t-1} + sigmoid(-(same)) v_t.
        Float32 knows L to 6e-8 |L|, and weights with that relative error. A state has 0 for the L
        of no weight at all, and 1e-38 for one that comes to 0.

    Args:
        d_state: channels of the mean. Default: d_model.
        token_shift: mix each input with the previous one, as the published block does. False
            is the bare recurrence, as compared in controlled experiments.
        init: "orthogonal", or "published" with W_k, W_r and W_o at zero; unused without
            token_shift.
        layer, n_layers: place in the stack, counted from 0; the published initial values of
            time_decay and mu depend on it.

    Departures from the paper:
        The state holds no running maximum: `to_running_max` and `from_running_max` convert.
        With token_shift time_decay, u, mu and W_v start as published, but W_k, W_r and W_o are
        orthogonal as W_v is. At zero, as published, the first output is zero: in a residual stack
        only W_o has a gradient at first, and in a stack without skips nothing ever has one.
        init="published" starts so; four residual blocks of width 64 with channel mixing then
        learned a text more slowly (training loss of 1.16 nats a byte after 250 steps, not 1.04).
        Without token_shift all maps start Glorot-uniform, u = 0, and exp(-w) squared uniform on
        [0.9^2, 0.999^2]. Channel mixing is `linrnn.nn.ChannelMix`; the layer norm
        before either belongs to the backbone.

    Example:
        >>> y, state = RWKV4(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["mean"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, arXiv:2305.13048.
        Key: peng2023rwkv.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("time_decay",)

    choices = Choices(
        transition="diagonal", gate="learned", memory="vector", normaliser="sum", output="gated"
    )
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first")
    cell: ClassVar[Cell] = wkv

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        token_shift: bool = True,
        init: Literal["orthogonal", "published"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, d_state, token_shift, init, layer, n_layers, device, dtype)

    def _scan(
        self, inputs: dict[str, Any], start: tuple[Tensor, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return wkv_scan(**inputs, state=start, reset=reset)


def to_running_max(state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The state as other implementations keep it: ``(alpha, beta, p)``.

    ``alpha exp(p)`` and ``beta exp(p)`` are the two sums of the equation, so the mean is
    ``alpha / beta``. Before the first step they are ``(0, 0, -1e38)``.

    Example:
        >>> [z.item() for z in to_running_max(RWKV4(1).init_state(1))]
        [0.0, 0.0, -9.999999680285692e+37]
    """
    log_norm = state["log_norm"]
    empty = (log_norm == 0) | (log_norm <= EMPTY / 2)  # which files of earlier versions have
    beta = torch.where(empty, 0.0, torch.ones_like(log_norm))
    return state["mean"] * beta, beta, torch.where(empty, -1e38, log_norm)


def from_running_max(alpha: Tensor, beta: Tensor, p: Tensor) -> dict[str, Tensor]:
    """``mean`` and ``log_norm`` from ``(alpha, beta, p)``: the inverse of `to_running_max`.

    A layer with token shift also needs ``shift``, the previous input, (batch, 1, d_model).

    Example:
        >>> state = from_running_max(torch.tensor([[3.0]]), torch.tensor([[2.0]]), torch.zeros(1))
        >>> state["mean"].item(), round(state["log_norm"].item(), 4)
        (1.5, 0.6931)
    """
    empty = beta == 0
    weight = torch.where(empty, 1.0, beta)
    log_norm = closed(p + weight.log(), real(start=EMPTY))
    return {
        "mean": torch.where(empty, 0.0, alpha / weight),
        "log_norm": torch.where(empty, 0.0, log_norm),
    }
