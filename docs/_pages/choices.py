"""All systems by what they choose: one table, and who is a relative of whom."""

import lists

from linrnn import mixers
from linrnn._options.catalogue import stems
from linrnn.mixers._contract.choices import WORDS, Choices

FILTER = '<script src="../assets/filter.js" defer></script>'
"""Menus above tables; the address is that of any page one folder below the site's first."""


def declared() -> dict[str, Choices]:
    """The choices of every mixer of this package."""
    found = {name: mixers.load(name).choices for name in stems(mixers.__name__)}
    return {name: choices for name, choices in found.items() if choices is not None}


def page() -> str:
    """Every system in one table, after the words it uses."""
    known = declared()
    head = ["system", *WORDS, "family"]
    rows = []
    for name in sorted(known, key=_place(known)):
        words = [getattr(known[name], choice) for choice in WORDS]
        rows.append([f"[{title(name)}]({name}.md)", *words, mixers.load(name).family])
    return f"""---
hide: [toc]
---

# All systems

This page compares the designs of all {len(known)} systems with their default options. Each system
declares its design by the answers to [six questions](#words). Tests compare steps, memory and the
gate of linear systems with what the layer computes; the other answers follow from the equations.

The table is sorted by memory, then steps, transition and gate. So neighbours are related. The page
of a system also lists its nearest relatives.

{filtered([*WORDS, "family"], [head, *rows])}

## Words

{vocabulary()}

By family, as in `linrnn list mixers`:

{lists.mixer_table()}
"""


def vocabulary() -> str:
    """The meaning of every word of every choice."""
    questions = {
        "transition": "How does a step transform the memory, before the input is added?",
        "gate": "What controls how much of the memory is kept?",
        "memory": "In which form is the past stored?",
        "normaliser": "What keeps outputs in one range?",
        "steps": "Is a state a linear function of the previous one?",
        "output": "Is the output gated?",
    }
    parts = []
    for choice, meanings in WORDS.items():
        parts.append(f"### {choice}\n\n{questions[choice]}\n")
        parts.append(table([["word", "meaning"], *map(list, meanings.items())]) + "\n")
    return "\n".join(parts)


def relatives(name: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Systems that differ in no choice or in one, or the nearest where all differ in more.

    By name, those that are nearest first: the choices that differ, as the mixer and as the other
    makes them.
    """
    known = declared()
    if name not in known:
        return {}
    found = {
        other: known[name].differences(choices) for other, choices in known.items() if other != name
    }
    most = max(1, min(map(len, found.values())))
    near = [other for other, differences in found.items() if len(differences) <= most]
    near.sort(key=lambda other: (len(found[other]), list(found[other].items()), other))
    return {other: found[other] for other in near}


def title(name: str) -> str:
    """The title of a mixer."""
    return mixers.load(name).__name__


def table(rows: list[list[str]]) -> str:
    """A table in Markdown, of which the first row is the head."""
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filtered(columns: list[str], rows: list[list[str]]) -> str:
    """A table below a mark that a script turns into a menu for each of these columns."""
    mark = f'<div class="linrnn-filter" data-columns="{",".join(columns)}"></div>'
    return f"{FILTER}\n{mark}\n\n{table(rows)}"


def _place(known: dict[str, Choices]):
    """Sorts systems as a tree has them: by the words, in the order they are listed."""
    order = ("memory", "steps", "transition", "gate", "normaliser", "output")

    def key(name: str) -> list[int]:
        return [[*WORDS[choice]].index(getattr(known[name], choice)) for choice in order]

    return key
