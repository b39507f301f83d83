"""RWKV-4 time mixing with a decay that also turns."""

from collections.abc import Callable
from math import pi
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.mean_rwkv import MeanRWKV
from linrnn.nn.parameters import bounded_exp
from linrnn.nn.ring import check_phase, uniform
from linrnn.ops.linear.weighted_mean import EMPTY, shares, wkv_at_once


def _turning(
    mean: Any, log_norm: Any, k: Any, v: Any, r: Any, decay: Any, bonus: Any, turn: Any, c: Any
) -> tuple[Any, Any]:
    past, now = shares(log_norm - bonus - k)
    y = (c * (past * mean + now * v)).real
    past, new = shares(log_norm - decay - k)
    mean = past * turn * mean + new * v
    return torch.sigmoid(r) * y, (mean, torch.logaddexp(log_norm - decay, k))


turning_wkv = Cell(
    _turning,
    state="mean log_norm",
    constant="decay bonus turn c",
    complex="mean v turn c",
    start={"log_norm": EMPTY},
    parallel=wkv_at_once,
    name="turning_wkv",
)
"""`linrnn.ops.linear.weighted_mean.wkv` of a mean that turns every step, read through c."""


class ComplexRWKV(MeanRWKV):
    r"""RWKV-4 with complex decays as in the LRU, normalised by their moduli.

    Equation:
        k_t, v_t, r_t as in RWKV-4; v_t in C^{d_state} with complex_values
        Y_t = lam Y_{t-1} + exp(k_t) v_t,    Z_t = |lam| Z_{t-1} + exp(k_t)
        wkv_t = Re(c * (Y_{t-1} + exp(u + k_t) v_t)) / (Z_{t-1} + exp(u + k_t))
        y_t = W_o (sigmoid(r_t) * wkv_t)
        lam = exp(-exp(time_decay) + i exp(theta_log)),  u = time_first,  c = c_re + i c_im
        |wkv_t| <= |c| max |v_s|. At theta = 0 and c = 1 this is RWKV-4.
        Computed from the mean Y_t / Z_t and L_t = log Z_t, as in RWKV-4.

    Args:
        d_state: channels of the mean. Default: d_model.
        complex_values: let W_v produce complex values (2 * d_state rows, real and imaginary
            parts in turn); False keeps them real.
        max_phase: largest initial angle theta, radians per step, in (0, 2 pi].
        token_shift: mix each input with the previous one, as the RWKV-4 block does.
        init: "orthogonal", or "published": see RWKV-4.
        layer, n_layers: place in the stack, counted from 0; the initial values of RWKV-4 for
            time_decay and mu depend on it.

    Departures from the paper:
        There is no paper: the LRU's complex decay helps it and RWKV's normalisation helps that,
        and this has both. The denominator is that of |lam|, since a complex one can vanish.
        Everything RWKV-4 has starts as there; theta uniform on [0, max_phase], c = 1.

    Example:
        >>> y, state = ComplexRWKV(d_model=4)(torch.randn(2, 100, 4))
        >>> y.shape, state["mean"].dtype
        (torch.Size([2, 100, 4]), torch.complex64)

    Reference:
        Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, arXiv:2305.13048.
        Key: peng2023rwkv.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("time_decay", "theta_log")

    choices = Choices(
        transition="complex diagonal",
        gate="learned",
        memory="vector",
        normaliser="sum",
        output="gated",
    )

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first", "theta_log")
    complex_mean: ClassVar[bool] = True
    cell: ClassVar[Cell] = turning_wkv

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        complex_values: bool = True,
        max_phase: float = 2 * pi,
        token_shift: bool = True,
        init: Literal["orthogonal", "published"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_phase("ComplexRWKV", max_phase)
        # before the parameters are made, and drawn
        self.complex_values, self.max_phase = complex_values, max_phase
        self.value_parts = 2 if complex_values else 1
        super().__init__(d_model, d_state, token_shift, init, layer, n_layers, device, dtype)

    def _add_parameters(self, empty: Callable[..., nn.Parameter]) -> None:
        N = self.d_state
        self.theta_log, self.c_re, self.c_im = empty(N), empty(N), empty(N)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        self.theta_log.copy_((self.max_phase * uniform(self.d_state)).log())
        nn.init.ones_(self.c_re)
        nn.init.zeros_(self.c_im)

    def _values(self, v: Tensor) -> Tensor:
        if not self.complex_values:
            return v
        return torch.view_as_complex(v.unflatten(-1, (self.d_state, 2)))  # (B, T, d_state)

    def _constants(self) -> dict[str, Any]:
        theta = bounded_exp(wide(self.theta_log))
        c = torch.complex(wide(self.c_re), wide(self.c_im))
        return {**super()._constants(), "turn": torch.polar(torch.ones_like(theta), theta), "c": c}
