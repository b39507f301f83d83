"""A frozen bank of LRU modes: any series as a fixed count of numbers, read in one pass."""

import torch
from torch import Tensor, nn

from linrnn._process.memory import check_fits
from linrnn.errors import ArgumentError, DTypeError, check_positive_int, check_shape
from linrnn.nn.exceedance import Drive, Modes, Tally, describe, tally
from linrnn.nn.gaps import centre_and_spread, increments
from linrnn.nn.mode_draws import random_modes, random_quantiles, some_rows
from linrnn.typing import Float, Times

STATISTICS = ("share", "mean", "place", "longest", "top", "end")
"""Statistics of each mode, in the order of the features; see `ModeBank`."""

_CHUNK = 4096  # steps that are counted in single precision before they are added up in double
_ROWS = 128  # series whose states are held at once
_STATE = 80  # bytes of a mode's state in single precision, before and after a step
_FEWER = "Lower n_modes, or pass fewer series at once."
_FARTHEST = 1e30  # from the centre, in single precision with waves that add up, and in time
_NEVER = -1.0  # the place of a wave that was never above its threshold


class ModeBank(nn.Module):
    r"""Random modes of a Linear Recurrent Unit, and what their waves do above a threshold.

    Equation::

        z_t = (x_t - mean) / scale
        u_t = z_t for one half of the modes, z_t - z_{t-1} for the other
        h_t = lambda^{dt_t} h_{t-1} + w . u_t     lambda = exp(-1 / tau + 2 pi i / period)
        y_t = sqrt(1 - |lambda|^2) Re(exp(i phase) h_t)

    with ``tau`` log-uniform from 1 to ``length / 3``, ``period`` log-uniform from 2 to
    ``length / 2``, ``phase`` uniform, and ``w`` a random direction: a sign, for one channel. Each
    mode has a threshold q. Over the observed steps at which ``y_t > q`` these numbers are taken:

    - ``share``: how many they are, as part of the observed steps;
    - ``mean``: the mean of ``y_t``; q where there are none;
    - ``place``: their mean time, as part of the time of the last observed step; -1 where there are
      none;
    - ``longest``: the longest stretch of them, as part of the observed steps;
    - ``top``: the largest ``y_t`` of all observed steps;
    - ``end``: ``y_t`` at the last observed step.

    They are counted inside the scan: nothing of size (batch, time, modes) is written, and a series
    read in pieces, with a state of constant size, gives the same numbers. Nothing is trained and
    there are no gradients; a linear model of the features is the read-out, as in
    `linrnn.RecurrentClassifier`. All that is drawn is buffers, and part of ``state_dict``.

    A value that is NaN was not observed: it drives nothing, and the modes fade on. A step without
    any value is not counted, so series of different lengths are padded with NaN behind their ends.
    A difference is that from the last observed value of the channel, 0 for the first.

    Args:
        d_input: channels of a series.
        n_modes: how many modes.
        length: steps of the longest series that is expected, or their time where there is ``dt``.
        generator: of the random numbers, on the CPU; None is PyTorch's own.

    Raises:
        ArgumentError: a count that is no integer of at least 1, or more modes than memory holds.

    Example:
        >>> x = torch.randn(8, 100, 1).cumsum(1)
        >>> bank = ModeBank(1, 50, length=100).calibrate(x)
        >>> bank(x).shape
        torch.Size([8, 300])
        >>> state = bank.init_state(8)
        >>> for piece in x.split(30, dim=1):
        ...     state = bank.update(piece, state)
        >>> torch.allclose(bank.features(state), bank(x), atol=1e-5)
        True

    Reference:
        The modes are those of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long
        Sequences", 2023, arXiv:2303.06349, drawn otherwise than there. Random features with a
        linear read-out are those of Dempster et al., "ROCKET", 2020, arXiv:1910.13051, with the
        share above 0 and the maximum; MultiRocket (Tan et al., 2022, arXiv:2102.00457) adds the
        mean, the mean place and the longest stretch, and MiniRocket (Dempster et al., 2021,
        arXiv:2012.08791) takes thresholds from quantiles of training data.
    """

    rate: Tensor
    angle: Tensor
    out: Tensor
    weight: Tensor
    threshold: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        d_input: int,
        n_modes: int = 3000,
        *,
        length: int,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("ModeBank", d_input=d_input, n_modes=n_modes, length=length)
        # two copies in double precision while they are drawn
        check_fits("ModeBank", "its modes", 16 * n_modes * (5 + 2 * d_input), _FEWER)
        self.d_input, self.n_modes, self.length = d_input, n_modes, length
        modes = random_modes(d_input, n_modes, length, generator)
        modes |= {"threshold": torch.zeros(n_modes, device="cpu")}
        home = device or torch.get_default_device()
        for name, value in modes.items():
            self.register_buffer(name, value.to(home, dtype or torch.get_default_dtype()))
        # in single precision a centre far from zero would be off by more than the spread
        double = {"device": device, "dtype": torch.float64}
        self.register_buffer("mean", torch.zeros(d_input, **double))  # type: ignore[arg-type]
        self.register_buffer("scale", torch.ones(d_input, **double))  # type: ignore[arg-type]

    @property
    def n_features(self) -> int:
        """How many numbers describe a series: each of `STATISTICS` of each mode."""
        return len(STATISTICS) * self.n_modes

    @torch.no_grad()
    def calibrate(
        self,
        x: Float[Tensor, "batch time d_input"],
        dt: Times | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> "ModeBank":
        """Take mean, scale and thresholds from training series, in place.

        A threshold is a quantile, uniform from 0 to 1, of its mode's wave over 32 of the series.

        Args:
            x, dt: see `forward`.
            generator: of the random numbers, on the CPU; None is PyTorch's own.

        Returns:
            The bank itself.

        Raises:
            ArgumentError: no value was observed, or see `forward`.
            ShapeError, DTypeError: see `forward`.
        """
        self._check(x, dt)
        steps = x.isnan().logical_not().any(-1)
        if not bool(steps.any()):
            raise ArgumentError(
                f"ModeBank: x must hold values to calibrate on, got {tuple(x.shape)} without any."
            )
        mean, scale = centre_and_spread(x)
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        x, dt = x[steps.any(1)], None if dt is None else dt[steps.any(1)]
        rows = some_rows(len(x), x.shape[1], generator).to(x.device)
        rows_dt = None if dt is None else dt[rows]
        drive, _ = self._drive(x[rows], self._no_value(len(rows)), rows_dt)
        self.threshold.copy_(random_quantiles(self._modes(), drive, generator))
        return self

    @torch.no_grad()
    def forward(
        self, x: Float[Tensor, "batch time d_input"], dt: Times | None = None
    ) -> Float[Tensor, "batch features"]:
        """The features of whole series.

        Args:
            x: the series, of float32 or float64; NaN is a value that was not observed.
            dt: the time since the step before, at least 0; None is 1 everywhere.

        Returns:
            (batch, 6 * n_modes), one statistic of all modes after the other.

        Raises:
            ShapeError: other shapes.
            DTypeError: numbers of another dtype.
            ArgumentError: a value that is infinite or 1e30 standard deviations away, or a time that
                is negative or not finite.
        """
        self._check(x, dt)
        needed = self.n_modes * (_STATE * min(len(x), _ROWS) + 8 * len(STATISTICS) * len(x))
        check_fits("ModeBank", "states and features", needed, _FEWER)
        features = []
        for k in range(0, max(1, len(x)), _ROWS):
            rows = slice(k, k + _ROWS)
            features.append(self._describe(x[rows], None if dt is None else dt[rows]))
        return features[0] if len(features) == 1 else torch.cat(features)

    def _describe(self, x: Tensor, dt: Tensor | None) -> Tensor:
        """The features of a few series."""
        if len(x) and 0 < x.shape[1] <= _CHUNK:
            drive, _ = self._drive(x, self._no_value(len(x)), dt)
            features = describe(self._modes(), self.threshold, drive)
            if features is not None:
                return features
        state = self.init_state(len(x))
        return self.features(self._update(x, state, dt))

    def init_state(self, batch_size: int) -> dict[str, Tensor]:
        """The state before the first step; see `linrnn.state` for what can be done with one."""
        zero = self.threshold.new_zeros(batch_size, self.n_modes)
        sums, numbers = zero.double(), zero.new_zeros(batch_size, dtype=torch.float64)
        return {
            "h": torch.complex(zero, zero),
            **dict.fromkeys(("run", "longest", "end"), zero),
            **dict.fromkeys(("steps", "excess", "place"), sums),
            "top": torch.full_like(zero, -torch.inf),
            "last": self._no_value(batch_size),
            # the time of the last step, that of the last observed one, and how many these were
            **dict.fromkeys(("time", "until", "observed"), numbers),
        }

    @torch.no_grad()
    def update(
        self,
        x: Float[Tensor, "batch time d_input"],
        state: dict[str, Tensor],
        dt: Times | None = None,
    ) -> dict[str, Tensor]:
        """Read on: the state after more steps.

        Args:
            x, dt: the next steps, see `forward`.
            state: what `init_state` or an earlier call returned; it is not changed.

        Raises:
            ShapeError, DTypeError, ArgumentError: see `forward`.
        """
        self._check(x, dt)
        expected = {"batch": len(x), "n_modes": self.n_modes}
        check_shape("ModeBank", "the state's h", state["h"].shape, expected)
        return self._update(x, state, dt)

    @torch.no_grad()
    def features(self, state: dict[str, Tensor]) -> Float[Tensor, "batch features"]:
        """The features of what was read until now; see `forward`."""
        q, observed = self.threshold, state["observed"][:, None]
        above, n_observed = state["steps"].clamp(min=1), observed.clamp(min=1)
        until = torch.where(state["until"] > 0, state["until"], 1.0)[:, None]
        statistics = (
            state["steps"] / n_observed,
            q + state["excess"] / above,
            torch.where(state["steps"] > 0, state["place"] / above / until, _NEVER),
            state["longest"] / n_observed,
            torch.where(observed > 0, state["top"], q),
            torch.where(observed > 0, state["end"], q),
        )
        return torch.cat([x.to(q.dtype) for x in statistics], 1)

    def extra_repr(self) -> str:
        """The arguments, for ``print``."""
        return f"{self.d_input}, {self.n_modes}, length={self.length}"

    def _modes(self) -> Modes:
        return Modes(self.rate, self.angle, torch.view_as_complex(self.out), self.weight)

    def _no_value(self, rows: int) -> Tensor:
        """The last value of each channel before there was one."""
        return self.threshold.new_full((rows, self.d_input), torch.nan)

    def _update(self, x: Tensor, state: dict[str, Tensor], dt: Tensor | None) -> dict[str, Tensor]:
        for k in range(0, x.shape[1] if len(x) else 0, _CHUNK):
            steps = slice(k, k + _CHUNK)
            state = self._chunk(x[:, steps], state, None if dt is None else dt[:, steps])
        return state

    def _chunk(self, x: Tensor, state: dict[str, Tensor], dt: Tensor | None) -> dict[str, Tensor]:
        drive, last = self._drive(x, state["last"], dt)
        none = torch.zeros_like(state["run"])
        running = {name: state[name] for name in ("h", "run", "longest", "top", "end")}
        start = Tally(**running, steps=none, excess=none, place=none)
        new = tally(self._modes(), self.threshold, drive, start)
        observed, time = drive.observed[..., 0] > 0, drive.time[..., 0].double()
        until = state["time"] + torch.where(observed, time, 0.0).amax(1)
        return {
            **{name: getattr(new, name) for name in running},
            **{name: state[name] + getattr(new, name) for name in ("steps", "excess")},
            "place": state["place"] + new.place + state["time"][:, None] * new.steps,
            "last": last,
            "time": state["time"] + time[:, -1],
            "until": torch.where(observed.any(1), until, state["until"]),
            "observed": state["observed"] + observed.sum(1),
        }

    def _drive(self, x: Tensor, last: Tensor, dt: Tensor | None) -> tuple[Drive, Tensor]:
        """Return the inputs of the modes and the last value of each channel, both standardised."""
        x = (x.double() - self.mean) / self.scale
        if bool((x.abs() > _FARTHEST).any()):
            raise ArgumentError(
                f"ModeBank: x must lie within {_FARTHEST:g} standard deviations of the series that "
                "the bank was calibrated on, got a value farther away."
            )
        x = x.to(self.threshold.dtype)
        observed = x.isnan().all(-1, keepdim=True).logical_not().to(x.dtype)
        step = torch.ones_like(observed) if dt is None else dt[..., None].to(x.dtype)
        more, last = increments(x, last)
        # times count from the beginning of the piece, where single precision is enough
        time = step.double().cumsum(1).to(x.dtype)
        both = torch.cat([x.nan_to_num(nan=0.0), more], -1)
        return Drive(both, observed, time, None if dt is None else step), last

    def _check(self, x: Tensor, dt: Tensor | None) -> None:
        if x.dtype not in (torch.float32, torch.float64):
            raise DTypeError(f"ModeBank: x must be of float32 or float64, got {x.dtype}.")
        expected = {"batch": None, "time": None, "d_input": self.d_input}
        check_shape("ModeBank", "x", x.shape, expected)
        if bool(x.isinf().any()):
            raise ArgumentError("ModeBank: x must be finite or NaN, got infinity.")
        if dt is None:
            return
        check_shape("ModeBank", "dt", dt.shape, {"batch": len(x), "time": x.shape[1]})
        if dt.is_complex():
            raise DTypeError(f"ModeBank: dt must be of a real dtype, got {dt.dtype}.")
        if not bool((dt.isfinite() & (dt >= 0)).all()):
            raise ArgumentError("ModeBank: dt must be finite and at least 0, got other numbers.")
        if bool((dt.double().sum(1) > _FARTHEST).any()):
            raise ArgumentError(
                f"ModeBank: dt must sum to at most {_FARTHEST:g} in a series, got more. Count time "
                "in larger units."
            )
