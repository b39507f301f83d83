"""Tables of catalogues, and reference pages made from them."""

import re
from inspect import getdoc

from linrnn import cli, learn, recipes, tasks
from linrnn._options.catalogue import stems, studied
from linrnn.cli._line import recipes as _recipes


def verbs() -> str:
    """Every verb of the command line and its summary."""
    rows = [f"| `linrnn {verb}` | {summary} |" for verb, summary in cli.verbs().items()]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows])


def recipe_table() -> str:
    """Every recipe and scale, what to expect of it and what it shows."""
    head = ["recipe", "scale", "expected", "time", "what it is", "can and cannot show"]
    lines = [head, ["---"] * len(head), *_recipes.rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def every_task() -> str:
    """A section for each task: its class, and what can be chosen."""
    return "\n".join(
        f"### {name}\n\n`linrnn train {name}`\n\n"
        f"::: linrnn.tasks.{name}.{tasks.load(name).__name__}\n"
        "    options: {heading_level: 4, members: [summary]}\n" + _options(name)
        for name in stems(tasks.__name__)
    )


def _options(name: str) -> str:
    cls = tasks.load(name).Options
    if cls.__module__ != f"linrnn.tasks.{name}":  # those of another task, or none
        return ""
    return f"\n::: {cls.__module__}.{cls.__name__}\n    options: {{heading_level: 4}}\n"


def every_recipe() -> str:
    """A section for each recipe: what each scale of it is."""
    tables, parts = studied("linrnn.recipes"), []
    for name in recipes.names():
        parts.append(f"### {name} {{ #recipe-{name} }}\n")
        if name in tables:
            parts.append(f"paper: {tables[name].text}\n")
            continue
        for scale in recipes.scales(name):
            parts.append(f"::: linrnn.recipes.{name}.{scale}\n    options: {{heading_level: 4}}\n")
    return "\n".join(parts)


def every_learner() -> str:
    """A section for each learner."""
    return "\n".join(
        f"::: linrnn.learn.{name}.{learn.load(name).__name__}\n    options: {{heading_level: 3}}\n"
        for name in learn.names()
    )


def summary(thing: object) -> str:
    """The first line of a docstring, as the cell of a table."""
    return re.sub(r"\s+", " ", (getdoc(thing) or "").partition("\n")[0]).replace("|", "\\|")
