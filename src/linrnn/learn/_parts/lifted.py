"""The problem of lifted learning: states as variables, tied to the model by a penalty."""

from collections.abc import Sequence

import torch
from torch import Tensor

from linrnn.learn._parts.descent import descend
from linrnn.learn._parts.pieces import Pieces


class Problem:
    """States and multipliers of a batch, and what is minimised.

    Args:
        pieces: of the batch.
        penalty: rho.
    """

    def __init__(self, pieces: Pieces, penalty: float) -> None:
        self.pieces, self.penalty, self.rows = pieces, penalty, len(pieces.batch.x)
        self.values: list[list[Tensor]] = pieces.values()
        self.multipliers = [[torch.zeros_like(h) for h in parts] for parts in self.values]
        self.gaps: list[list[Tensor]] = self.multipliers
        """Violations at the states of the last `objective`, without a history."""

    def objective(self, saddle: bool = False, values: Sequence[Sequence[Tensor]] = ()) -> Tensor:
        """The loss, and what violations cost: by ``rho/2 |r|^2``, or ``rho |r|^2``."""
        values = values or self.values
        heard = self.pieces.read(values)
        gaps = self.pieces.gaps(values, heard)
        self.gaps = [[r.detach() for r in parts] for parts in gaps]
        rho = self.penalty if saddle else self.penalty / 2
        total = heard.loss
        for parts, mus in zip(gaps, self.multipliers, strict=True):
            for r, mu in zip(parts, mus, strict=True):
                total = total + (mu * r + rho * r.square()).sum() / self.rows
        return total

    def minimise(self, block: slice, iterations: int) -> None:
        """Fewer violations and loss by some of the states, the others as they are."""
        places = range(len(self.values))[block]
        chosen = [h for place in places for h in self.values[place]]
        if not chosen:
            return

        def objective(parts: Sequence[Tensor]) -> Tensor:
            new, remaining = list(self.values), iter(parts)
            for place in places:
                new[place] = [next(remaining) for _ in self.values[place]]
            return self.objective(values=new)

        minimised = iter(descend(objective, chosen, iterations, self.rows / self.penalty))
        for place in places:
            self.values[place] = [next(minimised) for _ in self.values[place]]

    def raise_multipliers(self) -> None:
        """Add rho times the violations to the multipliers."""
        with torch.no_grad():
            self.objective()
        self._raise_by(self.penalty)

    def saddle_step(self, rate: float) -> None:
        """Down in the states, up in the multipliers."""
        flat = [h.requires_grad_() for parts in self.values for h in parts]
        if not flat:
            return
        cost = self.rows * self.objective(saddle=True)
        grads = iter(torch.autograd.grad(cost, flat, materialize_grads=True))
        self.values = [[(h - rate * next(grads)).detach() for h in parts] for parts in self.values]
        self._raise_by(rate)

    def _raise_by(self, rate: float) -> None:
        self.multipliers = [
            [mu + rate * r for mu, r in zip(mus, parts, strict=True)]
            for mus, parts in zip(self.multipliers, self.gaps, strict=True)
        ]
