"""The options of a mixer, from the annotations of its constructor."""

import inspect
import itertools
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from linrnn.errors import LinrnnError
from linrnn.mixers._base import Mixer
from linrnn.testing._mixer_runs import MakeMixer, build

_NOT_OPTIONS = {"self", "d_model", "device", "dtype"}


def option_sets(make: MakeMixer) -> Iterator[dict[str, Any]]:
    """The defaults, then options such that every two values of two options meet at least once.

    Texts and flags take all values; numbers their default and one other. What the constructor
    refuses, or ``make`` does not take, is left out.

    Example:
        >>> from linrnn.mixers import TanhRNN
        >>> list(option_sets(TanhRNN))
        [{}, {'bias': False}, {'d_state': 4}, {'d_state': 4, 'bias': False}]
    """
    known = _values(type(build(make)))
    met: set[Any] = set()
    for values in itertools.product(*known.values()):
        chosen = dict(zip(known, values, strict=True))
        pairs = set(itertools.combinations(sorted(chosen.items(), key=lambda x: x[0]), 2))
        pairs |= {(item, item) for item in chosen.items()}
        if pairs <= met:
            continue
        options = {name: x for name, x in chosen.items() if x != known[name][0]}
        try:
            build(make, **options)
        except (LinrnnError, TypeError):
            continue
        met |= pairs
        yield options


def _values(mixer: type[Mixer]) -> dict[str, list[Any]]:
    """What each option may be, its default first."""
    hints = get_type_hints(mixer.__init__)
    found = {}
    for name, parameter in inspect.signature(mixer.__init__).parameters.items():
        if name not in _NOT_OPTIONS and parameter.kind is not parameter.VAR_KEYWORD:
            default = parameter.default
            hint = hints.get(name, type(default))  # anyone's layer may do without annotations
            others = [x for x in _others(hint, default) if x != default]
            found[name] = [default, *others]
    return found


def _others(hint: Any, default: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if hint is bool:
        return [False, True]
    if hint is str or hint is type(None):  # what else it may be is not said
        return []
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if default is None:
        return [4] if int in kinds else [0.5]
    return [2] if int in kinds else [2 * default or 0.5]
