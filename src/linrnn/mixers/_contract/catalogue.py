"""Mixers by name: which there are, and how one is made."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linrnn._options.catalogue import entries, load_class
from linrnn._options.import_path import check_class, import_class, is_import_path
from linrnn._options.schema import check_options
from linrnn.errors import ArgumentError

if TYPE_CHECKING:
    from linrnn.mixers._contract.base import Mixer

CATALOGUE = "linrnn.mixers"


def names() -> list[str]:
    """Every mixer, sorted: those of this folder and those that packages register.

    Finding them imports none.

    Example:
        >>> "lru" in names()
        True
    """
    return entries(CATALOGUE)


def load(mixer: "str | type[Mixer] | Mixer") -> "type[Mixer]":
    """The class of a mixer; of those known by name only the requested one is imported.

    Args:
        mixer: one of `names`, a class, an instance, or an import path such as ``pkg.module:Mine``,
            whose module is imported.

    Raises:
        UnknownNameError: no such mixer.
        ArgumentError: an import path or a class that leads to no mixer.
        LinrnnError: a package that registers it cannot be imported, or another has the same name.

    Example:
        >>> load("lru").__name__
        'LRU'
    """
    from linrnn.mixers._contract.base import Mixer

    if isinstance(mixer, Mixer):
        return type(mixer)
    if isinstance(mixer, type):
        return check_class("mixer", mixer, Mixer)
    if is_import_path(mixer):
        return import_class("mixer", mixer, Mixer)
    return load_class(CATALOGUE, "mixer", mixer, Mixer)


def build(
    mixer: "str | type[Mixer] | Mixer",
    d_model: int,
    options: Mapping[str, Any] | None = None,
    **factory: Any,
) -> "Mixer":
    """Construct a mixer.

    Args:
        mixer: what `load` takes. An instance is copied, with parameters drawn anew.
        d_model: channels in and out.
        options: further keyword arguments of its constructor; none for an instance, which has them.
        factory: ``device`` and ``dtype``.

    Raises:
        UnknownNameError: no such mixer, or the mixer has no such option.
        ArgumentError: an option of another type than the mixer's annotation says; an instance of
            another width or dtype, or one whose parameters cannot be drawn anew.

    Example:
        >>> build("lru", 8, {"d_state": 4}).d_state
        4
    """
    cls, options = load(mixer), dict(options or {})
    if isinstance(mixer, cls):
        check_instance(mixer, d_model, options, **factory)
        return redrawn("mixer: it", mixer)
    title = repr(mixer if isinstance(mixer, str) else cls.__name__)
    check_options(f"mixer {title}", cls, options, "d_model")
    return cls(d_model, **options, **factory)


def check_instance(
    mixer: "Mixer", d_model: int, options: Mapping[str, Any], dtype: Any = None, device: Any = None
) -> None:
    """Raise `ArgumentError` unless an instance is of this width and dtype, and without ``options``.

    A device is not compared: a module that an instance is part of is moved as a whole.
    """
    name = type(mixer).__name__
    if options:
        raise ArgumentError(
            f"mixer {name}: mixer_options must be empty for an instance, got {sorted(options)}. "
            "Make the instance with them, or give its class."
        )
    if mixer.d_model != d_model:
        raise ArgumentError(
            f"mixer {name}: the instance must have d_model={d_model}, got {mixer.d_model}."
        )
    dtypes = {p.dtype.to_real() for p in mixer.parameters()}
    if dtype is not None and dtypes and dtype not in dtypes:
        raise ArgumentError(
            f"mixer {name}: the instance must have parameters of {dtype}, got "
            f"{', '.join(sorted(map(str, dtypes)))}. Make it with dtype={dtype}."
        )


def redrawn(what: str, mixer: "Mixer") -> "Mixer":
    """A copy with parameters drawn anew.

    Args:
        what: says in the message what could be done without.
        mixer: to copy.

    Raises:
        ArgumentError: it has no ``reset_parameters`` to draw them with.
    """
    draw = getattr(mixer, "reset_parameters", None)
    if draw is None:
        raise ArgumentError(
            f"{what} must have reset_parameters to be drawn anew, got "
            f"{type(mixer).__name__} without."
        )
    clone = copy.deepcopy(mixer)
    clone.reset_parameters()  # type: ignore[operator]
    return clone
