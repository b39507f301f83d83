"""Rows of the pages of results/ that are about a mixer."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from _pages import measures, results
from linrnn import mixers
from linrnn._options.catalogue import stems

ALIASES = {
    "delta": "delta_net",
    "delta and decay": "gated_delta_net",
    "decay by channel": "gla",
    "decay by head, fixed": "retnet",
    "plain, normalised": "linear_attention",
    "RWKV": "rwkv4",
    "SA": "attention",
    "Transformer": "attention",
    "S4, no gate": "s4d",
    "ReLU": "relu_rnn",
    "tanh": "tanh_rnn",
    "Tanh RNN": "tanh_rnn",
    "linear": "linear_rnn",
    "Mamba-2": "mamba2",
}
"""Names on pages that are neither the mixer's name nor its class."""


LENGTHS = {
    "carried-state-cpu": {"chunks of 16": 16, "chunks of 128": 128},
    "cells-digits-cpu": {"permuted digits": 64},
    "cells-gaps-cpu": {"gaps": 50},
    "distillation-cpu": {"tiny Shakespeare": 256},
    "lra-state-spaces-cpu": {"ListOps": 100, "Image": 32},
    "lru-appendix-e2-cpu": {"convolution": 100},
    "lru-table-1-cpu": {"ListOps": 100, "sCIFAR": 32},
    "lru-table-1-rates": {"ListOps": 100},
    "mackey-glass-cpu": {"mackey-glass": 500},
    "memory-recall-cpu": {
        "mqar, 8 pairs": 64,
        "mqar, 32 pairs": 128,
        "associative recall, 32 keys": 130,
    },
    "memory-shakespeare-cpu": {"tiny Shakespeare": 256},
    "minrnn-shakespeare-cpu": {"tiny Shakespeare": 256},
    "minrnn-table-1-cpu": {"selective copying": 288},
    "minrnn-table-2-cpu": {"selective copying": 272},
    "sashimi-sound-cpu": {"spoken digits": 2048},
    "segment-recall-cpu": {"mqar, 2 pairs": 72},
    "segment-shakespeare-cpu": {"tiny Shakespeare": 256},
    "su-comparison-cpu": {"length 128": 128, "length 512": 512},
}
"""Steps of a sequence, the longest of which they differ, by page and task; a page prints them
where they are not the published ones. A test compares them with what the entries are made of."""


_ONE_RATE = "nothing: one rate for all"
_OURS = "nothing: a rate of ours for each"
_MINGRU = "nothing: rate of minGRU's recipe for all"

TUNED: dict[str, str | dict[str, str]] = {
    "cells-digits-cpu": {
        "LEM": "nothing: published rate of psMNIST",
        "coRNN": "step, damping: best of 4 on validation",
        "LSTM": _OURS,
    },
    "lru-table-1-cpu": _ONE_RATE,
    "minrnn-shakespeare-cpu": _MINGRU,
    "minrnn-table-1-cpu": _MINGRU,
    "minrnn-table-2-cpu": _MINGRU,
}
"""Choices for each row, by page and, where they differ, label: for pages that print neither
what was tried nor a row for each rate, which is read from them."""

_TRIED = " while tuning"
_UNTUNED = "nothing is tuned for any of them."
_ONE_TEXT = "validation and test in one"
"""Pages whose rates and weights are chosen on the text that is scored."""
_EACH_RATE = re.compile(r", learning rate (\S+)$")


class Row(NamedTuple):
    """A row of a table of a page."""

    mixer: str
    page: Path
    heading: str
    """The heading of the table."""
    label: str
    """The first cell."""
    cells: dict[str, str]
    """The others, by the heads of their columns."""
    tuned: str
    """Tuned options and how they were chosen; empty where that is not recorded."""


@cache
def measured() -> tuple[Row, ...]:
    """Every row of a table of ours whose first cell names a mixer."""
    return tuple(row for path in results.reports() for row in _rows(path))


