"""One system beside a map: its nearest relatives, and its place in each ability."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from linrnn import mixers
from linrnn.atlas._cells import Cell, Figure, figures
from linrnn.atlas._laws import height
from linrnn.atlas._measured import measured
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers import Choices

_MECHANISMS = tuple(field.name for field in fields(Choices))


@dataclass(frozen=True, kw_only=True)
class Relative:
    """A system of a map, and how near it is to another.

    Args:
        system: its name.
        alike: which of the choices that both declare are the same, such as ``gate``.
        apart: mean over the abilities that both have, of the factors of two between their figures;
            NaN where there is none.
        abilities: how many these are.
    """

    system: str
    alike: tuple[str, ...]
    apart: float
    abilities: int


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The place of a system among those of a map, in one ability.

    Args:
        ability: its name.
        figure: of the system.
        behind, ahead: systems of the map whose figure is smaller, and larger, for certain: the
            intervals do not meet.
        systems: of the map that have a figure.
    """

    ability: str
    figure: str
    behind: int
    ahead: int
    systems: int


def relatives(
    cells: Sequence[Cell], system: str, among: Sequence[Cell] | None = None, *, most: int = 5
) -> list[Relative]:
    """Systems of a map, those with the most choices of a system first, then the nearest figures.

    Args:
        cells: of the system, and of any others, which are not looked at.
        system: name of a mixer, or an import path that was imported before.
        among: cells of the map; those that come with the package by default.
        most: how many.

    Raises:
        ArgumentError: there is no cell of the system.

    Example:
        >>> from linrnn.atlas import measured, relatives
        >>> [one.system for one in relatives(measured(), "mingru", most=2)]
        ['minlstm', 'hgrn2']
    """
    check_positive_int("relatives", most=most)
    ours, rivals = _figures(cells, system), figures(measured() if among is None else among)
    rivals.pop(system, None)
    candidates = [_relative(system, ours, name, theirs) for name, theirs in rivals.items()]
    return sorted(candidates, key=_nearest)[:most]


def standings(
    cells: Sequence[Cell], system: str, among: Sequence[Cell] | None = None
) -> list[Standing]:
    """The place of a system in each of its abilities, among the other systems of a map.

    Two figures are told apart if their intervals do not meet: see `Figure.interval`.

    Args:
        cells: of the system, and of any others, which are not looked at.
        system: its name.
        among: cells of the map; those that come with the package by default.

    Raises:
        ArgumentError: there is no cell of the system.
    """
    ours, rivals_of_map = _figures(cells, system), figures(measured() if among is None else among)
    rivals_of_map.pop(system, None)
    places = []
    for ability, one in ours.items():
        rivals = [theirs[ability] for theirs in rivals_of_map.values() if ability in theirs]
        places.append(
            Standing(
                ability=ability,
                figure=str(one),
                behind=sum(rival.interval[1] < one.interval[0] for rival in rivals),
                ahead=sum(rival.interval[0] > one.interval[1] for rival in rivals),
                systems=len(rivals),
            )
        )
    return places


def beside(cells: Sequence[Cell], system: str, among: Sequence[Cell] | None = None) -> str:
    """A page of Markdown: a system, its nearest relatives, and its place in each ability.

    Args:
        cells: of the system, and of any others, which are not looked at.
        system: its name.
        among: cells of the map; those that come with the package by default.
    """
    among = measured() if among is None else among
    near, places = relatives(cells, system, among), standings(cells, system, among)
    shown = {**figures(among), system: _figures(cells, system)}
    heads = ["system", "same mechanism", *(place.ability for place in places)]
    rows = [heads, [":---", ":---", *["---:"] * len(places)]]
    shared_choices = {one.system: _shared(one) for one in near}
    for name in (system, *shared_choices):
        of_places = (str(shown[name].get(place.ability, "")) for place in places)
        rows.append([name, shared_choices.get(name, ""), *of_places])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    lines = "\n".join(_sentence(place) for place in places)
    return f"## {system} beside its nearest relatives\n\n{table}\n\n{lines}\n"


def _shared(one: Relative) -> str:
    return "all" if len(one.alike) == len(_MECHANISMS) else ", ".join(one.alike) or "not declared"


def _sentence(place: Standing) -> str:
    unclear = place.systems - place.behind - place.ahead
    return (
        f"- {place.ability}, {place.figure}: later than {place.behind} of {place.systems} systems "
        f"of the map, earlier than {place.ahead}; {unclear} cannot be told apart."
    )


def _figures(cells: Sequence[Cell], system: str) -> dict[str, Figure]:
    of_system = figures([cell for cell in cells if cell.system.name == system])
    if not of_system:
        raise ArgumentError(
            f"atlas: there must be a cell of the system {system!r:.80}, got none. Measure it by "
            f"`linrnn atlas --systems {system}`."
        )
    return of_system[system]


def _relative(
    system: str, ours: Mapping[str, Figure], name: str, theirs: Mapping[str, Figure]
) -> Relative:
    first, second = (mixers.load(one).choices for one in (system, name))
    same: tuple[str, ...] = ()
    if first is not None and second is not None:
        differences = first.differences(second)
        same = tuple(word for word in _MECHANISMS if word not in differences)
    gaps = [
        abs(height(ours[ability], ability) - height(theirs[ability], ability))
        for ability in ours
        if ability in theirs
    ]
    mean_gap = statistics.fmean(gaps) if gaps else math.nan
    return Relative(system=name, alike=same, apart=mean_gap, abilities=len(gaps))


def _nearest(one: Relative) -> tuple[int, float, str]:
    return -len(one.alike), math.inf if math.isnan(one.apart) else one.apart, one.system
