"""A page for each mixer."""

import re

import lists

from _pages import advice, choices, measures, parts, picture, results, rows
from linrnn import mixers
from linrnn._options.catalogue import stems
from linrnn.state_spec import Part, describe

READING = {
    "parallel": "in parallel; every streaming step takes the same time",
    "sequential": "one step after another, since each needs the result of the last",
    "quadratic": "all pairs of steps, up to its window",
}
NO_ERROR = "-"
EXCLUDED = "{ data-search-exclude }"
"""Mark of a heading whose section is not searched: all mixers' numbers were half of the index."""


def pages() -> dict[str, str]:
    """The Markdown of every page, by its place."""
    return {
        "mixers/index.md": choices.page(),
        **{f"mixers/{name}.md": page(name) for name in stems(mixers.__name__)},
    }


def navigation() -> list[dict[str, object]]:
    """The table of all, then every mixer under its family."""
    return [
        {"All systems": "mixers/index.md"},
        *(
            {heading: [{mixers.load(name).__name__: f"mixers/{name}.md"} for name in names]}
            for heading, names in lists.by_family().items()
        ),
    ]


def page(name: str) -> str:
    """The mixer's docstring, its methods, and what else is known about it."""
    cls = mixers.load(name)
    key = re.search(r"Key: (\w+)\.", cls.__doc__ or "")
    cited = f"\nCited as [{key[1]}](../references.md#{key[1]}).\n" if key else ""
    return f"""---
tags: [{name}]
search:
  boost: {_weight(name)}
---

# {cls.__name__}

{_summary(name)}

In Python: `from linrnn.mixers import {cls.__name__}`. On the command line:
`linrnn train TASK --mixer {name}`, `linrnn show {name}`. Family:
{mixers.FAMILIES.get(cls.family, cls.family)}.
{cited}
{advice.section(name)}
## Equation and options

{picture.page(name)}

::: {cls.__module__}.{cls.__name__}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: [eigenvalues, reset_parameters]
      show_source: true

[The contract](../reference/mixers.md) describes the arguments and errors of every mixer.

{_choices(name)}
{_cost(name)}
{_laws(name)}
{_results(name)}"""


def _weight(name: str) -> int:
    """The weight of a page in search: before results, and before names that begin with it."""
    longer = any(other != name and other.startswith(name) for other in stems(mixers.__name__))
    return 8 if longer else 4


def _choices(name: str) -> str:
    """A mixer's choices, and the mixers with nearly the same."""
    cls = mixers.load(name)
    if cls.choices is None:
        return ""
    return f"""## Design

With the default options:

{picture.explained(cls.choices)}

## Related systems {EXCLUDED}

{_related(name)}
[All systems](index.md) compares the designs of all mixers.
"""


def _related(name: str) -> str:
    """A line for each relative, under the number of choices that differ."""
    groups: dict[int, list[str]] = {}
    for other, differences in choices.relatives(name).items():
        line = f"- {_link(other)}: {_difference(name, other, differences)}\n"
        groups.setdefault(len(differences), []).append(line)
    heads = {0: "The same design with another equation:", 1: "One choice differs:"}
    return "".join(
        f"{heads.get(n, f'The nearest systems differ in {n} choices:')}\n\n{''.join(lines)}\n"
        for n, lines in groups.items()
    )


def _difference(name: str, other: str, differences: dict[str, tuple[str, str]]) -> str:
    """Differences in a line: choices, or else the state and the times, and the other's subject."""
    words = [f"**{choice}** {theirs}, not {own}" for choice, (own, theirs) in differences.items()]
    if not differences:
        words = _beside_choices(name, other)
    return f"{'; '.join(words)}{'. ' if words else ''}{_summary(other)}"


def _beside_choices(name: str, other: str) -> list[str]:
    """Declared differences of two mixers with the same choices."""
    own, theirs = parts.of_state(name), parts.of_state(other)
    words = []
    if [_axes(part) for part in own.values()] != [_axes(part) for part in theirs.values()]:
        words.append(f"**state** {_tensors(theirs)}, here {_tensors(own)}")
    if mixers.load(name).timed != mixers.load(other).timed:
        read = "read" if mixers.load(other).timed else "not read"
        words.append(f"**times** between steps are {read}")
    return words