def scores() -> list[Row]:
    """Those that are scores of trained models, with their seeds.

    Of a page that has a row for each learning rate, a system has that of the best one.
    """
    systems: dict[tuple[Path, str, str], list[Row]] = {}
    for row in measured():
        if score(row) and "seeds" in row.cells:
            place = row.page, row.heading, _EACH_RATE.sub("", row.label)
            systems.setdefault(place, []).append(row)
    return [group[0] if len(group) == 1 else _best(group) for group in systems.values()]


def score(row: Row) -> str:
    """The score of a row that has one, else nothing."""
    found = (v for k, v in row.cells.items() if k.startswith(("ours", "test metric")))
    return next(found, "")


def number(row: Row) -> float:
    """The score without its error; a row without one has none."""
    return float(score(row).partition(" ")[0])


def task(row: Row) -> str:
    """The task of a score, without its metric."""
    return row.heading.rpartition(": test ")[0]


def state(row: Row) -> str:
    """Floats of the state that a system of its page goes on with: printed there, or "grows".

    Empty where the page prints none, for that of a layer of another width says nothing of it.
    """
    beside = (r.cells for r in measured() if (r.page, r.label) == (row.page, row.label))
    printed = (cells[_FLOATS] for cells in beside if _FLOATS in cells)
    return next(printed, "grows" if measures.state_numbers(row.mixer) is None else "")


_FLOATS = "floats of state"


def length(row: Row) -> int | None:
    """Steps of a sequence of a score, or None where nobody has said."""
    return LENGTHS.get(row.page.parent.name, {}).get(task(row))


def _rows(path: Path) -> list[Row]:
    ours = path.read_text(encoding="utf-8").partition("\n## Ours\n")[2]
    text = ours.partition("\n## Verdicts\n")[0]
    found = []
    for part in text.split("\n### ")[1:]:
        heading, _, body = part.partition("\n")
        if _TRIED in heading or "what was changed" in heading:
            continue
        lines = [_cells(line) for line in body.splitlines() if line.startswith("|")]
        for line in lines[2:]:
            name = mixer_of(line[0])
            if name and lines[0][1] != "claim":
                cells = dict(zip(lines[0][1:], line[1:], strict=False))
                tuned = _tuned(path.parent.name, text, heading, line[0])
                found.append(Row(name, path, heading, line[0], cells, tuned))
    return found


def mixer_of(label: str) -> str | None:
    """The mixer that a first cell names, before any comma, or None."""
    if label in ALIASES:
        return ALIASES[label]
    first = label.partition(",")[0].strip()
    return ALIASES.get(first) or _by_plain_name().get(_plain(first))


@cache
def _by_plain_name() -> dict[str, str]:
    names = stems(mixers.__name__)
    return {_plain(form): n for n in names for form in (n, mixers.load(n).__name__)}


def _plain(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _best(tried: list[Row]) -> Row:
    """The row of the rate with the best score: of those no run failed at, if there are any."""
    whole = [row for row in tried if "failed" not in row.cells["seeds"]] or tried
    take = max if "accuracy" in whole[0].heading else min
    return take(whole, key=number)._replace(tuned=f"rate: best of {len(tried)} by this score")


def _tuned(page: str, text: str, heading: str, label: str) -> str:
    """In words: as a page itself says, by a table of what was tried or a note, or as declared."""
    tried = _rates(text, heading.rpartition(": ")[0])
    if tried:
        return f"rate: best of {tried} on {_chosen_on(text)}"
    if _UNTUNED in text:
        return _ONE_RATE if "\n- learning rate: " in text else _OURS
    declared = TUNED.get(page, "")
    return declared if isinstance(declared, str) else declared.get(label, "")


def _chosen_on(text: str) -> str:
    return "the test's text" if _ONE_TEXT in text else "validation"


def _rates(text: str, task: str) -> int:
    """How many learning rates a page tried for each row of a task, 0 where it does not say."""
    for part in text.split(f"\n### {task}: ")[1:]:
        heading, _, body = part.partition("\n")
        if heading.endswith(_TRIED):
            head = _cells(body.strip().partition("\n")[0])
            return sum(cell.startswith(("rate ", "lr ")) for cell in head)
    return 0
