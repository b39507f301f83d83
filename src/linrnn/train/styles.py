"""How lines look: a system has one colour, dash and marker in all figures, others a free one.

The colours are told apart by readers who see red and green, or blue and yellow, alike; dashes and
markers by those who print in grey.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

from linrnn import mixers
from linrnn._options.catalogue import aliases

COLOURS = ("#000000", "#c03000", "#78c0f0", "#9048f0", "#f0a818", "#600078")
"""At least 0.2 apart in OKLab, to the usual eye and to three that lack a cone."""
DASHES = ("-", "--", "-.", ":")
_FILLED = "osD^vP*X<>ph8d"
_ROUND = "oph8"  # at the size of a line's markers
_SHAPES = tuple((m, True) for m in _FILLED) + tuple((m, False) for m in _FILLED[:-1])
# 4 dashes and 27 shapes, numbers without a common factor: together they come again after 108
_PERIOD = len(DASHES) * len(_SHAPES)

_SEED = 267003
"""A system's look is a hash of its name: one more needs no word here, and changes no other's. With
this number the 32 that are compared most often differ from one another, and those that a test names
in colour too; two of all that are alike are told apart where they meet in a figure."""
_ALSO = {
    "relu": "relu_rnn",
    "tanh": "tanh_rnn",
    "linear": "linear_rnn",
    "transformer": "attention",
    "softmax attention": "attention",
    "rwkv": "rwkv4",
    "delta": "delta_net",
    "delta and decay": "gated_delta_net",
    "decay by channel": "gla",
    "decay by head": "retnet",
    "plain": "linear_attention",
    "nn.GRU": "gru",
    "nn.LSTM": "lstm",
}
"""Further names of systems in figures."""


def _normalised(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


_NAMES = {_normalised(name): _normalised(system) for name, system in _ALSO.items()}


def place_of(label: str) -> int | None:
    """Where a system stands among those that have a look of their own; None: it is no system.

    A label is that of a system if its words up to a comma, a colon, a parenthesis, " at " or " seed
    " are the system's name, in any case and with "-" or "_" or nothing.

    Example:
        >>> place_of("minGRU, log space") == place_of("mingru")
        True
        >>> place_of("layer 1") is None
        True
    """
    head = label.split(" at ")[0].split(" seed ")[0]
    for mark in ",:(=":
        head = head.split(mark)[0]
    former = {
        _normalised(alias): _normalised(today) for alias, today in aliases(mixers.__name__).items()
    }
    name = _NAMES.get(_normalised(head), _normalised(head))
    name = former.get(name, name)
    if name not in set(map(_normalised, mixers.names())):
        return None
    return zlib.crc32(f"{_SEED}{name}".encode()) % _PERIOD


def styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A look for each label of a figure, as arguments of matplotlib's ``plot``.

    The first label of a system has the system's own; further ones have its colour. Labels that are
    no systems get free ones, colours that the figure lacks first. Among up to 108 labels no two
    have both dash and marker alike, and while others are left none has a marker like a circle where
    another with its dash has one.

    Args:
        labels: of the lines of a figure, or of all panels in which a reader compares them.
    """
    places: dict[str, int] = {}
    for label in labels:
        place = place_of(label)
        if place is not None and place not in places.values():
            places[label] = place
    for label in labels:
        if label not in places:
            places[label] = _free(place_of(label), set(places.values()))
    return {label: _look(places[label]) for label in labels}


def cycle() -> dict[str, list[str]]:
    """Colours and dashes of lines that have no labels, in the order in which `styles` gives them.

    As many as there are combinations; arguments of matplotlib's ``cycler``.
    """
    places = range(math.lcm(len(COLOURS), len(DASHES)))
    return {
        "color": [COLOURS[place % len(COLOURS)] for place in places],
        "linestyle": [DASHES[place % len(DASHES)] for place in places],
    }


def dense_styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`styles` for many points: a marker here and there, at places that differ between lines."""
    return {
        label: look | {"markevery": (0.02 + 0.015 * (i % 8), 0.16)}
        for i, (label, look) in enumerate(styles(labels).items())
    }


def _free(system: int | None, used: set[int]) -> int:
    """A place whose look is not in the figure yet, of the best colour; any where none is left."""
    colours = {place % len(COLOURS) for place in used}
    preferred = set(range(len(COLOURS))) - colours if system is None else {system % len(COLOURS)}
    left = [place for place in range(_PERIOD) if place not in used] or [0]
    looks = set(map(_dash_and_marker, used))
    return min(
        left, key=lambda p: (p % len(COLOURS) not in preferred, _dash_and_marker(p) in looks)
    )


def _dash_and_marker(place: int) -> tuple[int, str, bool]:
    """Dash and marker, where markers that look the same count as one."""
    marker, filled = _SHAPES[place % len(_SHAPES)]
    return place % len(DASHES), "o" if marker in _ROUND else marker, filled


def _look(place: int) -> dict[str, Any]:
    marker, filled = _SHAPES[place % len(_SHAPES)]
    colour = COLOURS[place % len(COLOURS)]
    return {
        "color": colour,
        "linestyle": DASHES[place % len(DASHES)],
        "marker": marker,
        "markersize": 4.5,
        "markerfacecolor": colour if filled else "white",
        "linewidth": 1.6,
    }
