"""H3, two state-space systems between three gates."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers.s4d import S4D
from linrnn.nn.conv import CausalConv
from linrnn.nn.discretise import DISCRETISATIONS
from linrnn.nn.hippo import INITS, check_dt, check_pairs
from linrnn.nn.linear import Linear
from linrnn.ops.conv.past import last_inputs
from linrnn.state_spec import Part, complex_, real


class H3(Mixer):
    r"""H3: linear attention built from a shift and a diagonal state-space model.

    Equation:
        q_t, k_t, v_t = W x_t + b                         each in R^{d_model}
        s_t = sum_{j < d_shift} taps_j * k_{t-j} + D_k * k_t
        y_t = q_t * (diag(s * v)_t)
        out_t = W_o y_t + b_o
        diag is an S4D with its skip: h_t = a h_{t-1} + gain u_t, 2 Re(C h_t) + D u_t
        With heads of d_head channels, s and v multiply as an outer product in each head, all of
        whose entries pass the same system: y_{t,j} = sum_i q_{t,i} diag(s_i v_j)_t.
        The time between steps is read by diag; the shift system counts steps.
        Parameters: in_proj has the rows of q, k and v in this order; shift.weight
        (d_model, d_shift) holds the taps backward, the one of the current input last:
        shift.weight[:, d_shift - 1 - j] is taps_j; diag is an S4D of d_model / d_head channels

    Args:
        d_state: size of the real system of the diagonal part; half of each pair is kept.
        d_shift: states of the shift system: inputs it sees, the current one included.
        d_head: channels of a head, a divisor of d_model.
        init, discretisation, dt_min, dt_max: of the diagonal system: see S4D.
        form: how the diagonal system computes a sequence: see S4D.

    Departures from the paper:
        The shift system's input vector is fixed to the first unit vector, which loses nothing: a
        free one only makes its taps a correlation of two vectors. Its state leaves out the
        current input.

    Example:
        >>> y, state = H3(d_model=4, d_state=8, d_shift=3)(torch.randn(2, 100, 4))
        >>> y.shape, state["shift"].shape, state["diag"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 2, 4]), torch.Size([2, 1, 4, 4]))

    Reference:
        Fu et al., "Hungry Hungry Hippos: Towards Language Modeling with State Space Models",
        ICLR 2023, arXiv:2212.14052. Key: fu2022hungry.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "ssm"
    choices = Choices(
        transition="complex diagonal", gate="learned", memory="systems", output="gated"
    )
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        d_shift: int = 64,
        d_head: int = 1,
        init: Literal["lin", "inv", "legs", "real"] = "lin",
        discretisation: Literal["zoh", "bilinear"] = "bilinear",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_state
        self.d_shift, self.d_head = d_shift, d_head
        self.init, self.discretisation = init, discretisation
        self.dt_min, self.dt_max, self.form = dt_min, dt_max, form

        check_positive_int("H3", d_state=d_state, d_shift=d_shift, d_head=d_head)
        for what, value, allowed in (
            ("init", init, INITS),
            ("discretisation", discretisation, DISCRETISATIONS),
            ("form", form, self.forms),
        ):
            check_in("H3", what, value, allowed)
        check_dt("H3", dt_min, dt_max)
        if init != "real":
            check_pairs("H3", d_state, "Use another size, or init='real'.")
        if d_model % d_head:
            raise ArgumentError(f"H3: d_head must divide d_model={d_model}, got {d_head}.")

        self.in_proj = Linear(d_model, 3 * d_model, device=device, dtype=dtype)
        self.shift = CausalConv(d_model, d_shift, bias=False, device=device, dtype=dtype)
        self.D_k = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.diag = S4D(
            d_model // d_head,
            d_state=d_state,
            init=init,
            discretisation=discretisation,
            dt_min=dt_min,
            dt_max=dt_max,
            form=form,
            device=device,
            dtype=dtype,
        )
        self.out_proj = Linear(d_model, d_model, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.shift, self.diag, self.out_proj):
            part.reset_parameters()
        nn.init.normal_(self.D_k)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the last k, oldest first, and the diagonal systems."""
        part = real if self.init == "real" else complex_
        heads = self.d_model // self.d_head
        diag = part(entries=self.d_head**2, heads=heads, modes=self.diag.modes)
        return {"shift": self.shift.state_spec(), "diag": diag}

    def _read(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        past, h = state["shift"], state["diag"]
        q, k, v = self._project_in(x, past.dtype)
        with without_autocast(x.device):
            s = self._shift(k, past, reset) + self.D_k * k
            mask, dt = self._each(reset), self._each(dt)
            last: Any
            # (B, T, outer), (B, outer, N)
            z, last = self.diag(self._outer(s, v), h.flatten(0, 1), reset=mask, dt=dt)
            # (B, T, d_model), (B, d_head, ..., N)
            y, last = self._contract(q, z), last.view(h.shape)
        return self._project_out(y), {"shift": last_inputs(k, past, reset), "diag": last}

    def _step(
        self, x_t: Tensor, state: dict[str, Tensor], dt: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        past, h = state["shift"], state["diag"]
        q, k, v = self._project_in(x_t, past.dtype)
        with without_autocast(x_t.device):
            window = torch.cat([past, k[:, None]], 1)  # (B, d_shift, D)
            s = (window * self.shift.weight.t()).sum(1) + self.D_k * k
            last: Any
            outer = self._outer(s[:, None], v[:, None])[:, 0]
            # (B, outer), (B, outer, N)
            z, last = self.diag.step(outer, h.flatten(0, 1), dt=self._each(dt))
            # (B, d_model), (B, d_head, ..., N)
            y, last = self._contract(q[:, None], z[:, None])[:, 0], last.view(h.shape)
        return self._project_out(y), {"shift": window[:, 1:], "diag": last}

    def _project_in(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, at least float32: their product of three is small or large."""
        q, k, v = self.in_proj(x.to(self.in_proj.weight.dtype)).to(dtype).chunk(3, -1)
        return q, k, v

    def _shift(self, k: Tensor, past: Tensor, reset: Tensor | None) -> Tensor:
        """The shift system: a convolution, tap by tap only where a reset may cut it."""
        if reset is not None:
            y: Tensor = self.shift(k, past, reset)[0]
            return y
        taps = self.shift.weight.to(k.dtype)[:, None]
        y = F.conv1d(torch.cat([past, k], 1).transpose(1, 2), taps, groups=self.d_model)
        return y.transpose(1, 2)

    def _each(self, rows: Tensor | None) -> Tensor | None:
        """Numbers of rows, repeated for every row that `_outer` makes of each."""
        return None if rows is None else rows.repeat_interleave(self.d_head**2, 0)

    def _outer(self, s: Tensor, v: Tensor) -> Tensor:
        """``s_i v_j`` of every head: (B, T, D) twice, (B * d_head^2, T, D / d_head)."""
        if self.d_head == 1:
            return s * v
        s, v = (x.unflatten(-1, (-1, self.d_head)) for x in (s, v))  # (B, T, H, d_head)
        return (s[..., :, None] * v[..., None, :]).permute(0, 3, 4, 1, 2).flatten(0, 2)

    def _contract(self, q: Tensor, z: Tensor) -> Tensor:
        """``sum_i q_i z_ij`` of every head: (B, T, D)."""
        if self.d_head == 1:
            return q * z
        q = q.unflatten(-1, (-1, self.d_head))  # (B, T, H, d_head)
        z = z.unflatten(0, (q.shape[0], self.d_head, self.d_head))  # (B, i, j, T, H)
        return torch.einsum("bthi,bijth->bthj", q, z).flatten(-2)  # (B, T, D)

    def _project_out(self, y: Tensor) -> Tensor:
        out: Tensor = self.out_proj(y.to(self.out_proj.weight.dtype))
        return out
