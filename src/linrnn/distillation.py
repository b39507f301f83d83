"""Long filters into small recurrences: a trained model whose steps cost the same for ever.

A layer of long convolutions (`linrnn.mixers.Mixer.impulse_responses`) is replaced by one that has
recurrences instead of its filters, fitted to the first ``length`` steps of each
(`linrnn.nn.modal`); gates and maps around them stay as they are. Hyena becomes LaughingHyena;
SGConv and the diagonal systems of one input and one output each (S4, S4D, DSS, DLR) become Modal.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from linrnn._options.call import checked
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers import Mixer
from linrnn.nn.modal import Fit, fit_orders

__all__ = [
    "AnyModel",
    "Distilled",
    "LayerFit",
    "distill",
    "distill_orders",
]


def __dir__() -> list[str]:
    return sorted(__all__)


AnyModel = TypeVar("AnyModel", bound=nn.Module)


class LayerFit(NamedTuple):
    """How near the filters of one layer are to those they stand for."""

    name: str
    """Name of the layer in the model, as ``blocks.0.mixer``; empty if the layer is the model."""
    kind: str
    """Its class before."""
    errors: Tensor
    """(filters, channels), float64: norm of the difference over that of the filter, both over the
    steps that were fitted."""
    floors: Tensor
    """(filters, channels): no recurrence of the order comes nearer over the steps that were fitted,
    by Hankel matrices of these."""
    singular: Tensor
    """(filters, channels): the Hankel matrix's first singular value that the order leaves out, as
    part of the largest; the spectral norm of no difference is smaller (Adamyan, Arov and Krein)."""

    @property
    def largest(self) -> float:
        """The error of the channel that is worst off."""
        return float(self.errors.max())

    @property
    def median(self) -> float:
        """The error of the channel in the middle."""
        return float(self.errors.median())

    @property
    def floor(self) -> float:
        """Lower bound of `largest` for any method."""
        return float(self.floors.max())


@dataclass(frozen=True)
class Distilled(Generic[AnyModel]):
    """A model with small recurrences instead of its long filters."""

    model: AnyModel
    """A copy; what it is not distilled of is as before."""
    order: int
    """Real numbers in the state of each filter, as far as it needs them."""
    layers: tuple[LayerFit, ...]
    """Reports of the replaced layers, in the order of the model."""


@checked
def distill(
    model: AnyModel, order: int = 16, *, length: int, rows: int = 512
) -> Distilled[AnyModel]:
    """A model's long filters as recurrences of a small order, with how near they come.

    Beyond ``length`` a filter goes on as its recurrence does, where that of a convolution may have
    ended.

    Args:
        model: a mixer, or any module with mixers in it. It stays as it is.
        order: of the recurrence that stands for a filter, in real numbers of its state; a mode
            that stands for a pair of poles counts two.
        length: steps of the filters that are fitted: those of the training sequences.
        rows: of the Hankel matrix that is tried first, at most half the length is taken; see
            `linrnn.nn.modal.fit_modes`.

    Returns:
        The distilled copy, and errors for each layer.

    Raises:
        ArgumentError: no layer has long filters; a length below 3; an order that is larger than
            the Hankel matrix.

    Example:
        >>> from linrnn.mixers import Hyena
        >>> found = distill(Hyena(4, l_max=64), 8, length=64)
        >>> type(found.model).__name__, found.layers[0].largest < 0.01
        ('LaughingHyena', True)

    Reference:
        Massaroli et al. 2023, arXiv:2310.18780.
    """
    return distill_orders(model, [order], length=length, rows=rows)[0]


@torch.no_grad()
def distill_orders(
    model: AnyModel, orders: Sequence[int], *, length: int, rows: int = 512
) -> list[Distilled[AnyModel]]:
    """`distill` at several orders, for about the cost of one.

    Args:
        model, length, rows: see `distill`.
        orders: as there.

    Raises:
        ArgumentError: as there, or no order.
    """
    if not orders:
        raise ArgumentError("distill: there must be at least one order, got none.")
    check_positive_int("distill", length=length)
    layers = [_Layer(*named_mixer, orders, length, rows) for named_mixer in _long(model)]
    return [_at(model, order, layers, i) for i, order in enumerate(orders)]


class _Layer:
    """One that is replaced: its filters and their fits at every order."""

    def __init__(
        self, name: str, mixer: Mixer, orders: Sequence[int], length: int, rows: int
    ) -> None:
        filters = mixer.impulse_responses(length)
        assert filters is not None
        self.name, self.mixer, self.filters = name, mixer, filters
        if not bool(filters.isfinite().all()):
            raise ArgumentError(
                f"distill: the filters of {_said(name, mixer)} must be finite over {length} steps, "
                "got some that are not. Take a shorter length."
            )
        self.fits = fit_orders(filters.flatten(0, 1), orders, rows=rows)  # of (filters, time)

    def modes(self, at: int) -> int:
        """How many modes a channel needs at most."""
        return self.fits[at].modes.poles.shape[1]

    def replaced(self, at: int, count: int) -> tuple[Mixer, LayerFit]:
        """The new layer, with ``count`` modes a channel, and its error."""
        fit, shape = self.fits[at], self.filters.shape[:2]
        padded = fit.modes.padded(count)
        parts = zip(*(x.split(shape[1]) for x in padded), strict=True)
        new = self.mixer.distilled([type(padded)(*part) for part in parts])
        new.train(self.mixer.training)
        return new, self._report(new, fit, shape)

    def _report(self, new: Mixer, fit: Fit, shape: torch.Size) -> LayerFit:
        filters = new.impulse_responses(self.filters.shape[2])
        assert filters is not None
        norm = self.filters.norm(dim=2).clamp(min=torch.finfo(torch.float64).tiny)
        return LayerFit(
            name=self.name,
            kind=type(self.mixer).__name__,
            errors=(filters - self.filters).norm(dim=2) / norm,
            floors=fit.floor.view(shape),
            singular=fit.singular.view(shape),
        )


def _at(model: AnyModel, order: int, layers: Sequence[_Layer], at: int) -> Distilled[AnyModel]:
    """The model with every layer replaced, all with as many modes as one of them needs."""
    count = max(layer.modes(at) for layer in layers)
    replacements = {layer.name: layer.replaced(at, count) for layer in layers}
    new: Any
    if "" in replacements:
        new = replacements[""][0]
    else:
        memo = {id(layer.mixer): replacements[layer.name][0] for layer in layers}
        new = copy.deepcopy(model, memo)  # which takes these for copies of the old ones
    return Distilled(new, order, tuple(report for _, report in replacements.values()))


def _long(model: nn.Module) -> list[tuple[str, Mixer]]:
    """The mixers with long filters, by name; not those that are parts of another."""
    mixers: dict[str, Mixer] = {}
    for name, part in model.named_modules():
        inside = any(name.startswith(f"{outer}.") or outer == "" for outer in mixers)
        if isinstance(part, Mixer) and not inside:
            mixers[name] = part
    long_mixers = [(n, m) for n, m in mixers.items() if m.impulse_responses(1) is not None]
    if not long_mixers:
        got = ", ".join(_said(*named_mixer) for named_mixer in mixers.items()) or "no mixer at all"
        raise ArgumentError(
            f"distill: the model must have a layer with long filters, got {got}. hyena, sgconv, "
            "s4, s4d, dss and dlr are such."
        )
    return long_mixers


def _said(name: str, mixer: Mixer) -> str:
    """A layer in a message."""
    kind = type(mixer).__name__
    return f"{kind} in {name}" if name else kind
