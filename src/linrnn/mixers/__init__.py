"""The catalogue of mixers: one file each, found by being in this folder.

The file's stem is the mixer's name everywhere: ``mixers/lru.py`` is ``load("lru")``,
``linrnn train TASK --mixer lru``, ``linrnn show lru`` and the class ``linrnn.mixers.LRU``.
A package of your own adds mixers by entry points of the group ``linrnn.mixers``; and wherever a
name goes, so does a class, an instance, or an import path such as ``pkg.module:Mine``.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linrnn._options.catalogue import aliases, class_names, own_class, stems
from linrnn.errors import no_attribute
from linrnn.mixers._contract.catalogue import build as build
from linrnn.mixers._contract.catalogue import check_instance as check_instance
from linrnn.mixers._contract.catalogue import load as load
from linrnn.mixers._contract.catalogue import names as names
from linrnn.mixers._contract.catalogue import redrawn as redrawn

if TYPE_CHECKING:
    from linrnn.mixers._contract.added import AddedLosses as AddedLosses
    from linrnn.mixers._contract.added import added_losses as added_losses
    from linrnn.mixers._contract.arguments import bounding_option as bounding_option
    from linrnn.mixers._contract.arguments import check_timed as check_timed
    from linrnn.mixers._contract.base import Mixer as Mixer
    from linrnn.mixers._contract.bidirectional import Bidirectional as Bidirectional
    from linrnn.mixers._contract.choices import Choices as Choices
    from linrnn.mixers._families.cell_rnn import CellRNN as CellRNN
    from linrnn.mixers._families.dense import TorchRNN as TorchRNN

__all__ = [
    "FAMILIES",
    "Bidirectional",
    "Choices",
    "Mixer",
    "added_losses",
    "build",
    "by_family",
    "check_instance",
    "load",
    "names",
    "redrawn",
]

FAMILIES = {
    "diagonal": "diagonal linear recurrences",
    "ssm": "state-space models",
    "gated": "gated recurrences",
    "linear-attention": "linear attention and weighted means",
    "oscillator": "oscillators",
    "dense": "dense recurrences",
    "orthogonal": "orthogonal and unitary recurrences",
    "continuous": "differential equations",
    "convolution": "long convolutions",
    "attention": "attention",
    "segment": "memories of segments",
    "test-time": "learning at test time",
}
"""`Mixer.family` in words, in the order of lists; others stand as they are, and last."""

_PUBLIC = {
    "Mixer": "_contract.base",
    "Bidirectional": "_contract.bidirectional",
    "Choices": "_contract.choices",
    "added_losses": "_contract.added",
}
_SHARED = {
    "AddedLosses": "_contract.added",
    "CellRNN": "_families.cell_rnn",
    "TorchRNN": "_families.dense",
    "bounding_option": "_contract.arguments",
    "check_timed": "_contract.arguments",
}
"""Names that other rooms of the package import from this one; not in the reference."""
_WHERE = _PUBLIC | _SHARED


def by_family(families: Mapping[str, str]) -> dict[str, list[str]]:
    """Names under the heading of their family, in the order of `FAMILIES`.

    Args:
        families: the family of each name.

    Example:
        >>> by_family({"lru": "diagonal", "mine": "new", "slru": "diagonal"})
        {'diagonal linear recurrences': ['lru', 'slru'], 'new': ['mine']}
    """
    order = [*FAMILIES, *sorted({*families.values()} - {*FAMILIES})]
    grouped = {f: [name for name in families if families[name] == f] for f in order}
    return {FAMILIES.get(f, f): its for f, its in grouped.items() if its}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    if not name.startswith("_"):
        for entries in ({stem: stem for stem in stems(__name__)}, aliases(__name__)):
            for entry, stem in entries.items():
                if entry.replace("_", "") == name.lower():
                    from linrnn.mixers._contract.base import Mixer

                    return own_class(__name__, stem, Mixer)
    classes = [] if name.startswith("_") else class_names(__name__)
    raise no_attribute(__name__, name, {one: f"{__name__}.{one}" for one in classes})


def __dir__() -> list[str]:
    return sorted({*__all__, *class_names(__name__)})
