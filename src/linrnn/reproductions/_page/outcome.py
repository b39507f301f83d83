"""Outcome of a page, from its runs: its first sentences, its picture, its claims."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linrnn._files.storage import read_text, remove, write_atomically
from linrnn._options.catalogue import load_class, stems
from linrnn.reproductions._page.base import Reproduction, Table
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import (
    DIRECTION,
    HEAD,
    NOTHING,
    OPPOSITE,
    REPRODUCED,
    SAME,
    UNRESOLVED,
    Verdict,
    rule,
    verdicts,
)
from linrnn.train.drawn import drawn
from linrnn.train.figures import legend_below, new_figure, save
from linrnn.train.folder import PLOT_ENDINGS

PAGE, CLAIMS, FIGURE = "report.md", "verdicts.csv", "claims"
RUNS_FOLDER = "runs"
"""In a folder of finished pages, the runs of all of them."""
NO_CLAIM = "No claim: nothing printed lies apart by its errors, or nothing could be run."
LOST = (
    "Its runs were not kept, so it counts in no class. The numbers below are those of the command "
    "that is named there. They come from its first page, and nobody can judge them anew; the same "
    "command computes the page with its runs."
)
_BEGIN, _END = "<!-- outcome -->", "<!-- end of outcome -->"
_BLOCK = re.compile(rf"{_BEGIN}\n.*?{_END}\n\n", re.DOTALL)
_LISTED = re.compile(r"- \[every run by itself\].*\n")  # older pages have it among their notes
_COLOURS = {
    REPRODUCED: "#1b7837",
    DIRECTION: "#5aae61",
    SAME: "#4393c3",
    UNRESOLVED: "0.45",
    OPPOSITE: "#b2182b",
    NOTHING: "0.8",
}


_CATALOGUE = "linrnn.reproductions"
_COUNTED = {
    REPRODUCED: "reproduced",
    DIRECTION: "in the same direction at the published settings",
    SAME: "in the same direction at reduced scale",
    UNRESOLVED: "without a resolvable difference",
    OPPOSITE: "opposite",
    NOTHING: "undecided",
}


class Derived(NamedTuple):
    """A finished page and what its runs say of its claims."""

    page: str
    """Name of its folder."""
    name: str
    scale: str
    what: type[Reproduction]
    runs: Runs | None
    """None where they were not kept."""
    verdicts: Sequence[Verdict]


def in_words(judged: Sequence[Verdict]) -> str:
    """Three sentences: how the claims came out, the clearest of them, and its scale.

    Claims of ours are counted apart from those about published work.
    """
    if not judged:
        return NO_CLAIM
    published, ours = ([v for v in judged if v.judged.ours == is_ours] for is_ours in (False, True))
    counts = [_counted(published, "published claim"), _counted(ours, "claim of ours")]
    decided = [v for v in published or ours if v.word in (REPRODUCED, DIRECTION, SAME, OPPOSITE)]
    clearest = "No difference decides a claim"
    if decided:
        best = min(decided, key=lambda v: v.p)
        size = best.size.replace("[", "\\[")
        clearest = f'The clearest is "{best.judged.claim}": {best.word}, {size}'
    scales = dict.fromkeys(v.judged.scale or "at the published settings" for v in judged)
    return f"{'; '.join(filter(None, counts))}. {clearest}. It was run {'; or '.join(scales)}."


def _counted(judged: Sequence[Verdict], what: str) -> str:
    if not judged:
        return ""
    counts = Counter(v.word for v in judged)
    words = [f"{counts[word]} {_COUNTED[word]}" for word in _COUNTED if counts[word]]
    plural = what.replace("claim", "claims") if len(judged) > 1 else what
    return f"{len(judged)} {plural}: {', '.join(words)}"


def block(text: str, picture: bool, runs: str = "") -> list[str]:
    """The lines between the title of a page and all else; its runs are in a file."""
    text += f" [Every run by itself]({runs})." if runs else ""
    shown = [f"![difference of each claim, with its interval]({FIGURE}.svg)", ""] if picture else []
    return [_BEGIN, text, "", *shown, _END, ""]


def section(judged: Sequence[Verdict], need: int) -> list[str]:
    """The lines of the claims that end a page."""
    table = Table("Claim by claim", HEAD, [v.cells() for v in judged])
    lines = table.markdown() if judged else [NO_CLAIM]
    return [*lines, "", f"The rule of verdicts: {rule(need)}"]


def picture(judged: Sequence[Verdict]) -> Any:
    """Every difference with its interval, in the colour of its class; None where there is none."""
    shown = [v for v in judged if not math.isnan(v.low)]
    if not shown:
        return None
    units = list(dict.fromkeys(v.judged.unit for v in shown))
    counts = [sum(v.judged.unit == unit for v in shown) for unit in units]
    figure = new_figure(8.6, 0.9 * len(units) + 0.5 + 0.26 * len(shown))
    panels = figure.subplots(len(units), 1, squeeze=False, height_ratios=[n + 1 for n in counts])
    for axes, unit in zip(panels[:, 0], units, strict=True):
        rows = [v for v in shown if v.judged.unit == unit]
        for y, v in enumerate(rows):
            error = [[v.mean - v.low], [v.high - v.mean]]
            style: dict[str, Any] = {"fmt": "o", "capsize": 3, "color": _COLOURS[v.word]}
            axes.errorbar(v.mean, y, xerr=error, label=f"_{v.judged.claim}", **style)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [v.judged.claim for v in rows], fontsize=7)
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=f"difference, {unit or 'in its own unit'}")
        axes.grid(alpha=0.3)
    for word in dict.fromkeys(v.word for v in shown):
        panels[0, 0].plot([], [], "o", color=_COLOURS[word], label=word)
    legend_below(figure, panels[0, 0])
    return figure


def pages(results: Path) -> list[Derived]:
    """Every finished page of a folder with the verdicts of its runs, sorted by folder."""
    entries = {name.replace("_", "-"): name for name in stems(_CATALOGUE)}
    derived = []
    for path in sorted(results.glob(f"*/{PAGE}")):
        name, _, scale = path.parent.name.rpartition("-")
        if name in entries:
            derived.append(_derived(results, name, scale, _load(entries[name])))
    return derived


def _load(name: str) -> type[Reproduction]:
    what = load_class(_CATALOGUE, "reproduction", name, Reproduction)  # type: ignore[type-abstract]
    return what


def _derived(results: Path, name: str, scale: str, what: type[Reproduction]) -> Derived:
    path = results / RUNS_FOLDER / f"{name}.csv"
    runs = Runs.read(path, scale) if path.is_file() else None
    if runs is None or not runs.rows:
        return Derived(f"{name}-{scale}", name, scale, what, None, ())
    judged = verdicts(what().claims(runs, scale), what.seeds_needed(scale))
    return Derived(f"{name}-{scale}", name, scale, what, runs, judged)


def derive(derived: Derived, results: Path) -> dict[str, bytes]:
    """Compute text, claims and picture of a finished page from its runs.

    Returns:
        Contents by the name of the file, without pictures, whose numbers are among them.
    """
    text = read_text(results / derived.page / PAGE, inside=results)
    figure = picture(derived.verdicts)
    lost = derived.runs is None
    words = LOST if lost else in_words(derived.verdicts)
    title, _, sections = _BLOCK.sub("", text).partition("\n\n")
    body = sections.partition("\n## Verdicts\n")[0]
    need = derived.what.seeds_needed(derived.scale)
    end = [LOST] if lost else section(derived.verdicts, need)
    body = _LISTED.sub("", body)
    where = "" if lost else f"../{RUNS_FOLDER}/{derived.name}.csv"
    lines = [title, "", *block(words, figure is not None, where), body, "## Verdicts", "", *end]
    files = {PAGE: ("\n".join(lines) + "\n").encode()}
    if derived.verdicts:
        files[CLAIMS] = as_csv(HEAD, [v.cells() for v in derived.verdicts])
    if figure is not None:
        files[f"{FIGURE}.{PLOT_ENDINGS[-1]}"] = drawn(figure)
    return files


def as_csv(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """A table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().encode()


def rewrite(results: Path) -> None:
    """Compute anew all that pages have from their runs, and take away what has none."""
    for derived in pages(results):
        folder = results / derived.page
        files: Mapping[str, bytes] = derive(derived, results)
        for name, content in files.items():
            write_atomically(folder / name, content)
        figure = picture(derived.verdicts)
        if figure is not None:
            save(figure, folder / FIGURE)
            remove(folder / f"{FIGURE}.png", inside=folder)
        for stale in {CLAIMS, *(f"{FIGURE}.{ending}" for ending in PLOT_ENDINGS)} - {*files}:
            path = folder / stale
            if path.is_file() and not (figure is not None and stale.startswith(FIGURE)):
                remove(path, inside=folder)
