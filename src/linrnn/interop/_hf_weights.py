"""Weights of ours as those of a foreign layout, and back: what is renamed or reordered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.errors import DataError

Tensors = Sequence[Tensor]


def _same(tensors: Tensors) -> Tensors:
    return tensors


class Weight(NamedTuple):
    """Some tensors of ours, and the tensors of theirs that hold the same numbers."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Callable[[Tensors], Tensors] = _same
    to_theirs: Callable[[Tensors], Tensors] = _same

    def within(self, ours: str, theirs: str) -> "Weight":
        """The same in modules of these names, which end with a point."""
        return self._replace(
            ours=tuple(ours + name for name in self.ours),
            theirs=tuple(theirs + name for name in self.theirs),
        )


def within(ours: str, theirs: str, weights: Iterable[Weight]) -> list[Weight]:
    """All of them in modules of these names.

    Example:
        >>> within("a.", "b.", renamed({"w": "x"}))[0][:2]
        (('a.w',), ('b.x',))
    """
    return [weight.within(ours, theirs) for weight in weights]


def renamed(names: Mapping[str, str]) -> list[Weight]:
    """Tensors that have another name there, and axes of length 1 more or less."""
    return [Weight((ours,), (theirs,)) for ours, theirs in names.items()]


def equal(*names: str) -> list[Weight]:
    """Tensors that have the same name there."""
    return renamed({name: name for name in names})


def one_more(ours: str, theirs: str) -> Weight:
    """The weight of a norm that is stored there without a 1."""
    return plus_one(Weight((ours,), (theirs,)))


def plus_one(weight: Weight) -> Weight:
    """The same of norms that are stored there without a 1."""
    return weight._replace(
        to_ours=lambda x: [y + 1 for y in weight.to_ours(x)],
        to_theirs=lambda x: weight.to_theirs([y - 1 for y in x]),
    )


def joined(ours: Sequence[str], theirs: str, sizes: Sequence[int] | None = None) -> Weight:
    """Tensors that are one there, one below the other: ``sizes`` rows each, or equal parts."""

    def split(x: Tensors) -> Tensors:
        return x[0].chunk(len(ours)) if sizes is None else x[0].split(list(sizes))

    return Weight(tuple(ours), (theirs,), split, lambda x: [torch.cat(list(x))])


def reordered(ours: str, theirs: str, order: Callable[[int], Tensor]) -> Weight:
    """A tensor whose rows are in another order: ours are those at ``order(rows)`` of theirs."""

    def to_ours(x: Tensors) -> Tensors:
        return [x[0][order(len(x[0])).to(x[0].device)]]

    def to_theirs(x: Tensors) -> Tensors:
        return [x[0][order(len(x[0])).argsort().to(x[0].device)]]

    return Weight((ours,), (theirs,), to_ours, to_theirs)


def turned(ours: str, theirs: str, d_head: int, d_rotary: int) -> Weight:
    """Queries or keys whose channels i and i + d_rotary / 2 turn together there, ours neighbours.

    Args:
        ours, theirs: names of a matrix or bias with a row for each channel of all heads, or of
            one that all heads have.
        d_head: channels of a head.
        d_rotary: how many of them are turned.
    """

    def order(rows: int) -> Tensor:
        pairs = torch.arange(d_rotary).view(2, -1).T.flatten()
        head = torch.cat([pairs, torch.arange(d_rotary, d_head)])
        return (torch.arange(0, rows, d_head)[:, None] + head).flatten()

    return reordered(ours, theirs, order)


@torch.no_grad()
def copy_weights(
    where: str,
    weights: Iterable[Weight],
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    *,
    back: bool = False,
) -> None:
    """Put every tensor of one side into its place on the other.

    Args:
        where: the caller, for messages.
        weights: which are which.
        ours: tensors of our model, which are filled.
        theirs: of the other, which are filled if ``back``.
        back: see above.

    Raises:
        DataError: a tensor of either side has no counterpart, or is of another shape. One that
            shares its memory with another that has, as tied weights do, needs none.
    """
    weights = list(weights)
    _check_names(where, "linrnn", [name for weight in weights for name in weight.ours], ours)
    _check_names(
        where, "transformers", [name for weight in weights for name in weight.theirs], theirs
    )
    for weight in weights:
        source, target = (ours, theirs) if back else (theirs, ours)
        inputs, outputs = (weight.ours, weight.theirs) if back else (weight.theirs, weight.ours)
        convert = weight.to_theirs if back else weight.to_ours
        values = convert([source[name] for name in inputs])
        for name, value in zip(outputs, values, strict=True):
            if value.squeeze().shape != target[name].squeeze().shape:
                raise DataError(
                    f"{where}: {name}: the weights must have shape {tuple(target[name].shape)}, "
                    f"got {tuple(value.shape)}."
                )
            target[name].copy_(value.reshape(target[name].shape))


def _check_names(
    where: str, side: str, names: Sequence[str], tensors: Mapping[str, Tensor]
) -> None:
    """Raise unless the names are those of all tensors, but for those that are tied."""
    if missing := sorted(set(names) - tensors.keys()):
        raise DataError(
            f"{where}: the weights of {side} must have all of the layout, got none named "
            f"{missing[0]}."
        )
    places = {tensors[name].data_ptr() for name in names}
    for name, x in tensors.items():
        if name not in names and x.data_ptr() not in places:
            raise DataError(
                f"{where}: the weights of {side} must be those of the layout, got one more: {name}."
            )
