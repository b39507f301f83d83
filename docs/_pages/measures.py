"""Measurements of every mixer at one width: results/mixers."""

import csv
from functools import cache

from _pages.results import FOLDER
from linrnn import mixers
from linrnn.mixers import Mixer
from linrnn.state_spec import Part

WIDTH = 64
"""The width at which parameters and states are counted, as in docs/measure_costs.py."""


@cache
def laws() -> dict[str, dict[str, dict[str, str]]]:
    """The row of every law, by mixer and law."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in _table("laws.csv"):
        found.setdefault(row["mixer"], {})[row["law"]] = row
    return found


@cache
def costs() -> dict[str, dict[str, str]]:
    """The row of costs, by mixer."""
    return {row["mixer"]: row for row in _table("costs.csv")}


def _table(name: str) -> list[dict[str, str]]:
    with (FOLDER / "mixers" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def built(name: str) -> Mixer:
    """A layer of that width with its default options, without memory."""
    return mixers.build(name, WIDTH, device="meta")


def parameters(name: str) -> int:
    """Numbers that are trained; a complex one is two."""
    return sum(p.numel() * (1 + p.is_complex()) for p in built(name).parameters())


def state_numbers(name: str) -> int | None:
    """Numbers of the state of one sequence, None where it grows with what was read."""
    if "constant_memory" in built(name).declared:
        return None
    return _numbers(built(name).state_spec())


def _numbers(spec: object) -> int:
    if isinstance(spec, Part):
        count = 2 if spec.kind == "complex" else 1
        for size in spec.axes.values():
            count *= size or 0
        return count
    inside = spec.values() if isinstance(spec, dict) else spec
    return sum(map(_numbers, inside))


def tokens_a_second(name: str) -> int | None:
    """Tokens per second of training on one core, to two digits, or None where not measured."""
    if name not in costs():
        return None
    return int(float(f"{1e6 / float(costs()[name]['us_per_token']):.2g}"))
