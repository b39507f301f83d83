"""The options of a mixer, from the annotations of its constructor."""

import functools
import inspect
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from linrnn.errors import LinrnnError
from linrnn.mixers import Mixer
from linrnn.testing._mixer_runs import MakeMixer, build
from linrnn.testing._pairwise import Chosen, pairwise

_NOT_OPTIONS = {"self", "d_model", "receives", "device", "dtype"}


def option_sets(make: MakeMixer) -> Iterator[dict[str, Any]]:
    """The defaults, then few sets of options such that every two values of two options meet.

    Texts and flags take all values; numbers their default and one other. For two sizes without a
    default whose names end alike, as numbers of heads do, the second is half the first. What the
    constructor refuses, or ``make`` does not take, is left out.

    Example:
        >>> from linrnn.mixers import LEM
        >>> list(option_sets(LEM))
        [{}, {'d_state': 4, 'step_size': 2.0}, {'step_size': 2.0}, {'d_state': 4}]
    """
    sets = _sets_of_class(make) if isinstance(make, type) else _sets(make)
    yield from (dict(options) for options in sets)


def few_option_sets(make: MakeMixer) -> Iterator[dict[str, Any]]:
    """Those of `option_sets` that have a value of an option which none before has.

    For a law whose options act each for itself: that every two of them act together as steps do is
    another law.

    Example:
        >>> from linrnn.mixers import LEM
        >>> list(few_option_sets(LEM))
        [{}, {'d_state': 4, 'step_size': 2.0}]
    """
    met = set[tuple[str, str]]()
    for options in option_sets(make):
        values = {(name, repr(value)) for name, value in options.items()}
        if not options or values - met:
            yield options
        met |= values


@functools.lru_cache(maxsize=256)  # several laws ask; to build what may be refused takes longest
def _sets_of_class(mixer: type[Mixer]) -> tuple[dict[str, Any], ...]:
    return tuple(_sets(mixer))


def _sets(make: MakeMixer) -> Iterator[dict[str, Any]]:
    choices = _values(type(build(make)))

    def options(chosen: Chosen) -> dict[str, Any]:
        of = zip(choices.items(), chosen, strict=True)
        return {name: values[i] for (name, values), i in of if i}

    def taken(chosen: Chosen) -> bool:
        try:
            build(make, **options(chosen))
        except (LinrnnError, TypeError):
            return False
        return True

    yield from map(options, pairwise([len(values) for values in choices.values()], taken))


def texts_and_flags(make: MakeMixer) -> Iterator[dict[str, Any]]:
    """Each other value of each option that is a text of a list or a flag, alone.

    Example:
        >>> from linrnn.mixers import DLR
        >>> list(texts_and_flags(DLR))
        [{'kind': 'imaginary'}, {'kind': 'real'}, {'form': 'conv'}]
    """
    for name, values in _values(type(build(make))).items():
        for value in values[1:]:
            if not isinstance(value, (str, bool)):
                continue
            options: dict[str, Any] = {name: value}
            try:
                build(make, **options)
            except (LinrnnError, TypeError):
                continue
            yield options


def sizes(mixer: type[Mixer]) -> list[str]:
    """The options that are whole numbers, in the order of the constructor.

    Example:
        >>> from linrnn.mixers import S4D
        >>> sizes(S4D)
        ['d_state', 'n_ssm']
    """
    parameters = inspect.signature(mixer.__init__).parameters
    hints = get_type_hints(mixer.__init__)
    return [
        n for n in parameters if n not in _NOT_OPTIONS and int in (hints.get(n), *_kinds(hints, n))
    ]


def _kinds(hints: dict[str, Any], name: str) -> tuple[Any, ...]:
    """The types in a union, empty for another hint; a literal of integers counts as no union."""
    hint = hints.get(name)
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else ()


def _values(mixer: type[Mixer]) -> dict[str, list[Any]]:
    """The values to try of each option, its default first."""
    hints = get_type_hints(mixer.__init__)
    choices: dict[str, list[Any]] = {}
    for name, parameter in inspect.signature(mixer.__init__).parameters.items():
        if name not in _NOT_OPTIONS and parameter.kind is not parameter.VAR_KEYWORD:
            default = parameter.default
            hint = hints.get(name, type(default))  # anyone's layer may do without annotations
            values = [x for x in _alternatives(hint, default) if x != default]
            kind = name.rpartition("_")[2]
            if default is None and values == [4] and any(n.endswith(f"_{kind}") for n in choices):
                values = [2]
            choices[name] = [default, *values]
    return choices


def _alternatives(hint: Any, default: Any) -> list[Any]:
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
