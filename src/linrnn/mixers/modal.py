"""Modal filters, one small diagonal system a channel: what long filters are distilled into."""

from collections.abc import Iterable, Mapping
from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.pairs import columns, rows
from linrnn.compute.precision import without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.linear import Linear
from linrnn.nn.long_conv import window_decays
from linrnn.nn.modal import Modes
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops import linear_scan
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, complex_
from linrnn.typing import Complex

_GROWTH = 20.0  # of lam^(dt - 1), as a logarithm: float32 holds the fourth power, for gradients


class Modal(Mixer):
    r"""Modal filters: each channel is filtered by a sum of a few damped oscillations.

    Equation:
        y_t = Re(sum_n R_n h_{t,n}) + D x_t          each channel x_t alone
        h_{t+1} = lam * h_t + x_t                    h in C^{d_model x d_state}
        so the filter is D at once, and Re(sum_n R_n lam_n^{j-1}) after j steps.
        lam = exp(-exp(nu_log) + i theta), so |lam| < 1 in exact arithmetic.
        A pair of conjugate poles is one mode, with twice the residue.
        For a step a time dt after the one before, h_{t+1} = lam^dt * h_t + x_t and R lam^(dt - 1)
        reads h_t: the filter is Re(sum_n R_n lam_n^(tau - 1)) after a time tau. What lam^(dt - 1)
        grows by within dt < 1 is e^20 at most.
        Initially the filter is a fresh one of Hyena's kind: of all modes of a channel
        |lam|^(l_max - 1) = exp(-delta), delta evenly on [log(100) / 1.5, log(100) / 0.3] over
        channels; theta_n = 2 pi n / l_max for n = 0 .. d_state - 1; R has normal parts of variance
        1 / (64 d_state), and D is standard normal.
        Parameters: nu_log, theta, R_re and R_im (d_model, d_state), D (d_model,)

    Args:
        d_state: modes.
        l_max: in steps, sets the initial decays and frequencies alone: the length of the training
            sequences.
        project: add a linear layer with bias from the filters to y.
        form: how a sequence is computed, with the same numbers: "scan" or "conv", as in S4D. With
            times all states are held at once.

    Departures from the paper:
        There such filters are fitted to those of a trained model, which `linrnn.distill` does. The
        initial values above are ours, for layers that are trained from the start.

    Example:
        >>> y, state = Modal(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 8]))

    Reference:
        Massaroli et al., "Laughing Hyena Distillery: Extracting Compact Recurrences From
        Convolutions", NeurIPS 2023, arXiv:2310.18780. Key: massaroli2023laughing.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("R_re", "R_im")
    single_precision: ClassVar[tuple[str, ...]] = ("nu_log", "theta")

    family: ClassVar[str] = "ssm"
    choices = Choices(transition="complex diagonal", gate="learned", memory="systems")
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("nu_log", "theta")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        l_max: int = 1024,
        project: bool = False,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.l_max = d_model, d_state, l_max
        self.project, self.form = project, form
        check_positive_int("Modal", d_state=d_state, l_max=l_max)
        check_in("Modal", "form", form, self.forms)
        empty, H, N = empty_parameters(device, dtype), d_model, d_state
        self.nu_log, self.theta = empty(H, N), empty(H, N)
        self.R_re, self.R_im, self.D = empty(H, N), empty(H, N), empty(H)
        self.out = Linear(H, H, device=device, dtype=dtype) if project else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nu = window_decays(self.d_model, self.nu_log) / max(1, self.l_max - 1)
        self.nu_log.copy_(nu.log()[:, None])
        self.theta.copy_(torch.arange(self.d_state) * (2 * pi / self.l_max))
        for weight in (self.R_re, self.R_im):
            nn.init.normal_(weight, std=self.d_state**-0.5 / 8)
        nn.init.normal_(self.D)
        if self.out is not None:
            self.out.reset_parameters()

    @torch.no_grad()
    def put(self, modes: Modes) -> None:
        """Take the modes of other filters, (d_model, d_state); a pole of 0 has no residue."""
        nu = -modes.poles.abs().log()
        self.nu_log.copy_(torch.where(modes.poles == 0, 0, nu.log()))
        self.theta.copy_(modes.poles.angle())
        self.R_re.copy_(modes.residues.real)
        self.R_im.copy_(modes.residues.imag)
        self.D.copy_(modes.direct)

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """``lam`` of all channels, one after the other."""
        return self.system().a.flatten()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return complex_(d_model=self.d_model, modes=self.d_state)

    def system(self) -> siso.System:
        """``h_{t+1}`` and ``Re(R h_{t+1})``, in double precision."""
        a = torch.polar((-bounded_exp(self.nu_log.double())).exp(), self.theta.double())
        c = torch.complex(self.R_re.double(), self.R_im.double())
        return siso.System(a, torch.ones_like(a), c, torch.zeros_like(self.D))

    def _read(
        self, x: Tensor, h: Tensor, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(x.device):
            u = x.to(h.real.dtype)
            if dt is None:
                y, last = self._even(u, h, reset)
            else:
                a, c = self._between(dt, h.dtype)
                pushed = u[..., None].to(h.dtype).expand(a.shape)  # (B, T, D, N)
                states, last = linear_scan(a, pushed, h, reset=reset)
                previous = torch.cat([h[:, None], states[:, :-1]], 1)  # (B, T, D, N)
                y = _outputs(c, previous)
            if reset is not None:
                y = torch.where(reset[..., None], 0, y)
            y = y + self.D * u
        return self._project_out(y), last

    def _even(self, u: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs of all steps from the earlier ones, at even times with a gap of 1."""
        system = self.system()
        if self.form == "conv":
            ahead, last = siso.convolve(system, u, h)
        else:
            ahead, last = siso.scan(system, u, h, reset)
        first = _outputs(system.c.to(h.dtype), h)
        return torch.cat([first[:, None], ahead[:, :-1]], 1), last

    def _step(self, x_t: Tensor, h: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        system, u = self.system(), x_t.to(h.real.dtype)
        a, c = (z.to(h.dtype) for z in (system.a, system.c))
        if dt is not None:
            a, c = self._between(dt, h.dtype)
        return self._project_out(_outputs(c, h) + self.D * u), a * h + u[..., None]

    def _between(self, dt: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """``lam^dt`` and ``R lam^(dt - 1)`` of times (...), each (..., d_model, d_state)."""
        t = dt.double()[..., None, None]
        nu, theta = bounded_exp(self.nu_log.double()), self.theta.double()
        a = torch.polar(torch.exp(-nu * t), theta * t)
        since = torch.polar((-nu * (t - 1)).clamp(max=_GROWTH).exp(), theta * (t - 1))
        c = torch.complex(self.R_re.double(), self.R_im.double())
        return a.to(dtype), (c * since).to(dtype)

    def _project_out(self, y: Tensor) -> Tensor:
        return y if self.out is None else self.out(y.to(self.out.weight.dtype))

    @torch.no_grad()
    def impulse_responses(self, length: int) -> Tensor:
        """See `Mixer.impulse_responses`."""
        system = self.system()
        return Modes(system.a, system.c, self.D.double()).kernel(length)[None]

    def distilled(self, modes: Iterable[Modes]) -> "Modal":
        """See `Mixer.distilled`."""
        return stand_in(self, *modes)


def stand_in(layer: Mixer, modes: Modes) -> Modal:
    """The modes as a layer like one that filters each channel, and projects if it has ``out``."""
    out, like = getattr(layer, "out", None), layer._parameter()
    converted = Modal(
        layer.d_model,
        d_state=modes.poles.shape[1],
        l_max=getattr(layer, "l_max", 1024),
        project=out is not None,
        device=like.device,
        dtype=like.dtype,
    )
    converted.put(modes)
    if out is not None:
        converted.out.load_state_dict(out.state_dict())  # type: ignore[union-attr]
    return converted


def _outputs(c: Tensor, h: Tensor) -> Tensor:
    """``Re(c h)`` of every channel."""
    return (columns(c) * rows(h)).sum(-1)
