"""S4, the structured state-space layer."""

from types import ModuleType
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.systems import Systems, copy, double
from linrnn.nn.diagonal import shared_systems
from linrnn.nn.hippo import MEASURES, NPLR, check_dt, check_pairs, draw_log_dt, nplr
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import bounded_exp, empty_parameters
from linrnn.ops.conv import dplr
from linrnn.typing import Complex

_CLIP = -1e-4  # the largest Re Lambda at the start, that of the public code


class S4(Systems):
    r"""S4: a state-space model per channel, diagonal plus low rank (DPLR).

    Equation:
        h' = A h + B x                               A = Lambda - P P^*, h in C^{d_state}
        h_t = (1 - dt/2 A)^-1 ((1 + dt/2 A) h_{t-1} + dt B x_t)      each channel x_t alone
        y_t = Re(C h_t) + D x_t
        Lambda = -exp(A_log) + i A_im                so A is stable, whatever P is
        dt = exp(log_dt), one a channel, times the time since the step before where that is given
        All vectors are of conjugate pairs: one of each is kept, and the state is C^{d_state/2}.
        Initially A and B are those of a HiPPO memory in the basis where Lambda is diagonal, of
        LegS or as ``measure`` says, and C has normal parts of variance 1/2; real parts of Lambda
        above -1e-4 begin there.
        Parameters: A_log, A_im, B_re and B_im (n_ssm, d_state/2), P_re and P_im (n_ssm, rank,
        d_state/2), C_re and C_im (d_model, d_state/2), log_dt and D (d_model,); channel c has A, B
        and P of the system c modulo n_ssm
        With ``channels`` every system has that many outputs, and a map to d_model follows them:
        y_t = a * sigmoid(b),   [a; b] = W gelu([z_t^1; z_t^2; ..]) + w
        z_t^i = Re(C^i h_t) + D^i x_t
        C_re and C_im are (channels, d_model, d_state/2) then, D is (channels, d_model), and W and
        w begin as in torch.nn.

    Args:
        d_state: size N of a channel's real system, an even number.
        measure: what the systems remember at first: "legs" (Legendre polynomials on all the past),
            "legt" and "fout" (the same, and a Fourier series, of a window of 2/dt steps), "lagt"
            (Laguerre polynomials with a tilt of 0.01), "hippo" (half of the systems "legs", the
            rest "fout"). See `linrnn.nn.hippo`.
        rank: columns of P. Default: those that the measure has; more begin at 0.
        n_ssm: A, B and P that the channels share, a divisor of d_model; each keeps a step size and
            a C. Default: one for each channel.
        B_clip: largest imaginary part of the initial B, in the basis of eigenvectors whose first
            entries are positive numbers; the public code takes 2. Default: unbounded.
        dt_min, dt_max: bounds of the initial dt, in input steps; uniform in the logarithm.
        channels: outputs of each system, with the map behind them: the whole S4Block of the public
            code, for ``block="bare"``. Default: one output and no map, which leaves GELU and GLU to
            the block around the mixer.
        form: how a sequence is computed, with the same numbers: "scan" (matrix products inside
            blocks of time, a product with a matrix over the blocks) or "conv" (the kernel by its
            generating function, a Cauchy product, and an FFT of twice the length; it cannot reset
            inside a sequence nor take times, and a huge step changes those before it by roundings
            of the largest output, one that is not finite makes them NaN). With times every step
            has its own transition, and one step is read after the other.

    Departures from the paper:
        What is learned is C, not C (1 - A^L), which would tie the layer to one length; powers of
        the transition are computed in double precision. GELU, the linear layer and the GLU of the
        paper's layer belong to the block around a mixer, unless ``channels`` is given. B_clip is
        off: its public value of 2 cuts up to 41 down to 2 at d_state = 64. "lagt" is the public
        "glagt", which later versions lack, but for the size of B.

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
        measure: Literal["legs", "legt", "lagt", "fout", "hippo"] = "legs",
        rank: int | None = None,
        n_ssm: int | None = None,
        B_clip: float | None = None,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        channels: int | None = None,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.form = d_model, d_state, form
        self.measure, self.B_clip = measure, B_clip
        self.n_ssm = d_model if n_ssm is None else n_ssm
        self.dt_min, self.dt_max, self.channels = dt_min, dt_max, channels
        check_positive_int("S4", d_state=d_state, n_ssm=self.n_ssm)
        check_pairs("S4", d_state, "Use another size.")
        check_in("S4", "measure", measure, (*MEASURES, "hippo"))
        check_in("S4", "form", form, self.forms)
        check_dt("S4", dt_min, dt_max)
        if channels is not None:
            check_positive_int("S4", channels=channels)
        if B_clip is not None:
            check_positive("S4", B_clip=B_clip)
        self._measures = ("legs", "fout") if measure == "hippo" else (measure,)
        self.rank = self._check_memories(rank)
        empty = empty_parameters(device, dtype)
        self.modes = M = d_state // 2
        H, S = d_model, self.n_ssm
        outputs = (H,) if channels is None else (channels, H)
        self.log_dt, self.D = empty(H), empty(*outputs)
        self.A_log, self.A_im = empty(S, M), empty(S, M)
        self.P_re, self.P_im = empty(S, self.rank, M), empty(S, self.rank, M)
        self.B_re, self.B_im = empty(S, M), empty(S, M)
        self.C_re, self.C_im = empty(*outputs, M), empty(*outputs, M)
        self.out = None
        if channels is not None:
            self.out = Linear(channels * H, 2 * H, device=device, dtype=dtype)
        self.filters = channels is None
        self.reset_parameters()

    def _check_memories(self, rank: int | None) -> int:
        """The columns of P, if the number of systems suits these measures."""
        parts = len(self._measures)
        if self.d_model % self.n_ssm or self.n_ssm % parts:
            even = ", and even for measure='hippo'" if parts > 1 else ""
            raise ArgumentError(
                f"S4: n_ssm must divide d_model={self.d_model}{even}, got {self.n_ssm}."
            )
        smallest = max(len(self._memory(name).P) for name in self._measures)
        rank = smallest if rank is None else rank
        check_positive_int("S4", rank=rank)
        if rank < smallest:
            raise ArgumentError(
                f"S4: rank must be at least {smallest} for measure={self.measure!r}, got {rank}."
            )
        return rank

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        per_measure = self.n_ssm // len(self._measures)
        for i, name in enumerate(self._measures):
            lam, P, B = self._initial(name)
            rows = slice(i * per_measure, (i + 1) * per_measure)
            copy(lam.real.clamp(max=_CLIP).neg().log(), self.A_log[rows])
            copy(lam.imag, self.A_im[rows])
            copy(P, self.P_re[rows], self.P_im[rows])
            copy(B, self.B_re[rows], self.B_im[rows])
        C = torch.randn(self.C_re.shape, dtype=torch.complex128)
        copy(C, self.C_re, self.C_im)
        copy(draw_log_dt(self.d_model, self.dt_min, self.dt_max), self.log_dt)
        nn.init.normal_(self.D)
        if self.out is not None:
            self.out.reset_parameters()

    def _memory(self, measure: str) -> NPLR:
        options = {"lagt": {"beta": 0.01}, "legt": {"theta": 2.0}, "fout": {"theta": 2.0}}
        return nplr(measure, self.d_state, **options.get(measure, {}))

    def _initial(self, measure: str) -> tuple[Tensor, Tensor, Tensor]:
        """Lambda (modes,), P (rank, modes) and B (modes,) of a memory."""
        lam, P, B, V = self._memory(measure)
        if self.B_clip is not None:
            turn = torch.sgn(V[0])
            turn = torch.where(turn == 0, 1, turn)
            P, B = turn * P, turn * B
            B = torch.complex(B.real, B.imag.clamp(-self.B_clip, self.B_clip))
        P = F.pad(P, (0, 0, 0, self.rank - len(P)))
        half = slice(self.modes, None)  # those with positive imaginary parts
        return lam[half], P[:, half], B[half]

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """Those of the transitions of all channels, one after the other."""
        values: Tensor = torch.linalg.eigvals(dplr.Transition.of(self.system()).dense())
        return values.flatten()

    def system(self, times: Tensor | None = None) -> dplr.System:
        """The systems, in double precision; of times (...) with the dt of each."""
        lam = self._each(double(-bounded_exp(self.A_log.double()), self.A_im))  # (d_model, modes)
        dt = bounded_exp(self.log_dt.double())
        if times is not None:
            dt = times.double()[..., None] * dt
        P = self._each(double(self.P_re, self.P_im))  # (d_model, 1, modes)
        B = self._each(double(self.B_re, self.B_im))  # (d_model, modes)
        return dplr.System(lam, P, B, 2 * double(self.C_re, self.C_im), dt, self.D)

    def run(
        self, system: dplr.System, u: Tensor, h: Tensor, reset: Tensor | None, *, varying: bool
    ) -> tuple[Tensor, Tensor]:
        """See `Systems.run`; with ``channels`` outputs are (B, T, channels, d_model)."""
        if self.channels is None or varying:
            return super().run(system, u, h, reset, varying=varying)
        # each output is that of a copy of its system: most of the work is a separate kernel
        count = self.channels
        lam, P, b = system.lam.repeat(count, 1), system.P.repeat(count, 1, 1), system.b
        c, dt, d = system.c.flatten(0, 1), system.dt.repeat(count), system.d.flatten()
        several = dplr.System(lam, P, b.repeat(count, 1), c, dt, d)
        u, h = u.repeat(1, 1, count), h.repeat(1, count, 1)
        y, last = super().run(several, u, h, reset, varying=False)
        return y.unflatten(2, system.d.shape), last[:, : self.d_model]

    def _project_out(self, y: Tensor, side_input: Tensor) -> Tensor:
        if self.out is not None:
            z = F.gelu(y.flatten(-2)).to(self.out.weight.dtype)
            a, b = self.out(z).chunk(2, -1)  # (..., d_model) each
            y = a * b.sigmoid()
        return y.to(side_input.dtype)

    def _each(self, systems: Tensor) -> Tensor:
        """Rows of systems, repeated for every channel that has the system."""
        return shared_systems(systems, self.d_model)
