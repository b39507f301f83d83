"""The page "What has been reproduced": every claim with its class, computed from kept runs."""

from collections import Counter
from functools import cache

from _pages import results
from linrnn.reproductions._page.outcome import Derived, pages
from linrnn.reproductions._page.verdict import (
    CLASSES,
    DIRECTION,
    NOTHING,
    OPPOSITE,
    REPRODUCED,
    SAME,
    UNRESOLVED,
    Verdict,
)

SHORT = {
    REPRODUCED: "reproduced",
    DIRECTION: "published-settings",
    SAME: "same-direction",
    UNRESOLVED: "unresolved",
    OPPOSITE: "opposite",
    NOTHING: "nothing",
}
"""Names of the classes in docs/stylesheets/extra.css."""


@cache
def found() -> tuple[Derived, ...]:
    """Every finished page with the verdicts of its runs."""
    return tuple(pages(results.FOLDER))


def counts() -> str:
    """How many claims are in each class, those about published work apart from ours."""
    head = ["class", "published claims", "of trained models", "claims of ours"]
    rows = [f"| {' | '.join(head)} |", "| --- | ---: | ---: | ---: |"]
    judged = [(page, v) for page in found() for v in page.verdicts]
    columns = [
        Counter(v.word for _, v in judged if not v.judged.ours),
        Counter(v.word for page, v in judged if not v.judged.ours and _trained(page)),
        Counter(v.word for _, v in judged if v.judged.ours),
    ]
    for word in (*CLASSES, NOTHING):
        numbers = [str(column[word]) for column in columns]
        rows.append(f"| {' | '.join([_coloured(word, word), *numbers])} |")
    rows.append(f"| {' | '.join(['all', *(str(sum(c.values())) for c in columns)])} |")
    return "\n".join(rows)


def _trained(page: Derived) -> bool:
    return page.runs is not None and any(run.steps > 0 for run in page.runs.rows)


def grid() -> str:
    """A row for each page with runs, and in it a square for each claim."""
    rows = ["| page | claims | command |", "| --- | --- | --- |"]
    for page in found():
        if page.verdicts:
            squares = "".join(_coloured(v.word, "■", v.judged.claim) for v in page.verdicts)
            rows.append(f"| {_link(page)} | {squares} | `{command(page)}` |")
    return "\n".join(rows)


def claims() -> str:
    """A row for each claim about published work."""
    return _table(ours=False)


def ours() -> str:
    """A row for each claim of ours."""
    return _table(ours=True)


def lost() -> str:
    """The pages whose runs were not kept, with the command that makes them anew."""
    rows = ["| page | command |", "| --- | --- |"]
    rows += [f"| {_link(page)} | `{command(page)}` |" for page in found() if page.runs is None]
    return "\n".join(rows)


def command(page: Derived) -> str:
    """Return the command that computes a page with its runs."""
    return f"linrnn reproduce {page.name} --scale {page.scale} --results results"


def _table(ours: bool) -> str:
    rows = ["| page | claim | published | difference [95 %] | scale | class |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for page in found():
        for v in page.verdicts:
            if v.judged.ours == ours:
                rows.append(f"| {' | '.join([_link(page), *_cells(v)])} |")
    return "\n".join(rows)


def _cells(verdict: Verdict) -> list[str]:
    judged = verdict.judged
    word = f"{verdict.word}: {verdict.why}" if verdict.why else verdict.word
    scale = judged.scale or "the published settings"
    size = verdict.size.replace("[", "\\[")
    return [judged.claim, judged.published, size, scale, _coloured(verdict.word, word)]


def _coloured(word: str, text: str, title: str = "") -> str:
    said = f' title="{title}: {word}"' if title else ""
    return f'<span class="verdict {SHORT[word]}"{said}>{text}</span>'


def _link(page: Derived) -> str:
    return f"[{page.page}](results/{page.page}/report.md)"
