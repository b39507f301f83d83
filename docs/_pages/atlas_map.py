"""Parts of the page "Atlas map", made of the table that comes with the package."""

import math
from functools import cache
from html import escape
from pathlib import Path

from _pages.choices import FILTER, title
from linrnn import atlas, mixers
from linrnn.atlas import Ability, Cell, Figure

CHOICES = ("transition", "gate", "memory", "normaliser")
SORT = '<script src="../assets/sort.js" defer></script>'
DATA = Path(atlas.__file__).parent / "measured.csv"
COLOURS = ("#3f7fbf", "#c0621f", "#3a8f4d", "#a5488c", "#8a7a1f", "#5d6d7e")
"""Middle tones, which show on white and on black; more kinds than these share them."""


@cache
def _cells() -> tuple[Cell, ...]:
    return tuple(atlas.measured())


@cache
def _figures() -> dict[str, dict[str, Figure]]:
    return atlas.figures(_cells())


def _systems() -> list[str]:
    """Names, by what they declare."""
    names = dict.fromkeys(cell.system.name for cell in _cells())
    return sorted(names, key=lambda name: (*_words(name), name))


def _words(name: str) -> list[str]:
    choices = mixers.load(name).choices
    return [getattr(choices, one) if choices else "" for one in CHOICES]


def about() -> str:
    """When, how often and with what it was measured."""
    about, cells = atlas.about(), len(_cells())
    whole = sum(
        not ability.timed or mixers.load(name).timed
        for ability in atlas.ABILITIES
        for name in atlas.CORE
    )
    seeds = ", ".join(map(str, about["seeds"]))
    kind = "one seed" if len(about["seeds"]) == 1 else f"{len(about['seeds'])} seeds"
    return (
        f"Measured from {about['first']} to {about['last']} with {kind} ({seeds}), PyTorch "
        f"{', '.join(about['torch'])}, revision `{about['revision']}`. {cells} cells are there; "
        f"one seed of the core has {whole}. Cells that are not measured are empty. "
        "[Download the data](atlas-map/atlas.csv)."
    )


def heat() -> str:
    """The table of systems by abilities: darker where the dial breaks later."""
    heads = ["system", *CHOICES, "state", *(one.name for one in atlas.ABILITIES)]
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    rows = "".join(f"<tr>{_row(name)}</tr>" for name in _systems())
    mark = f'<div class="linrnn-filter" data-columns="{",".join(CHOICES)}"></div>'
    table = f"<table data-sort><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"{FILTER}\n{SORT}\n{mark}\n{table}\n"


def _row(name: str) -> str:
    system = next(cell.system for cell in _cells() if cell.system.name == name)
    state = "grows" if system.state is None else f"{system.state:,}"
    first = f'<td><a href="../mixers/{name}/">{title(name)}</a></td>'
    words = "".join(f"<td>{escape(one)}</td>" for one in (*_words(name), state))
    return first + words + "".join(_cell(name, ability) for ability in atlas.ABILITIES)


def _cell(name: str, ability: Ability) -> str:
    one = _figures()[name].get(ability.name)
    if one is None:
        return "<td></td>"
    first, last = ability.values[0], ability.values[-1]
    height = -1.0 if one.middle.side == "below" else math.log2(one.middle.value / first)
    part = (height + 1) / (math.log2(last / first) + 1)
    hint = f"{one.seeds} seed{'s' * (one.seeds > 1)}; {ability.dial}"
    colour = f"rgba(63,127,191,{0.05 + 0.5 * part:.2f})"
    return (
        f'<td style="background:{colour}" data-value="{height:.3f}" '
        f'title="{hint}">{escape(str(one))}</td>'
    )


def curves() -> str:
    """A drawing for each ability that has data: how far each system comes at each value."""
    parts = []
    for ability in atlas.ABILITIES:
        cells = [cell for cell in _cells() if cell.ability == ability.name]
        if cells:
            parts.append(f"### {ability.name}\n\n{_curve(ability, cells)}\n")
    return "\n".join(parts)


def _curve(ability: Ability, cells: list[Cell]) -> str:
    width, height = 560, 240
    values = ability.values

    def x(value: float) -> float:
        span = math.log2(values[-1] / values[0]) or 1
        return 50 + (width - 70) * math.log2(value / values[0]) / span

    def y(part: float) -> float:
        return 15 + (height - 55) * (1 - min(max(part, 0.0), 1.0))

    drawn = _axes(ability, x, y, width)
    for cell in cells:
        points = [(x(row.value), y(row.fraction)) for row in cell.rows]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in points)
        hint = escape(f"{title(cell.system.name)}, seed {cell.seed}: {cell.breaks}")
        colour = _colour(cell.system.name)
        drawn += (
            f'<g stroke="{colour}" fill="{colour}"><title>{hint}</title>'
            f'<polyline points="{line}" fill="none" stroke-width="1.5"/>{dots}</g>'
        )
    label = f"Part of the way from chance to perfect against {ability.dial}, {ability.name}"
    return _svg(width, height, label, drawn)


