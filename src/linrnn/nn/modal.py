"""Small linear recurrences that stand in for long filters: Hankel fits of impulse responses."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError, check_positive_int, check_shape

STABLE = 1 - 1e-4  # the largest modulus of a fitted pole
ROWS = 512  # of the Hankel matrix, whose singular values cost the cube of them
WIDEST = 1024  # of that which is tried where the first misses; 8 times the cost, 1 s a channel
_NEAR, _EXACT = 4.0, 1e-9  # an error that is as good as its floor, or as nothing
_NOTHING = 1e-8  # the modulus of a pole that is as good as 0
_ALIKE = 1e-12  # an error, as part of the kernel, than which none need be less
_AT_ONCE = 1 << 24  # numbers of Hankel matrices that are held


class Modes(NamedTuple):
    r"""A filter of each channel as a sum of decaying waves, which is a diagonal recurrence.

    Equation::

        h_0 = direct        h_t = Re sum_n residues_n poles_n^(t-1)  for t >= 1
        x_{t+1} = poles * x_t + u_t        y_t = Re sum_n residues_n x_{t,n} + direct u_t

    In a pair of conjugate poles the upper one is kept, with twice its residue.
    """

    poles: Tensor  # (channels, modes), complex128, inside the unit circle; 0 where there are fewer
    residues: Tensor  # the same shape
    direct: Tensor  # (channels,), float64

    def kernel(self, length: int) -> Tensor:
        """The filters' first ``length`` numbers: (channels, length), float64."""
        powers = torch.linalg.vander(self.poles, N=max(2, length - 1))
        waves = (powers * self.residues[..., None]).real.sum(1)
        filters: Tensor = torch.cat([self.direct[:, None], waves], 1)
        return filters[:, :length]

    def padded(self, count: int) -> "Modes":
        """The same with ``count`` modes a channel, poles and residues of the new ones 0."""
        more = (0, count - self.poles.shape[1])
        return Modes(F.pad(self.poles, more), F.pad(self.residues, more), self.direct)


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
    values: Tensor = torch.linalg.eigvalsh(_hankel(kernel, rows)).abs()
    return values.sort(-1, descending=True).values


