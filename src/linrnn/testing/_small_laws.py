"""The law of small layers: one channel, one mode, one head, wherever a mixer takes as few."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from linrnn.errors import LinrnnError
from linrnn.mixers import Mixer
from linrnn.testing._mixer_runs import (
    BATCH,
    FORM_ROUNDINGS,
    MakeMixer,
    build,
    busy_state,
    compare,
    in_each_form,
    results,
    signal,
    stepwise,
)
from linrnn.testing._options import sizes
from linrnn.testing._tolerance import BrokenPropertyError

_FEW = (1, 2, 4)
_SHAPES = ((1, 1), (1, 3), (BATCH, 7))  # sequences and steps


def small(make: MakeMixer) -> None:
    """Layers as small as a mixer takes are their loop of steps, in every form, with gradients.

    One has the fewest channels, one the smallest sizes, and one both.
    """
    for options in smallest(make):
        for form, mixer in in_each_form(make, **options):
            for batch, time in _SHAPES:
                what = f"{options}, form {form!r}, {batch} of {time} steps"
                try:
                    _is_its_loop(what, mixer, batch, time)
                except (BrokenPropertyError, LinrnnError):
                    raise
                except Exception as error:
                    raise BrokenPropertyError(f"{what}: {type(error).__name__}: {error}") from error


def _is_its_loop(what: str, mixer: Mixer, batch: int, time: int) -> None:
    x, state = signal(batch, time, mixer.d_model), busy_state(mixer, batch)
    loop = _together(results(stepwise(mixer), mixer, x, state))
    compare(what, _together(results(mixer, mixer, x, state)), loop, FORM_ROUNDINGS)


def _together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All gradients as one: some are roundings alone, as those of a reflection of one axis."""
    gradients = {name: g for name, g in tensors.items() if name.startswith("grad")}
    flat = [torch.view_as_real(g) if g.is_complex() else g for g in gradients.values()]
    outputs = {name: y for name, y in tensors.items() if name not in gradients}
    what = f"gradients of {len(flat)} tensors"
    return {**outputs, what: torch.cat([g.flatten() for g in flat])}


def smallest(make: MakeMixer) -> Iterator[dict[str, Any]]:
    """Options of the narrowest layer, of the one with the smallest sizes, and of both in one.

    Sizes are found one after the other, each beside those that were found.
    """
    narrow = _shrunk(make, {}, ["d_model"])
    yield narrow
    options = _shrunk(make, {}, sizes(type(build(make))))
    if not options:
        return
    yield options
    both = _shrunk(make, options, ["d_model"])
    if both != options:
        yield both


def _shrunk(make: MakeMixer, options: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The options with each of these at the least value that is taken."""
    for name in names:
        for value in _FEW:
            tried = {**options, name: value}
            if _built_or_none(make, tried) is not None:
                options = tried
                break
    return options


def _built_or_none(make: MakeMixer, options: dict[str, Any]) -> Mixer | None:
    try:
        return build(make, **options)
    except (LinrnnError, TypeError):
        return None
