"""S4, the structured state-space layer."""

from types import ModuleType
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.systems import Systems, copy, double
from linrnn.nn.hippo import check_dt, check_pairs, draw_log_dt, nplr
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops.conv import dplr
from linrnn.typing import Complex


class S4(Systems):
    r"""S4: every channel has a state-space system of its own, diagonal plus low rank.

    Equation:
        h' = A h + B x                               A = Lambda - P P^*, h in C^{d_state}
        h_t = (1 - dt/2 A)^-1 ((1 + dt/2 A) h_{t-1} + dt B x_t)      each channel x_t alone
        y_t = Re(C h_t) + D x_t
        Lambda = -exp(A_log) + i A_im                so A is stable, whatever P is
        dt = exp(log_dt), one a channel, times the time since the step before where that is given
        All vectors are of conjugate pairs: one of each is kept, and the state is C^{d_state/2}.
        Initially A and B are those of HiPPO-LegS in the basis where Lambda is diagonal, and C has
        normal parts of variance 1/2.
        Parameters: A_log, A_im, B_re, B_im, C_re and C_im (d_model, d_state/2), P_re and P_im
        (d_model, rank, d_state/2), log_dt and D (d_model,)

    Args:
        d_state: size N of a channel's real system, an even number.
        dt_min, dt_max: bounds of the initial dt, in input steps; uniform in the logarithm.
        form: how a sequence is computed, with the same numbers: "scan" (matrix products inside
            blocks of time, a product with a matrix over the blocks) or "conv" (the kernel by its
            generating function, a Cauchy product, and an FFT of twice the length; it cannot reset
            inside a sequence nor take times, and a huge step changes those before it by roundings
            of the largest output, one that is not finite makes them NaN). With times every step
            has a transition of its own, and one step is read after the other.

    Departures from the paper:
        What is learned is C, not C (1 - A^L), which would tie the layer to one length; powers of
        the transition are computed in double precision. GELU, the linear layer and the GLU of the
        paper's layer belong to the block around a mixer.

    Example:
        >>> y, state = S4(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 4]))

    Reference:
        Gu, Goel and Re, "Efficiently Modeling Long Sequences with Structured State Spaces",
        ICLR 2022, arXiv:2111.00396. Key: gu2021efficiently.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C_re", "C_im")
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "A_im", "P_re", "P_im", "log_dt")

    choices = Choices(transition="low rank", gate="learned", memory="systems")

    ops: ClassVar[ModuleType] = dplr
    recurrent_parameters: ClassVar[tuple[str, ...]] = (
        *("A_log", "A_im", "P_re", "P_im", "B_re", "B_im", "log_dt"),
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.form = d_model, d_state, form
        self.dt_min, self.dt_max = dt_min, dt_max
        check_positive_int("S4", d_state=d_state)
        check_pairs("S4", d_state, "Use another size.")
        check_in("S4", "form", form, self.forms)
        check_dt("S4", dt_min, dt_max)
        empty = empty_parameters(device, dtype)
        self.modes = M = d_state // 2
        H, rank = d_model, len(nplr("legs", d_state).P)
        self.log_dt, self.D = empty(H), empty(H)
        self.A_log, self.A_im = empty(H, M), empty(H, M)
        self.P_re, self.P_im = empty(H, rank, M), empty(H, rank, M)
        self.B_re, self.B_im = empty(H, M), empty(H, M)
        self.C_re, self.C_im = empty(H, M), empty(H, M)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lam, P, B = (z[..., self.modes :] for z in nplr("legs", self.d_state)[:3])
        copy(lam.real.neg().log(), self.A_log)
        copy(lam.imag, self.A_im)
        copy(P, self.P_re, self.P_im)
        copy(B, self.B_re, self.B_im)
        copy(torch.randn(self.d_model, self.modes, dtype=lam.dtype), self.C_re, self.C_im)
        copy(draw_log_dt(self.d_model, self.dt_min, self.dt_max), self.log_dt)
        nn.init.normal_(self.D)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """Those of the transitions of all channels, one after the other."""
        found: Tensor = torch.linalg.eigvals(dplr.Transition.of(self.system()).dense())
        return found.flatten()

    def system(self, times: Tensor | None = None) -> dplr.System:
        """The systems, in double precision; of times (...) with the dt of each."""
        lam, dt = (
            double(-bounded_exp(self.A_log.double()), self.A_im),
            bounded_exp(self.log_dt.double()),
        )
        if times is not None:
            dt = times.double()[..., None] * dt
        P, B = double(self.P_re, self.P_im), double(self.B_re, self.B_im)
        return dplr.System(lam, P, B, 2 * double(self.C_re, self.C_im), dt, self.D)