def fit_modes(kernel: Tensor, order: int, *, rows: int = ROWS) -> Modes:
    """The modes of a recurrence whose impulse response is near to ``kernel``.

    Poles are those of the balanced realisation of the Hankel matrix, cut off at ``order`` (Kung
    1978; the closed form of Massaroli et al. 2023, arXiv:2310.18780), moved into the circle where
    they lie outside; residues are least squares over all of the kernel. For a channel that has such
    poles, the kernel ending before it has faded, those of the kernel with as many zeros behind it
    are tried too, and the nearer taken. Where the error is above 4 times `Fit.floor`, and the
    kernel is longer than ``2 rows``, a matrix of up to 1,024 rows is tried. All is computed in
    double precision.

    A filter that is such a recurrence is found to 1e-7 or better where the angles of its poles
    differ by more than ``2 pi / rows``, rows of the wider matrix. Poles nearer to one another
    cannot be told apart by the digits of a double: `Fit.error` is 0.07 for the 64 modes of S4D at
    steps of 1e-3 over 2,048 numbers, 3e-3 apart. Beyond 2,048 numbers poles are also sought in
    every q-th number, which finds slow ones, below pi / q, as if there were as many rows.

    Args:
        kernel: impulse responses (channels, length), of at least three numbers, finite.
        order: of the recurrence, counted as real numbers of its state; at most ``rows``.
        rows: of the Hankel matrix that is tried first; at most half the length is taken.

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
    return fit_orders(kernel, [order], rows=rows)[0].modes


class Fit(NamedTuple):
    """Modes of one order, how near they are, and what no recurrence of that order can do better."""

    modes: Modes
    floor: Tensor
    """(channels,), float64: every recurrence of the order differs from the kernel by at least that
    part of the kernel's norm. For a Hankel matrix of M rows the squares of the singular values
    behind the order add up to at most M times the squared difference (Eckart and Young); of the
    matrices of the first 2 M numbers and of all of them the larger floor is taken."""
    singular: Tensor
    """(channels,), float64: the first singular value of the Hankel matrix behind the order, as
    part of the largest."""
    error: Tensor
    """(channels,), float64: norm of the difference over all of the kernel, as part of the kernel's
    norm."""


def fit_orders(kernel: Tensor, orders: Sequence[int], *, rows: int = ROWS) -> list[Fit]:
    """`fit_modes` at several orders, from one decomposition of the Hankel matrix.

    Args:
        kernel, rows: see `fit_modes`.
        orders: as there.

    Raises:
        ShapeError, ArgumentError: as there.

    Example:
        >>> kernel = 1 / (1 + torch.arange(33.0, dtype=torch.float64))[None]
        >>> for fit in fit_orders(kernel, [1, 4]):
        ...     assert fit.floor < fit.error < 50 * fit.floor
    """
    check_positive_int("fit_modes", rows=rows)
    for order in orders:
        check_positive_int("fit_modes", order=order)
    fits = _fits(kernel, orders, rows)
    kernel, wider = kernel.double(), min(WIDEST, (kernel.shape[1] - 1) // 2)
    floors = _floors_of_all(kernel, orders, rows)
    fits = [fit._replace(floor=torch.maximum(*each)) for fit, each in _with_floors(fits, floors)]
    if wider <= rows:
        return fits
    missed = torch.stack([f.error > (_NEAR * f.floor).clamp(min=_EXACT) for f in fits]).any(0)
    if not bool(missed.any()):
        return fits
    more = _fits(kernel[missed], orders, wider)
    if kernel.shape[1] > 2 * WIDEST + 1:
        more = [
            _nearer_of(fit, poles, kernel[missed])
            for fit, poles in zip(more, _slow_poles(kernel[missed], orders), strict=True)
        ]
    pairs = zip(fits, more, strict=True)
    return [_better(fit, wide_fit, missed, kernel) for fit, wide_fit in pairs]


def _with_floors(
    fits: Sequence[Fit], floors: Sequence[Tensor]
) -> list[tuple[Fit, tuple[Tensor, Tensor]]]:
    return [(fit, (fit.floor, floor)) for fit, floor in zip(fits, floors, strict=True)]


def _better(fit: Fit, wide_fit: Fit, place: Tensor, kernel: Tensor) -> Fit:
    """``fit``, in the channels at ``place`` that of a wider matrix where it is nearer."""
    count = max(fit.modes.poles.shape[1], wide_fit.modes.poles.shape[1])
    poles, residues, direct = fit.modes.padded(count)
    narrow = Modes(poles[place], residues[place], direct[place])
    near = _nearer(kernel[place], narrow, wide_fit.modes)
    modes = Modes(
        poles.index_put((place,), near.poles), residues.index_put((place,), near.residues), direct
    )
    floor = fit.floor.index_put((place,), torch.maximum(fit.floor[place], wide_fit.floor))
    return Fit(modes, floor, fit.singular, _error(modes, kernel))


def _slow_poles(kernel: Tensor, orders: Sequence[int]) -> list[Tensor]:
    """Poles for each order by every q-th number, few enough for the widest matrix to see the end.

    Right where no pole turns by more than pi / q a step.
    """
    q = -(-(kernel.shape[1] - 1) // (2 * WIDEST))
    observed, _ = _balanced(F.pad(kernel[:, 1::q], (1, 0)), WIDEST, max(orders))
    subsampled = (_poles(observed[..., :order])[0] for order in orders)
    roots = (
        torch.where(p == 0, 0, (torch.where(p == 0, 1, p).log() / q).exp()) for p in subsampled
    )
    return [p * (STABLE / p.abs().clamp(min=STABLE)) for p in roots]


def _nearer_of(fit: Fit, poles: Tensor, kernel: Tensor) -> Fit:
    modes = _nearer(kernel, fit.modes, _with_residues(poles, kernel))
    return fit._replace(modes=modes, error=_error(modes, kernel))


def _fits(kernel: Tensor, orders: Sequence[int], rows: int) -> list[Fit]:
    """Fit all orders from one Hankel matrix, which sees the first ``2 rows`` numbers."""
    max_order = max(orders)
    observed, values = _balanced(kernel, rows, max_order)
    kernel, size = kernel.double(), values.shape[1]
    tiny = torch.finfo(torch.float64).tiny
    norm = kernel.norm(dim=1).clamp(min=tiny)
    # what is behind the rounding of the largest value is noise, if not always nothing but that
    noise = values <= size * torch.finfo(values.dtype).eps * values[:, :1]
    ending: Tensor | None = None
    fits = []
    for order in orders:
        poles, grows = _poles(observed[..., :order])
        modes = _with_residues(poles, kernel)
        if bool(noise[:, :order].any()):
            heard = torch.where(noise[:, None, :order], 0, observed[..., :order])
            modes = _nearer(kernel, _with_residues(_poles(heard)[0], kernel), modes)
        if bool(grows.any()):  # the kernel ends before it has faded: so let it end with zeros
            if ending is None:
                ending = _balanced(F.pad(kernel, (0, kernel.shape[1])), rows, max_order)[0]
            ended = _with_residues(_poles(ending[..., :order])[0], kernel)
            modes = _nearer(kernel, modes, ended)
        floor = (values[:, order:].square().sum(1) / size).sqrt() / norm
        behind = F.pad(values, (0, 1))[:, order] / values[:, 0].clamp(min=tiny)
        fits.append(Fit(modes, floor, behind, _error(modes, kernel)))
    return fits


def _error(modes: Modes, kernel: Tensor) -> Tensor:
    norm = kernel.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    error: Tensor = (modes.kernel(kernel.shape[1]) - kernel).norm(dim=1) / norm
    return error


def _floors_of_all(kernel: Tensor, orders: Sequence[int], rows: int) -> list[Tensor]:
    """`Fit.floor` by the matrix of ``rows`` rows that sees every number, 0 where that is `_hankel`.

    Its squared singular values are eigenvalues of a product, of which only those count that are
    behind no rounding of the largest.
    """
    length = kernel.shape[1]
    size = min(rows, (length - 1) // 2)
    if length <= 2 * size + 1:
        return [kernel.new_zeros(len(kernel)) for _ in orders]
    parts = []
    for part in kernel.split(max(1, _AT_ONCE // (size * length))):
        hankel = part[:, 1:].unfold(1, length - size, 1)
        parts.append(torch.linalg.eigvalsh(hankel @ hankel.mT))
    squares = torch.cat(parts).flip(1)
    squares = (squares - size * torch.finfo(squares.dtype).eps * squares[:, :1]).clamp(min=0)
    norm = kernel.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return [(squares[:, order:].sum(1) / size).sqrt() / norm for order in orders]


def _balanced(kernel: Tensor, rows: int, order: int) -> tuple[Tensor, Tensor]:
    """Return what the first balanced states show, (C, rows, order), and all singular values.

    The Hankel matrix is symmetric: its singular values are the moduli of its eigenvalues.
    """
    hankel = _hankel(kernel, rows)
    size, parts = hankel.shape[-1], []
    if order > size:
        raise ArgumentError(
            f"fit_modes: order must be at most the {size} rows of the Hankel matrix, got {order}. "
            "Take a longer kernel, or more rows."
        )
    for part in hankel.split(max(1, _AT_ONCE // size**2)):
        values, vectors = torch.linalg.eigh(part)
        values, place = values.abs().sort(-1, descending=True)
        first = vectors.gather(2, place[:, None, :order].expand(-1, size, -1))
        parts.append((first * values[:, None, :order].sqrt(), values))
    observed, every = (torch.cat(each) for each in zip(*parts, strict=True))
    return observed, every


def _poles(observed: Tensor) -> tuple[Tensor, Tensor]:
    """The poles (C, modes) of states observed so, upper ones of pairs, and where any was moved."""
    shift = torch.linalg.pinv(observed[:, :-1]) @ observed[:, 1:]
    poles = torch.linalg.eigvals(shift)
    grows = (poles.abs() > STABLE).any(1)
    poles = poles * (STABLE / poles.abs().clamp(min=STABLE))
    poles = poles.gather(1, poles.abs().argsort(-1, descending=True))
    gone = poles.abs() < _NOTHING  # of these one is enough: all give one tap, h_1
    poles = torch.where(gone, _NOTHING**2, poles)
    upper = (poles.imag >= 0) & (gone.cumsum(-1) <= 1)
    count = int(upper.sum(-1).max())  # at least one: what is not real comes in pairs
    chosen = torch.where(upper, poles.abs(), -1).argsort(-1, descending=True)[:, :count]
    return poles.gather(1, chosen).where(upper.gather(1, chosen), 0), grows


def _nearer(kernel: Tensor, one: Modes, alternative: Modes) -> Modes:
    """Take for each channel the modes whose kernel is nearer, the first where they are as good."""
    count = max(one.poles.shape[1], alternative.poles.shape[1])
    both = one.padded(count), alternative.padded(count)
    errors = [(modes.kernel(kernel.shape[1]) - kernel).norm(dim=1) for modes in both]
    negligible = _ALIKE * kernel.norm(dim=1)
    first = ((errors[0] <= errors[1]) | (errors[0] <= negligible))[:, None]
    poles, residues = (
        torch.where(first, a, b) for a, b in zip(both[0][:2], both[1][:2], strict=True)
    )
    return Modes(poles, residues, one.direct)


def _with_residues(poles: Tensor, kernel: Tensor) -> Modes:
    """Least squares over real and imaginary parts of the residues; those of no pole are 0."""
    waves = torch.linalg.vander(poles, N=kernel.shape[1] - 1).transpose(1, 2)  # (C, L - 1, M)
    waves = waves * (poles != 0)[:, None]
    single = (poles.imag == 0)[:, None]  # an imaginary part would add nothing
    columns = torch.cat([waves.real, torch.where(single, 0, -waves.imag)], -1)
    solution = torch.linalg.lstsq(columns, kernel[:, 1:, None], driver="gelsd").solution[..., 0]
    re, im = solution.chunk(2, -1)
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