def _axes(ability: Ability, x, y, width: int) -> str:
    """Lines at chance, half and perfect, and the values of the dial."""
    drawn = ""
    for part, words in ((0, "chance"), (0.5, "half"), (1, "perfect")):
        drawn += (
            f'<line x1="50" x2="{width - 20}" y1="{y(part):.1f}" y2="{y(part):.1f}" '
            f'stroke="currentColor" stroke-width="0.6" stroke-dasharray="3 3"/>'
            + _text(46, y(part) + 4, words, "end")
        )
    for value in ability.values:
        drawn += _text(x(value), y(0) + 16, str(value))
    return drawn + _text(width / 2, y(0) + 32, ability.dial)


def _colour(name: str) -> str:
    kinds = sorted({_words(one)[0] for one in atlas.CORE})
    return COLOURS[kinds.index(_words(name)[0]) % len(COLOURS)]


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" '
        f'fill="currentColor">{escape(words)}</text>'
    )


def _svg(width: int, height: int, label: str, drawn: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width:100%" width="{width}" role="img" '
        f'aria-label="{escape(label)}"><title>{escape(label)}</title>{drawn}</svg>'
    )


def plane() -> str:
    """Recall against parity; a full dot is read in parallel."""
    across, up = (next(a for a in atlas.ABILITIES if a.name == n) for n in ("recall", "parity"))
    names = [n for n in _systems() if {across.name, up.name} <= _figures()[n].keys()]
    if not names:
        return "No system has both figures yet."
    drawn, places = "", {}
    for name in names:
        place = _place(name, across, 60, 500), _place(name, up, 260, 20)
        places.setdefault(place, []).append(name)
    for (x, y), some in places.items():
        for i, name in enumerate(some):
            fill = _colour(name) if _parallel(name) else "none"
            drawn += (
                f'<circle cx="{x:.1f}" cy="{y - 12 * i:.1f}" r="4" fill="{fill}" '
                f'stroke="{_colour(name)}" stroke-width="1.5"/>'
                + _text(x + 8, y - 12 * i + 4, title(name), "start")
            )
    drawn += _text(300, 292, f"recall ({across.dial})") + _text(
        8, 12, f"parity ({up.dial})", "start"
    )
    return _svg(640, 300, "Systems by recall and parity; a full dot is read in parallel", drawn)


def _place(name: str, ability: Ability, start: float, end: float) -> float:
    values = [ability.values[0] / 2, *ability.values]
    height = atlas.height(_figures()[name][ability.name], ability.name)
    part = (height - math.log2(values[0])) / math.log2(values[-1] / values[0])
    return start + (end - start) * part


def _parallel(name: str) -> bool:
    system = next(cell.system for cell in _cells() if cell.system.name == name)
    layer = mixers.build(name, system.width, system.options, device="meta")
    return layer.cost != "sequential"


def laws() -> str:
    """A row for each expected law, and the largest residuals."""
    rows = [
        "| ability | property | with | without | factors of two | verdict |",
        "| --- " * 6 + "|",
    ]
    for law in atlas.laws(_cells()):
        effect = "" if law.effect is None else f"{law.effect:.1f} [{law.low:.1f}, {law.high:.1f}]"
        words = [law.ability, law.feature, str(law.having), str(law.lacking), effect, law.verdict]
        rows.append(f"| {' | '.join(words)} |")
    return "\n".join(rows)


def fits() -> str:
    """A row for each ability: effects of all properties at once, and how much they explain."""
    heads = ["ability", "systems", *atlas.FEATURES, "explained", "predicted"]
    rows = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for one in atlas.fits(_cells()):
        effects = (one.effects.get(name) for name in atlas.FEATURES)
        shown = ["" if e is None else f"{e[0]:+.1f} [{e[1]:.1f}, {e[2]:.1f}]" for e in effects]
        parts = [f"{100 * part:.0f} %" for part in (one.explained, one.predicted)]
        rows.append(f"| {' | '.join([one.ability, str(one.systems), *shown, *parts])} |")
    return "\n".join(rows) if len(rows) > 2 else "No ability has enough systems yet."


def residuals() -> str:
    """Ten figures that the properties explain least."""
    rows = ["| system | ability | figure | mean of its kind | factors of two |", "| --- " * 5 + "|"]
    for one in atlas.residuals(_cells()):
        words = [title(one.system), one.ability, one.figure, f"{one.expected:.3g}"]
        rows.append(f"| {' | '.join([*words, f'{one.factors:+.1f}'])} |")
    return "\n".join(rows) if len(rows) > 2 else "No two systems of one kind are measured yet."
