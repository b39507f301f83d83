"""The options of mixers on a command line, and mixers that it names by import paths."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from linrnn import mixers
from linrnn._options.declared import dataclass_of, declared
from linrnn._options.import_path import look_here
from linrnn.backbone.pattern import OneMixer, import_all, label, option_names, options_of, pattern


def import_named(mixer: str) -> None:
    """Import what a command names by import paths.

    Raises:
        ArgumentError: one leads to no mixer.
    """
    if ":" in mixer:
        look_here()
    import_all(mixer)


def mixer_class(mixer: str, defaults: Mapping[str, Any]) -> type:
    """A dataclass of the options of a mixer, or, of a pattern, one of such dataclasses by name.

    Args:
        mixer: a name, an import path, whose module is imported, or several with commas between.
        defaults: override those of the constructors, as `linrnn.SequenceModel` takes them.
    """
    defaults_by_label = options_of(mixer, defaults)
    classes = {
        label(part): _one_mixer_class(part, defaults_by_label[label(part)])
        for part in pattern(mixer)
    }
    if len(classes) == 1:
        return next(iter(classes.values()))
    groups = [(name, cls, defaults_of(cls)) for name, cls in classes.items()]
    options_class = dataclasses.make_dataclass("MixerOptions", groups, frozen=True, kw_only=True)
    options_class.__doc__ = f"The mixers {mixer}, each with its own options."
    return options_class


def _one_mixer_class(mixer: OneMixer, defaults: Mapping[str, Any]) -> type:
    cls, settable = mixers.load(mixer), option_names(mixer)
    options = [
        o._replace(default=defaults.get(o.name, o.default))
        for o in declared(cls)
        if o.name in settable
    ]
    return dataclass_of(f"{cls.__name__}Options", f"The mixer {label(mixer)}.", options)


def defaults_of(cls: type) -> Any:
    """A field of a class, with a value where it needs no arguments."""
    fields: Any = dataclasses.fields(cls)
    no = dataclasses.MISSING
    needs = any(f.default is no and f.default_factory is no for f in fields)
    return dataclasses.field() if needs else dataclasses.field(default=cls())
