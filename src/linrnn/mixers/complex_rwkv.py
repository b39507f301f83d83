"""RWKV-4 time mixing with a decay that also turns."""

from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.mixers._wkv import WKVMixer
from linrnn.ops import accumulator_dtype
from linrnn.typing import Inexact


class ComplexRWKV(WKVMixer):
    r"""RWKV-4 with the complex decays of the LRU, normalised by moduli.

    Equation:
        k_t, v_t, r_t as in RWKV-4; v_t in C^{d_state} with complex_values
        Y_t = lam Y_{t-1} + exp(k_t) v_t,    Z_t = |lam| Z_{t-1} + exp(k_t)
        wkv_t = Re(c * (Y_{t-1} + exp(u + k_t) v_t)) / (Z_{t-1} + exp(u + k_t))
        y_t = W_o (sigmoid(r_t) * wkv_t)
        lam = exp(-exp(time_decay) + i exp(theta_log)),  u = time_first,  c = c_re + i c_im
        |wkv_t| <= |c| max |v_s|. At theta = 0 and c = 1 this is RWKV-4.
        Computed from the mean Y_t / Z_t and L_t = log Z_t, as in RWKV-4.

    Shapes:
        x      (batch, time, d_model)   real
        y      (batch, time, d_model)   real, dtype of x
        state  {"mean": (batch, d_state) complex, "log_norm": (batch, d_state)} and, with
               token_shift, "shift": (batch, 1, d_model), the previous input

    Args:
        d_model: channels in and out.
        d_state: channels of the mean. Default: d_model.
        complex_values: let W_v produce complex values (2 * d_state rows, real and imaginary
            parts in turn); False keeps them real.
        max_phase: largest initial angle theta, radians per step, in (0, 2 pi].
        token_shift: mix each input with the previous one, as the RWKV-4 block does.
        init: "orthogonal", or "published": see RWKV-4.
        layer, n_layers: place in the stack, counted from 0; the initial values of RWKV-4 for
            time_decay and mu depend on it.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: a size below 1, max_phase outside its range, a layer not in the stack.
        UnknownNameError: an unknown init.
        ShapeError: the last axis of x is not d_model, or state does not fit.

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

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("time_decay", "time_first", "theta_log")

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
        width = 2 if complex_values else 1
        super().__init__(d_model, d_state, width, token_shift, init, layer, n_layers, device, dtype)
        self.complex_values, self.max_phase = complex_values, max_phase
        if not 0 < max_phase <= 2 * pi:
            raise ArgumentError(f"ComplexRWKV: max_phase must be in (0, 2 pi], got {max_phase}.")

        def empty() -> nn.Parameter:
            return nn.Parameter(torch.empty(self.d_state, device=device, dtype=dtype))

        self.theta_log, self.c_re, self.c_im = empty(), empty(), empty()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        u = torch.rand(self.d_state, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        self.theta_log.copy_((self.max_phase * u).log())
        nn.init.ones_(self.c_re)
        nn.init.zeros_(self.c_im)

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        own = f"complex_values={self.complex_values}, max_phase={self.max_phase:.4g}"
        return f"{super().extra_repr()}, {own}"

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Inexact[Tensor, "batch ..."]]:
        """Nothing read: ``log_norm`` is -1e30, the logarithm of no weight at all."""
        return self._empty_state(batch_size, device, dtype, is_complex=True)

    def _values(self, v: Tensor) -> Tensor:
        if not self.complex_values:
            return v
        return torch.view_as_complex(v.unflatten(-1, (self.d_state, 2)))

    def _rotation(self) -> Tensor:
        theta = self.theta_log.to(accumulator_dtype(self.theta_log.dtype)).exp()
        return torch.polar(torch.ones_like(theta), theta)

    def _read(self, mean: Tensor) -> Tensor:
        """``Re(c * mean)`` without the imaginary part nobody reads."""
        c_re, c_im = (c.to(mean.real.dtype) for c in (self.c_re, self.c_im))
        return c_re * mean.real - c_im * mean.imag
