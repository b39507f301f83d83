"""DLR, the diagonal linear recurrence without a discretisation."""

from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.systems import Systems, copy, double
from linrnn.nn.hippo import draw_log_dt
from linrnn.nn.parameters import empty_parameters
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, complex_, real
from linrnn.typing import Inexact

_SLOWEST, _FASTEST = 1e-4, 0.1  # bounds of twice the initial decays


class DLR(Systems):
    r"""DLR: one complex diagonal recurrence for all channels, with output weights for each.

    Equation:
        h_t = exp(Lambda) * h_{t-1} + x_t             h in C^{d_model x d_state}
        y_t = Re(sum_n C_n h_{t,n}) + D x_t           each channel x_t alone
        Lambda is multiplied by the time since the step before where that is given.
        "complex"    Lambda = -A_re^2 + i A_im
        "imaginary"  Lambda = i A_im, C real: the kernel is a sum of cosines that never decays
        "real"       Lambda = -A_re^2, C real, a real state
        Initially A_im is 2 pi n / N for n = 0 .. N - 1, 2 A_re^2 uniform in the logarithm between
        1e-4 and 0.1, and C has normal parts of standard deviation 1 / N.
        Parameters: A_re and A_im (d_state,), those that there are; C_re and C_im (d_model,
        d_state); D (d_model,)

    Args:
        d_state: modes N, many: the paper has 1024 to 4096. The state has d_model N numbers.
        kind: "complex", "imaginary" or "real".
        form: how a sequence is computed, with the same numbers: "scan" or "conv", as in S4D.

    Departures from the paper:
        The layers around it belong to the block around a mixer.

    Example:
        >>> y, state = DLR(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 8]))

    Reference:
        Gupta, Mehta and Berant, "Simplifying and Understanding State Space Models with Diagonal
        Linear RNNs", 2022, arXiv:2212.00768. Key: gupta2022simplifying.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C_re", "C_im")
    single_precision: ClassVar[tuple[str, ...]] = ("A_re", "A_im")

    choices = Choices(transition="complex diagonal", gate="learned", memory="systems")

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A_re", "A_im")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 1024,
        kind: Literal["complex", "imaginary", "real"] = "complex",
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.modes = d_model, d_state, d_state
        self.kind, self.form = kind, form
        check_positive_int("DLR", d_state=d_state)
        check_in("DLR", "kind", kind, ("complex", "imaginary", "real"))
        check_in("DLR", "form", form, self.forms)
        empty, H, N = empty_parameters(device, dtype), d_model, d_state
        self.A_re = None if kind == "imaginary" else empty(N)
        self.A_im = None if kind == "real" else empty(N)
        self.C_re, self.C_im = empty(H, N), empty(H, N) if kind == "complex" else None
        self.D = empty(H)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        N = self.d_state
        copy((draw_log_dt(N, _SLOWEST, _FASTEST).exp() / 2).sqrt(), self.A_re)
        copy(torch.arange(N, dtype=torch.float64) * (2 * pi / N), self.A_im)
        for weight in (self.C_re, self.C_im):
            if weight is not None:
                nn.init.normal_(weight, std=1 / N)
        nn.init.normal_(self.D)

    def eigenvalues(self) -> Inexact[Tensor, " d_state"]:
        """``exp(Lambda)``, of every channel the same."""
        return self.system().a.flatten()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        part = real if self.kind == "real" else complex_
        return part(d_model=self.d_model, modes=self.modes)

    def system(self, times: Tensor | None = None) -> siso.System:
        """The systems, in double precision; of times (...) those of each."""
        decay = torch.zeros_like(self.C_re[0]) if self.A_re is None else -(self.A_re.double() ** 2)
        lam = double(decay, self.A_im)
        lam = lam[None] if times is None else times.double()[..., None, None] * lam
        a, c = lam.exp(), double(self.C_re, self.C_im)
        return siso.System(a, torch.ones_like(a), c.to(a.dtype), self.D)
