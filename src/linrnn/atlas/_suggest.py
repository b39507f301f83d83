"""Suggestions: which systems meet some needs, read off the map."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Literal

from linrnn import mixers
from linrnn.atlas._abilities import ABILITIES, named
from linrnn.atlas._cells import Cell, Figure, figures
from linrnn.atlas._measured import measured
from linrnn.atlas._systems import LAYERS, System
from linrnn.errors import ArgumentError, UnknownNameError

Verdict = Literal["yes", "unclear", "not measured", "no"]

PROPERTIES = {
    "stream": "the state does not grow, and is at most a size such as 4KB or 1MB",
    "parallel": "a sequence is read in parallel, not step after step",
    "times": "times between steps are read",
}
"""Needs that no training answers."""

_UNITS = {"B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}


@dataclass(frozen=True, kw_only=True)
class Need:
    """An ability up to a value of its dial, or a property.

    Args:
        name: of an ability, or of `PROPERTIES`.
        value: of the dial, or bytes; None where none was said: the first value of the dial.
    """

    name: str
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of the map about one system and need.

    Args:
        need: of which it is.
        verdict: "unclear" where the interval over seeds holds the value, or the dial ends before.
        figure: as the map has it; of a property, a word.
        seeds: behind it; 0 where it is no measurement.
        margin: factors of two between the need and the figure; 0 of a property.
    """

    need: Need
    verdict: Verdict
    figure: str
    seeds: int = 0
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A system, and how it meets each need.

    Args:
        system: the mixer, at the size of the map.
        answers: one for each need, in their order.
    """

    system: System
    answers: tuple[Answer, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its answers."""
        return max((answer.verdict for answer in self.answers), key=_ORDER.index)


_ORDER: tuple[Verdict, ...] = ("yes", "unclear", "not measured", "no")


def parse_needs(text: str) -> list[Need]:
    """Needs with commas between, such as ``recall=32,stream=1MB,parity``.

    Raises:
        UnknownNameError: no such need.
        ArgumentError: a value that is none.

    Example:
        >>> parse_needs("recall=32,parallel")
        [Need(name='recall', value=32.0), Need(name='parallel', value=None)]
    """
    return [_need(part.strip()) for part in text.split(",")]


def _need(text: str) -> Need:
    name, equals, value = text.partition("=")
    names = [*(one.name for one in ABILITIES), *PROPERTIES]
    if name not in names:
        raise UnknownNameError("need", name, names)
    if not equals:
        return Need(name=name)
    if name == "stream":
        return Need(name=name, value=_bytes(value))
    if name in PROPERTIES:
        raise ArgumentError(f"suggest: the need {name} must have no value, got {text!r:.80}.")
    if re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) is None or int(value) < 1:
        raise ArgumentError(
            f"suggest: {name} must be a whole number of {named(name).dial}, got {value!r:.80}."
        )
    return Need(name=name, value=float(value))


def _bytes(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(B|KB|MB|GB)", text.upper(), re.ASCII)
    if match is None:
        raise ArgumentError(f"suggest: stream must be a size such as 4KB or 1MB, got {text!r:.80}.")
    return float(match[1]) * _UNITS[match[2]]


def suggest(needs: str | Sequence[Need], cells: Sequence[Cell] | None = None) -> list[Suggestion]:
    """Systems of the map, those that meet all needs first.

    After the worst verdict come the number of answers that are not "yes", and then the mean margin.

    Args:
        needs: as text, see `parse_needs`, or one by one.
        cells: of the map; those that come with the package by default.

    Example:
        >>> from linrnn.atlas import suggest
        >>> first = suggest("stream=1MB,parallel")[0]
        >>> first.verdict, [answer.figure for answer in first.answers][1]
        ('yes', 'in parallel')
    """
    stated = parse_needs(needs) if isinstance(needs, str) else [*needs]
    cells = measured() if cells is None else cells
    systems = {cell.system.name: cell.system for cell in cells}
    suggestions = [
        Suggestion(
            system=systems[name],
            answers=tuple(_answer(need, systems[name], of_abilities) for need in stated),
        )
        for name, of_abilities in figures(cells).items()
    ]
    return sorted(suggestions, key=_rank)


def _rank(one: Suggestion) -> tuple[int, int, float, str]:
    worse = sum(answer.verdict != "yes" for answer in one.answers)
    margins = [answer.margin for answer in one.answers if answer.seeds] or [0.0]
    return _ORDER.index(one.verdict), worse, -statistics.fmean(margins), one.system.name


def _answer(need: Need, system: System, of_abilities: dict[str, Figure]) -> Answer:
    if need.name in PROPERTIES:
        return _of_property(need, system)
    if need.name not in of_abilities:
        return Answer(need=need, verdict="not measured", figure="")
    ability, one = named(need.name), of_abilities[need.name]
    value = float(ability.values[0]) if need.value is None else need.value
    return Answer(
        need=need,
        verdict=_verdict(one, value),
        figure=str(one),
        seeds=one.seeds,
        margin=log2(one.middle.value / value) - (one.middle.side == "below"),
    )


def _verdict(one: Figure, value: float) -> Verdict:
    """Whether a figure reaches a value of the dial."""
    middle = one.middle
    if middle.side == "below":  # it fails at the first value, and no easier one was tried
        return "no" if value >= middle.value else "unclear"
    if middle.side == "above":
        return "yes" if value <= middle.value else "unclear"
    low, high = one.interval
    return "yes" if low >= value else "no" if high < value else "unclear"


def _of_property(need: Need, system: System) -> Answer:
    if need.name == "stream":
        size = None if system.state is None else 4 * LAYERS * system.state
        fits = size is not None and (need.value is None or size <= need.value)
        shown = "grows" if size is None else f"{size:,} bytes"
        return Answer(need=need, verdict="yes" if fits else "no", figure=shown)
    if need.name == "times":
        timed = mixers.load(system.name).timed
        shown = "read" if timed else "not read"
        return Answer(need=need, verdict="yes" if timed else "no", figure=shown)
    layer = mixers.build(system.name, system.width, system.options, device="meta")
    parallel = layer.cost != "sequential"
    shown = "in parallel" if parallel else "step after step"
    return Answer(need=need, verdict="yes" if parallel else "no", figure=shown)
