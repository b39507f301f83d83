"""Recipes in words: what to expect of one, and a table of all."""

import re
from typing import Any

from linrnn import recipes, tasks
from linrnn._options.numbers import duration
from linrnn.cli._line.progress import metric_text


def expectation(recipe: "recipes.Recipe") -> str:
    """The metric and the time to expect, and whether anybody here has seen them."""
    caveat = "" if recipe.seeds else " as published, not run here"
    return f"{_metric(recipe)}{caveat}; {_time(recipe, recipe.hardware)}"


def rows() -> list[tuple[str, str, str, str, str, str]]:
    """Name, scale, metric and time to expect, summary and what it shows, of every scale."""
    return [
        (name, scale, *_cells(recipe), recipe.shows)
        for name in recipes.names()
        for scale in recipes.scales(name)
        for recipe in [recipes.load(name, scale)]
    ]


def records() -> list[dict[str, Any]]:
    """Every recipe and scale, as JSON has them."""
    return [
        {
            "name": name,
            "summary": recipe.summary,
            "scale": scale,
            "task": recipe.config.task,
            "mixer": recipe.config.mixer,
            "metric": tasks.load(recipe.config.task).metric,
            "expected": recipe.expected,
            "run_here": bool(recipe.seeds),
            "seconds": recipe.seconds,
            "hardware": recipe.hardware,
        }
        for name in recipes.names()
        for scale in recipes.scales(name)
        for recipe in [recipes.load(name, scale)]
    ]


def table() -> str:
    """Every recipe and scale with the metric and the time to expect, a line each."""
    lines = [row[:5] for row in rows()]
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(4)]
    return "".join("  ".join([*map(str.ljust, line, widths), line[-1]]) + "\n" for line in lines)


def _cells(recipe: "recipes.Recipe") -> tuple[str, str, str]:
    if recipe.seeds:
        assert recipe.seconds
        return _metric(recipe), duration(recipe.seconds), recipe.summary
    machine = re.split("[,;]", recipe.hardware)[0]
    return _metric(recipe), _time(recipe, machine), f"{recipe.summary}; not run here"


def _metric(recipe: "recipes.Recipe") -> str:
    return metric_text(tasks.load(recipe.config.task).metric, recipe.expected)


def _time(recipe: "recipes.Recipe", machine: str) -> str:
    if recipe.seconds is None:
        return f"needs {machine}"
    return f"{duration(recipe.seconds)} on {machine}"
