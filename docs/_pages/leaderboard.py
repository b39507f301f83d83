"""Tables of the page "Which mixer?": every system's costs and needs, and every score of a task."""

from _pages import choices, measures, results, rows
from linrnn import mixers
from linrnn._options.catalogue import stems

RECALL = ("mqar", "associative recall", "selective copying", "copy")
BEST = "best recall (%)"

_LEAST = f"{BEST} at least 25 50 75 90"
_SIZES = "parameters at most 20000 50000 150000 400000"
_STATES = "state at most 500 2000 10000"
"""Menus of bounds, in the syntax of docs/assets/filter.js."""


def systems() -> str:
    """A row for each system: what it costs, and which needs it meets."""
    head = ["system", "state", "times", "training", BEST]
    head += ["tokens a second", "µs a step", "numbers a token"]
    menus = [_STATES, *head[2:4], _LEAST]
    return choices.filtered(menus, [head, *map(_system, stems(mixers.__name__))])


def _system(name: str) -> list[str]:
    cls, numbers = mixers.load(name), measures.state_numbers(name)
    cost, found = measures.costs().get(name, {}), [r for r in rows.scores() if r.mixer == name]
    speed = measures.tokens_a_second(name)
    return [
        f"[{cls.__name__}](mixers/{name}.md)",
        "grows" if numbers is None else f"{numbers:,}",
        "read" if cls.timed else "not read",
        _reading(name),
        _recall(found),
        "" if speed is None else f"{speed:,}",
        cost.get("us_per_step", ""),
        "" if not cost else f"{float(cost['saved_numbers_per_token']):,.0f}",
    ]


def _recall(found: list[rows.Row]) -> str:
    """The best score in recall, of which task, and of which variant of a system."""
    asked = [row for row in found if row.heading.startswith(RECALL)]
    if not asked:
        return ""
    best = max(asked, key=rows.number)
    variant = f" ({best.label})" if "," in best.label else ""
    return f"{rows.score(best)}: {rows.task(best)}{variant}"


def _reading(name: str) -> str:
    words = {
        "parallel": "parallel",
        "sequential": "step by step",
        "quadratic": "all pairs of steps",
    }
    return words[measures.built(name).cost]


def scores() -> str:
    """A row for each score of a trained model in results/, with what it was trained with."""
    head = ["task", "length", "system", "row", "score", "seeds", "parameters"]
    head += ["state", "tuned", "page"]
    body = [_score(row) for row in sorted(rows.scores(), key=lambda row: row.heading.lower())]
    menus = ["task", "length at least", "system", "seeds at least", _SIZES, _STATES, "tuned"]
    return choices.filtered(menus, [head, *body])


def _score(row: rows.Row) -> list[str]:
    heads = [head for head in row.cells if head.startswith(("ours", "test metric"))]
    percent = " %" if "%" in heads[0] else ""
    return [
        row.heading,
        str(rows.length(row) or ""),
        f"[{choices.title(row.mixer)}](mixers/{row.mixer}.md)",
        row.label,
        rows.score(row) + percent,
        row.cells["seeds"],
        row.cells.get("parameters", ""),
        rows.state(row),
        row.tuned,
        f"[{row.page.parent.name}]({results.uri(row.page)})",
    ]
