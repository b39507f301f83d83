"""Losses of layers: what training minimises beside the loss of a model's answers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from linrnn._process.ambient import Ambient
from linrnn.compute.modes import transformed


class AddedLosses:
    """The losses that layers have added since the last `take`."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Keep one more."""
        self._losses.append(loss)

    def take(self) -> Tensor | None:
        """The sum of all, a scalar, or None where no layer added one; they are gone then."""
        losses, self._losses = self._losses, []
        return torch.stack([loss.to(losses[0]) for loss in losses]).sum() if losses else None


_COLLECTOR: Ambient[AddedLosses] = Ambient("added_losses")


@contextmanager
def added_losses() -> Iterator[AddedLosses]:
    """Collect the losses that layers add, `Mixer.add_loss`, in what is computed inside.

    `linrnn.train.TrainingModule` does this around every learner. A loop of one's own does it
    around the forward pass; without it layers compute no loss. Inside of one another, the
    innermost has them all.

    Example:
        >>> from linrnn.mixers import CompressiveTransformer
        >>> layer = CompressiveTransformer(8, segment=4)
        >>> with added_losses() as added:
        ...     y, state = layer(torch.randn(2, 12, 8))
        >>> loss = y.square().mean() + added.take()
    """
    with _COLLECTOR.set(AddedLosses()) as losses:
        yield losses


def asked_now() -> AddedLosses | None:
    """The active collector, or None: only with gradients, outside of graphs and transforms."""
    if torch.compiler.is_compiling():
        return None
    losses = _COLLECTOR.get()
    return None if losses is None or not torch.is_grad_enabled() or transformed() else losses
