"""Small linear recurrences that stand in for long filters: Hankel fits of impulse responses."""

from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_positive_int, check_shape

STABLE = 1 - 1e-4  # the largest modulus of a fitted pole
ROWS = 512  # of the Hankel matrix, whose singular values cost the cube of them


class Modes(NamedTuple):
    r"""A filter of each channel as a sum of decaying waves, which is a diagonal recurrence.

    Equation::

        h_0 = direct        h_t = Re sum_n residues_n poles_n^(t-1)  for t >= 1
        x_{t+1} = poles * x_t + u_t        y_t = Re sum_n residues_n x_{t,n} + direct u_t

    Of a pair of conjugate poles the upper one is kept, with twice its residue.
    """

    poles: Tensor  # (channels, modes), complex128, inside the unit circle; 0 where there are fewer
    residues: Tensor  # the same shape
    direct: Tensor  # (channels,), float64

    def kernel(self, length: int) -> Tensor:
        """The filters' first ``length`` numbers: (channels, length), float64."""
        powers = torch.linalg.vander(self.poles, N=max(1, length - 1))
        waves = (powers * self.residues[..., None]).real.sum(1)
        found: Tensor = torch.cat([self.direct[:, None], waves], 1)[:, :length]
        return found


def hankel_values(kernel: Tensor, rows: int = ROWS) -> Tensor:
    """The singular values of the matrix ``S_ij = kernel_{i+j+1}``, largest first.

    No recurrence of order d approximates that matrix, in the spectral norm, nearer than value
    d + 1 (Adamyan, Arov and Krein): where they are small, so may d be.

    Args:
        kernel: (channels, length), of at least three numbers.
        rows: of the matrix; at most half the length.

    Returns:
        (channels, rows), float64.

    Example:
        >>> halves = 0.5 ** torch.arange(9.0)  # a recurrence of order one
        >>> hankel_values(halves[None])[0, :2].round(decimals=3)
        tensor([0.6640, 0.0000], dtype=torch.float64)
    """
    values: Tensor = torch.linalg.svdvals(_hankel(kernel, rows))
    return values


def fit_modes(kernel: Tensor, order: int, *, rows: int = ROWS) -> Modes:
    """The modes of a recurrence whose impulse response is near to ``kernel``.

    Poles are those of the balanced realisation of the Hankel matrix, cut off at ``order`` (Kung
    1978; the closed form of Massaroli et al. 2023, arXiv:2310.18780), moved into the circle where
    they lie outside; residues are least squares over all of the kernel. A filter that is such a
    recurrence is found exactly. All is computed in double precision.

    Args:
        kernel: impulse responses (channels, length), of at least three numbers, finite.
        order: of the recurrence, counted as real numbers of its state; at most ``rows``.
        rows: of the Hankel matrix; at most half the length is taken.

    Raises:
        ShapeError: a kernel that is none.
        ArgumentError: an order that is larger than the Hankel matrix, numbers that are not finite.

    Example:
        >>> t = torch.arange(64, dtype=torch.float64)
        >>> wave = 0.9**t * torch.cos(0.3 * t)
        >>> found = fit_modes(wave[None], 2)
        >>> (found.kernel(64) - wave).abs().max().item() < 1e-12
        True
    """
    check_positive_int("fit_modes", order=order, rows=rows)
    hankel = _hankel(kernel, rows)
    if order > hankel.shape[-1]:
        raise ArgumentError(
            f"fit_modes: order must be at most the {hankel.shape[-1]} rows of the Hankel matrix, "
            f"got {order}. Take a longer kernel, or more rows."
        )
    U, sigma, _ = torch.linalg.svd(hankel)
    observed = U[..., :order] * sigma[:, None, :order].sqrt()
    shift = torch.linalg.pinv(observed[:, :-1]) @ observed[:, 1:]
    poles = torch.linalg.eigvals(shift)
    poles = poles * (STABLE / poles.abs().clamp(min=STABLE))
    upper = poles.imag >= 0
    count = int(upper.sum(-1).max())  # at least one: what is not real comes in pairs
    chosen = torch.where(upper, poles.abs(), -1).argsort(-1, descending=True)[:, :count]
    poles = poles.gather(1, chosen).where(upper.gather(1, chosen), 0)
    return _with_residues(poles, kernel.double())


def _with_residues(poles: Tensor, kernel: Tensor) -> Modes:
    """Least squares over real and imaginary parts of the residues; those of no pole are 0."""
    waves = torch.linalg.vander(poles, N=kernel.shape[1] - 1).transpose(1, 2)  # (C, L - 1, M)
    waves = waves * (poles != 0)[:, None]
    single = (poles.imag == 0)[:, None]  # an imaginary part would add nothing
    columns = torch.cat([waves.real, torch.where(single, 0, -waves.imag)], -1)
    found = torch.linalg.lstsq(columns, kernel[:, 1:, None], driver="gelsd").solution[..., 0]
    re, im = found.chunk(2, -1)
    return Modes(poles, torch.complex(re, im), kernel[:, 0])


def _hankel(kernel: Tensor, rows: int) -> Tensor:
    check_shape("modes", "kernel", kernel.shape, {"channels": None, "length": None})
    size = min(rows, (kernel.shape[1] - 1) // 2)
    if size < 1:
        raise ArgumentError(
            f"modes: kernel must have at least three numbers a channel, got {kernel.shape[1]}."
        )
    if not bool(kernel.isfinite().all()):
        raise ArgumentError("modes: kernel must be finite, got one that is not.")
    return kernel.double()[:, 1 : 2 * size].unfold(1, size, 1)
