"""Tables of the page "Which mixer?": every system's costs and needs, and every score of a task."""

from _pages import choices, measures, results, rows
from linrnn import mixers
from linrnn._catalogue import stems

RECALL = ("mqar", "associative recall", "selective copying", "copy")


def systems() -> str:
    """A row for each system: what it costs, and which needs it meets."""
    head = [
        "system",
        "state",
        "irregular time",
        "a sequence is read",
        "state, numbers",
        "parameters",
    ]
    head += ["tokens a second", "µs a step", "kept a token", "recall measured", "scores"]
    return choices.filtered(
        [*head[1:4], "recall measured"], [head, *map(_system, stems(mixers.__name__))]
    )


def _system(name: str) -> list[str]:
    cls, numbers = mixers.load(name), measures.state_numbers(name)
    cost, found = measures.costs().get(name, {}), [r for r in rows.scores() if r.mixer == name]
    recall = any(row.heading.startswith(RECALL) for row in found)
    speed = measures.tokens_a_second(name)
    return [
        f"[{cls.__name__}](mixers/{name}.md)",
        "grows" if numbers is None else "fixed",
        "read" if cls.timed else "not read",
        _reading(name),
        "" if numbers is None else f"{numbers:,}",
        f"{measures.parameters(name):,}",
        "" if speed is None else f"{speed:,}",
        cost.get("us_per_step", ""),
        "" if not cost else f"{float(cost['saved_numbers_per_token']):,.0f}",
        "yes" if recall else "no",
        str(len(found)),
    ]


def _reading(name: str) -> str:
    words = {
        "parallel": "in parallel",
        "sequential": "step after step",
        "quadratic": "every pair of steps",
    }
    return words[measures.built(name).cost]


def scores() -> str:
    """A row for each score of a trained model in results/, with what it was trained with."""
    head = ["task", "length", "system", "row", "score", "seeds", "parameters", "steps", "tuned"]
    body = [_score(row) for row in sorted(rows.scores(), key=lambda row: row.heading.lower())]
    menus = ["task", "length", "system", "seeds", "tuned"]
    return choices.filtered(menus, [[*head, "page"], *body])


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
        row.cells.get("steps", ""),
        row.tuned,
        f"[{row.page.parent.name}]({results.uri(row.page)})",
    ]
