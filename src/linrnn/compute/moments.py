"""Sums of products of the rows that a ridge is fitted to: all that the fit needs."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass
class Moments:
    """Sums over rows of products of features x, targets y and the features z of all channels.

    With them a ridge is solved for any penalty, the squared error of any read-out on these rows is
    known (`error`), and two sets of rows are taken together by adding. Their size does not depend
    on the number of rows.
    """

    rows: Tensor
    """(): how many."""
    xx: Tensor
    """(groups, features, features); a group is a channel, or all of them."""
    xy: Tensor
    """(groups, features, horizon)."""
    yy: Tensor
    """(groups, horizon)."""
    zz: Tensor
    """(width, width); width 0 where channels are not looked at together."""
    zx: Tensor
    """(groups, width, features)."""
    zy: Tensor
    """(groups, width, horizon)."""

    @classmethod
    def empty(cls, groups: int, features: int, width: int, horizon: int) -> "Moments":
        """The moments of no rows: zeros."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device="cpu")

        return cls(
            rows=zeros(),
            xx=zeros(groups, features, features),
            xy=zeros(groups, features, horizon),
            yy=zeros(groups, horizon),
            zz=zeros(width, width),
            zx=zeros(groups, width, features),
            zy=zeros(groups, width, horizon),
        )

    @property
    def groups(self) -> int:
        """The number of groups of channels with separate moments."""
        return len(self.xx)

    def add(self, x: Tensor, y: Tensor, z: Tensor | None) -> None:
        """Count rows: x (channels, rows, features), y (channels, rows, horizon), z (rows, width).

        An element of a target is the value of a later step, less the one of the row's own.
        """
        self.rows += x.shape[1]
        if z is not None:
            self.zz.addmm_(z.T, z)
        for channel, (features, targets) in enumerate(zip(x, y, strict=True)):
            group = min(channel, self.groups - 1)
            self.xx[group].addmm_(features.T, features)
            self.xy[group].addmm_(features.T, targets)
            self.yy[group] += targets.square().sum(0)
            if z is not None:
                self.zx[group].addmm_(z.T, features)
                self.zy[group].addmm_(z.T, targets)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def clone(self) -> "Moments":
        """The same sums, in tensors of their own."""
        return Moments(**{f.name: getattr(self, f.name).clone() for f in fields(self)})

    def pooled(self) -> "Moments":
        """All channels as one group."""
        sums = {name: getattr(self, name).sum(0, keepdim=True) for name in ("xx", "xy", "yy")}
        none = Moments.empty(1, self.xx.shape[-1], 0, self.yy.shape[-1])
        return Moments(rows=self.rows, zz=none.zz, zx=none.zx, zy=none.zy, **sums)

    def error(self, group: int, shared: Tensor, more: Tensor | None = None) -> Tensor:
        """Squared errors (horizon,) of ``x @ shared + z @ more``, summed over a group's rows."""
        xy, yy = self.xy[group], self.yy[group]
        errors = yy + (shared * (self.xx[group] @ shared - 2 * xy)).sum(0)
        if more is not None:
            residual = self.zy[group] - self.zx[group] @ shared
            errors = errors + (more * (self.zz @ more - 2 * residual)).sum(0)
        return errors.clamp_min(0)


class Ridge:
    """``(A + penalty diag(scale))^-1 B`` for many penalties, from one eigendecomposition.

    Args:
        a: (features, features), symmetric and positive semidefinite.
        b: (features, targets).
        scale: (features,); that of a feature which never moved may be 0.
    """

    def __init__(self, a: Tensor, b: Tensor, scale: Tensor) -> None:
        self.root = torch.where(scale > 0, scale, 1).sqrt()
        decomposition = torch.linalg.eigh(a / self.root[:, None] / self.root)
        self.values, self.vectors = decomposition.eigenvalues, decomposition.eigenvectors
        # an eigenvalue below what rounding leaves of the largest says nothing
        self.noise = float(self.values[-1]) * len(a) * torch.finfo(a.dtype).eps if len(a) else 0.0
        self.b = self.vectors.T @ (b / self.root[:, None])

    def solve(self, penalty: float) -> Tensor:
        """The coefficients (features, targets)."""
        shrunk = self.b / (self.values.clamp_min(self.noise) + penalty)[:, None]
        solved: Tensor = self.vectors @ shrunk / self.root[:, None]
        return solved


def solve_ridge(a: Tensor, b: Tensor, scale: Tensor, penalty: float) -> Tensor:
    """`Ridge` at one penalty: by Cholesky's factors, or where rounding leaves none, by `Ridge`."""
    root = torch.where(scale > 0, scale, 1).sqrt()
    scaled = a / root[:, None] / root
    scaled.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if bool(failed):
        return Ridge(a, b, scale).solve(penalty)
    return torch.cholesky_solve(b / root[:, None], factor) / root[:, None]