def _tensors(state: dict[str, Part]) -> str:
    """By name, with axes where they are few; the only tensor of a state may have no name."""
    if len(state) > 3:
        return ", ".join(f"`{path}`" for path in state)
    named = {path: f"`{path}` " if len(state) > 1 or path != "state" else "" for path in state}
    return ", ".join(f"{named[path]}({_axes(part)})" for path, part in state.items())


def _axes(part: Part) -> str:
    shape = " × ".join(part.axes) or "a number"
    return shape if part.kind == "real" else f"{shape}, {part.kind}"


def _summary(name: str) -> str:
    """The first line of its docstring."""
    return (mixers.load(name).__doc__ or "").partition("\n")[0]


def _link(name: str) -> str:
    return f"[{mixers.load(name).__name__}]({name}.md)"


def _cost(name: str) -> str:
    """Time and state."""
    cls, width = mixers.load(name), measures.WIDTH
    numbers, cost = measures.state_numbers(name), measures.costs().get(name)
    times = "read" if cls.timed else "not read; all steps count as equal"
    facts = [
        ["training computes steps", READING[measures.built(name).cost]],
        ["forms", ", ".join(f"`{form}`" for form in cls.forms)],
        ["times between steps", times],
        ["parameters", f"{measures.parameters(name):,}"],
        ["state of one sequence", "grows" if numbers is None else f"{numbers:,} numbers"],
    ]
    if cost:
        facts += [
            ["training, one core", f"{measures.tokens_a_second(name):,} tokens a second"],
            ["a streaming step", f"{cost['us_per_step']} µs"],
            [
                "activation memory",
                f"{float(cost['saved_numbers_per_token']):.4g} numbers a token",
            ],
        ]
        if float(cost["products_per_token"]):
            products = f"{float(cost['products_per_token']):,.0f} operations a token"
            facts.append(["matrix products outside the recurrence", products])
    shapes = "\n".join(describe(mixers.build(name, width, device="meta").state_spec()))
    return f"""## What it costs {EXCLUDED}

At width {width} with the default options, on [this machine](../results/mixers/README.md):

{choices.table([["", ""], *facts])}

```text
{shapes}
```
"""


def _laws(name: str) -> str:
    """Every contract test with the worst error that was measured."""
    found = measures.laws().get(name, {})
    if not found:
        return f"## Contract tests {EXCLUDED}\n\nNot measured yet: run `linrnn check {name}`.\n"
    reasons = {law.partition(":")[0]: text for law, text in mixers.load(name).declared.items()}
    body = [
        [f"`{law}`", row["verdict"], row["worst_error"] or NO_ERROR, reasons.get(law, "")]
        for law, row in found.items()
    ]
    passed = [row for row in found.values() if row["verdict"] == "pass"]
    errors = [float(row["worst_error"]) for row in passed if row["worst_error"]]
    return f"""## Contract tests {EXCLUDED}

`linrnn check {name}` runs these tests. An error is in units of its tolerance, so a test fails above
1. The worst error of a passed test is {max(errors):.2g}. A test that this mixer cannot pass is
declared, with the reason. [What each test checks](../reference/testing.md).

{choices.table([["property", "verdict", "worst error", "reason"], *body])}
"""


def _results(name: str) -> str:
    """Its rows in results/."""
    found = [row for row in rows.measured() if row.mixer == name]
    if not found:
        return f"## Results {EXCLUDED}\n\nNone yet in [results](../results/README.md).\n"
    body = [
        [_place(row), _plain(row.heading), _plain(row.label), _plain(_numbers(row))]
        for row in found
    ]
    return f"""## Results {EXCLUDED}

Compare only rows of one page: sizes, budgets and seeds differ between pages.

{choices.table([["page", "table", "row", "numbers"], *body])}
"""


def _place(row: rows.Row) -> str:
    return f"[{row.page.parent.name}](../{results.uri(row.page)})"


def _numbers(row: rows.Row) -> str:
    return "; ".join(f"{head}: {value}" for head, value in row.cells.items() if value)


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
