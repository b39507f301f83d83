"""GSS, a gated layer around a narrow diagonal state-space system."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.systems import Systems, number
from linrnn.nn.diagonal import diagonal_steps
from linrnn.nn.head_norm import head_norm
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, complex_
from linrnn.typing import Complex


class GSS(Systems):
    r"""GSS: a narrow diagonal state-space model inside a wide multiplicative gate.

    Equation:
        v_t = gelu(W_v x_t + b_v),  z_t = gelu(W_z x_t + b_z)    in R^{d_inner}, R^{d_ssm}
        z_t <- norm(z_t)                                         a layer norm, or none
        h_t = a * h_{t-1} + (a - 1) / Lambda z_t                 a = exp(Lambda), each channel alone
        s_t = Re(sum_n C_n h_{t,n}) + D z_t                      h in C^{d_ssm x d_state}
        y_t = W_o (v_t * (W_s s_t + b_s)) + b_o
        Lambda = -exp(A_log) + i exp(A_im_log), shared by the channels, times the time since the
        step before where that is given. All modes are kept, none stands for a pair.
        Initially A_log, A_im_log, the parts of C and D are standard normal, so that the kernel is
        large: the layer wants a norm before it.
        Parameters: in_proj holds the rows of W_v and W_z in this order, up_proj is W_s, out_proj
        W_o; A_log and A_im_log (d_state,), C_re and C_im (d_ssm, d_state), D (d_ssm,)

    Args:
        d_inner: channels of the gate. Default: 4 d_model.
        d_ssm: channels of the system. Default: d_model / 4, at least 1.
        d_state: modes N.
        norm: of the system's input, "none" or "layer", with weights and biases, of at least two
            channels.
        form: how a sequence is computed, with the same numbers: "scan" or "conv", as in S4D.

    Departures from the paper:
        The norm before and the residual around the layer belong to the block around a mixer. The
        public code, which its authors did not write, has norm="layer", and no b_v, b_z and b_s.

    Example:
        >>> y, state = GSS(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 1, 8]))

    Reference:
        Mehta, Gupta, Cutkosky and Neyshabur, "Long Range Language Modeling via Gated State
        Spaces", ICLR 2023, arXiv:2206.13947. Key: mehta2022long.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C_re", "C_im")
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "A_im_log")

    choices = Choices(
        transition="complex diagonal", gate="learned", memory="systems", output="gated"
    )

    widening: ClassVar[bool] = True
    filters = False
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_log", "A_im_log")

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        d_ssm: int | None = None,
        d_state: int = 512,
        norm: Literal["none", "layer"] = "none",
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.modes, self.form = d_model, d_state, d_state, form
        self.d_inner = 4 * d_model if d_inner is None else d_inner
        self.d_ssm = max(1, d_model // 4) if d_ssm is None else d_ssm
        check_positive_int("GSS", d_inner=self.d_inner, d_ssm=self.d_ssm, d_state=d_state)
        check_in("GSS", "form", form, self.forms)
        check_in("GSS", "norm", norm, ("none", "layer"))
        if norm == "layer" and self.d_ssm == 1:
            raise ArgumentError(
                "GSS: d_ssm must be at least 2 for norm='layer', which subtracts their mean, got 1."
            )
        self.norm = norm
        empty = empty_parameters(device, dtype)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = Linear(d_model, self.d_inner + self.d_ssm, **to)
        self.norm_weight, self.norm_bias = (
            empty(self.d_ssm) if norm == "layer" else None for _ in range(2)
        )
        self.up_proj = Linear(self.d_ssm, self.d_inner, **to)
        self.out_proj = Linear(self.d_inner, d_model, **to)
        self.A_log, self.A_im_log = empty(d_state), empty(d_state)
        self.C_re, self.C_im = empty(self.d_ssm, d_state), empty(self.d_ssm, d_state)
        self.D = empty(self.d_ssm)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.up_proj, self.out_proj):
            part.reset_parameters()
        if self.norm_weight is not None and self.norm_bias is not None:
            nn.init.ones_(self.norm_weight)
            nn.init.zeros_(self.norm_bias)
        for weight in (self.A_log, self.A_im_log, self.C_re, self.C_im, self.D):
            nn.init.normal_(weight)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``a``, of every channel the same."""
        return self.system().a.flatten()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(d_ssm=self.d_ssm, modes=self.modes)

    def system(self, times: Tensor | None = None) -> siso.System:
        """The discretised systems; of times (...) those of each."""
        a, b = diagonal_steps(self.A_log[None], self.A_im_log[None], None, im_log=True, times=times)
        return siso.System(a, b, number(self.C_re, self.C_im), self.D)

    def _project_in(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The system's input and the gate."""
        both = F.gelu(self.in_proj(x.to(self.in_proj.weight.dtype)))
        gate, z = both.split([self.d_inner, self.d_ssm], -1)  # (..., d_inner), (..., d_ssm)
        if self.norm_weight is not None and self.norm_bias is not None:
            z = torch.addcmul(self.norm_bias, head_norm(z, "layer", 1e-5), self.norm_weight)
        return z, gate

    def _project_out(self, y: Tensor, side_input: Tensor) -> Tensor:
        out: Tensor = self.out_proj(side_input * self.up_proj(y.to(self.up_proj.weight.dtype)))
        return out
