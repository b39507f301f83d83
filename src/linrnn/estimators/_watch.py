"""Errors one step ahead of a forecaster that follows its series, and what they say of it."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from linrnn.compute.moments import Moments
from linrnn.estimators.drift import Drift
from linrnn.estimators.read_out import Choice, ReadOut
from linrnn.estimators.rows import Rows
from linrnn.nn.change_bank import ChangeBank

_LEAST_ROWS = 64  # between two solutions
_SHARE = 16  # of the rows at a solution, as many as there are to the next


@dataclass(frozen=True, kw_only=True)
class NextStep:
    r"""Forecasts one step ahead, from states that stand some steps back and the changes since.

    Equation:
        Re(w f_t) = Re(w lam^m f_{t-m}) + sum_{j < m} k_j (y_{t-j} - y_{t-j-1})
        k_j = Re(sum over modes of w gain lam^j)                m = horizon - 1

    The sums of the regression read states that far back in any case, so forecasts made at the end
    of the series cost no further scan.
    """

    back: ReadOut
    """(features, 1), of states m steps back."""
    kernels: Tensor
    """(channels, m, 1), of the channel's own changes, the oldest first."""
    across: dict[int, Tensor]
    """(channels, m), of the changes of all channels, where their states add to a channel."""

    @classmethod
    def of(cls, read_out: ReadOut, rows: Rows, channels: int) -> "NextStep":
        """The form of a read-out of one step ahead."""
        move, steps = partial(_moved, rows.bank, rows.horizon - 1), rows.horizon - 1
        kernel = partial(_kernel, rows.bank, steps)
        own = {c: move(one) for c, one in read_out.own.items()}
        kernels = [kernel(read_out.own.get(c, read_out.shared)) for c in range(channels)]
        together, across = {}, {}
        for c, coefficients in read_out.together.items():
            assert rows.few is not None
            parts = coefficients.new_zeros(channels, rows.bank.n_features, 1)
            parts[:, rows.few] = coefficients.view(channels, -1, 1)
            together[c] = torch.stack([move(one)[rows.few] for one in parts]).flatten(0, 1)
            across[c] = torch.stack([kernel(one) for one in parts])
        back = ReadOut(move(read_out.shared), own, together)
        return cls(back=back, kernels=torch.stack(kernels)[..., None], across=across)

    def forecasts(self, x: Tensor, z: Tensor | None) -> Tensor:
        """(channels, rows): the part of features m steps back."""
        return self.back.changes(x, z)[..., 0]

    def recent(self, series: Tensor, n: int) -> Tensor:
        """(channels, n): the part of the changes in a series (m + n + 1, channels)."""
        steps = self.kernels.shape[1]
        if not steps:
            return series.new_zeros(series.shape[1], n)
        windows = torch.diff(series[: steps + n], dim=0).unfold(0, steps, 1)  # (n, C, m)
        parts = (windows.transpose(0, 1) @ self.kernels)[..., 0]
        for c, kernels in self.across.items():
            parts[c] += (windows * kernels).sum((1, 2))
        return parts


def _weights(bank: ChangeBank, coefficients: Tensor) -> Tensor:
    """(modes,) complex: of which the real part of a product with states is that of features."""
    imaginary = coefficients.new_zeros(len(bank.modes))
    imaginary[: bank.n_complex] = coefficients[len(bank.modes) :, 0]
    return torch.complex(coefficients[: len(bank.modes), 0], -imaginary)


def _moved(bank: ChangeBank, steps: int, coefficients: Tensor) -> Tensor:
    """(features, 1), of states some steps before those that (features, 1) are for."""
    moved = _weights(bank, coefficients) * bank.modes**steps
    return torch.cat([moved.real, -moved.imag[: bank.n_complex]])[:, None]


def _kernel(bank: ChangeBank, steps: int, coefficients: Tensor) -> Tensor:
    """(steps,): the weight of each change since, the oldest first."""
    back = torch.arange(steps - 1, -1, -1, device="cpu")
    return ((_weights(bank, coefficients) * bank.gain) * bank.modes ** back[:, None]).sum(1).real


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Errors one step ahead since the fit.

    A read-out of one step ahead makes the forecasts. It is solved again when a sixteenth more rows
    have been counted than at the last solution, and not before 64: a solution takes longer than all
    else that a value costs, and changes little with a few more rows.
    """

    drift: Drift
    next: NextStep
    solved_at: int
    """Rows that were counted at the solution."""

    @classmethod
    def of(cls, drift: Drift, rows: Rows, choice: Choice, moments: Moments) -> "Watch":
        """At the end of a series that was fitted."""
        ahead = NextStep.of(choice.solve(moments, 1), rows, len(drift.tails))
        return cls(drift=drift, next=ahead, solved_at=int(moments.rows))

    def read(
        self, errors: Tensor, missing: Tensor | None, rows: Rows, choice: Choice, moments: Moments
    ) -> "Watch":
        """After the next errors; this one stays as it was.

        Args:
            errors: (channels, time), of the forecasts of ``next``.
            missing: (time, channels), as `Drift.read`.
            rows, choice, moments: of a read-out that has seen the values.
        """
        drift, count = self.drift.read(errors, missing), int(moments.rows)
        if count < self.solved_at + max(_LEAST_ROWS, self.solved_at // _SHARE):
            return Watch(drift=drift, next=self.next, solved_at=self.solved_at)
        return Watch.of(drift, rows, choice, moments)
