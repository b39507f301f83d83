"""The catalogue of mixers: one file each, found by being in this folder.

The file's stem is the mixer's name everywhere: ``mixers/lru.py`` is ``load("lru")``,
``linrnn train TASK --mixer lru``, ``linrnn show lru`` and the class ``linrnn.mixers.LRU``.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from linrnn._catalogue import load_class, stems
from linrnn._schema import check_type
from linrnn.errors import UnknownNameError

if TYPE_CHECKING:
    from linrnn.mixers._base import Mixer as Mixer
    from linrnn.mixers._bidirectional import Bidirectional as Bidirectional

_PUBLIC = {"Mixer": "_base", "Bidirectional": "_bidirectional"}


def names() -> list[str]:
    """Every mixer, sorted; finding them imports none.

    Example:
        >>> "lru" in names()
        True
    """
    return stems(__name__)


def load(name: str) -> "type[Mixer]":
    """The `Mixer` class in ``linrnn/mixers/<name>.py``; only that file is imported.

    Raises:
        UnknownNameError: no such mixer.

    Example:
        >>> load("lru").__name__
        'LRU'
    """
    from linrnn.mixers._base import Mixer

    return load_class(__name__, "mixer", name, Mixer)


def build(
    name: str, d_model: int, options: Mapping[str, Any] | None = None, **factory: Any
) -> "Mixer":
    """Construct a mixer by name.

    Args:
        name: one of `names`.
        d_model: channels in and out.
        options: further keyword arguments of its constructor.
        factory: ``device`` and ``dtype``.

    Raises:
        UnknownNameError: no such mixer, or the mixer has no such option.
        ArgumentError: an option of another type than the mixer's annotation says.

    Example:
        >>> build("lru", 8, {"d_state": 4}).d_state
        4
    """
    cls, options = load(name), dict(options or {})
    known = set(inspect.signature(cls.__init__).parameters) - {"self", "d_model"}
    hints = get_type_hints(cls.__init__) if options else {}
    for option, value in options.items():
        if option not in known:
            raise UnknownNameError(f"option of mixer {name!r}", option, known)
        check_type(f"mixer {name!r}", option, hints.get(option, Any), value)
    return cls(d_model, **options, **factory)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    for stem in names():
        if stem.replace("_", "") == name.lower():
            return load(stem)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
