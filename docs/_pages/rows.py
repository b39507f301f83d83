"""Rows of the pages of results/ that are about a mixer."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from _pages import results
from linrnn import mixers
from linrnn._catalogue import stems

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
"""What pages call a mixer otherwise than by its name or its class."""


LENGTHS = {
    "carried-state-cpu": {"chunks of 16": 16, "chunks of 128": 128},
    "cells-digits-cpu": {"permuted digits": 64},
    "cells-gaps-cpu": {"gaps": 50},
    "distillation-cpu": {"tiny Shakespeare": 256},
    "lra-state-spaces-cpu": {"ListOps": 100, "Image": 32},
    "lru-appendix-e2-cpu": {"convolution": 100},
    "lru-table-1-cpu": {"ListOps": 100, "sCIFAR": 32},
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
    "segment-recall-cpu": {"mqar, 2 pairs": 72},
    "su-comparison-cpu": {"length 128": 128, "length 512": 512},
}
"""Steps of a sequence, the longest of which they differ, by page and task; a page prints them
where they are not the published ones. A test compares them with what the entries are made of."""


class Row(NamedTuple):
    """A row of a table of a page."""

    mixer: str
    page: Path
    heading: str
    """That of the table."""
    label: str
    """The first cell."""
    cells: dict[str, str]
    """The others, by the heads of their columns."""
    tuned: str
    """What was chosen by validation, as far as the page says so in words that are known."""


@cache
def measured() -> tuple[Row, ...]:
    """Every row of a table of ours whose first cell names a mixer."""
    return tuple(row for path in results.reports() for row in _rows(path))


def scores() -> list[Row]:
    """Those that are scores of trained models, with their seeds."""
    return [row for row in measured() if score(row) and "seeds" in row.cells]


def score(row: Row) -> str:
    """The score of a row that has one, else nothing."""
    found = (v for k, v in row.cells.items() if k.startswith(("ours", "test metric")))
    return next(found, "")


def length(row: Row) -> int | None:
    """Steps of a sequence of a score, or None where nobody has said."""
    return LENGTHS.get(row.page.parent.name, {}).get(row.heading.rpartition(": test ")[0])


def _rows(path: Path) -> list[Row]:
    ours = path.read_text(encoding="utf-8").partition("\n## Ours\n")[2]
    text = ours.partition("\n## Verdicts\n")[0]
    tuned, found = _tuning(text), []
    for part in text.split("\n### ")[1:]:
        heading, _, body = part.partition("\n")
        if "while tuning" in heading or "what was changed" in heading:
            continue
        lines = [_cells(line) for line in body.splitlines() if line.startswith("|")]
        for line in lines[2:]:
            name = mixer_of(line[0])
            if name and lines[0][1] != "claim":
                cells = dict(zip(lines[0][1:], line[1:], strict=False))
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


def _tuning(text: str) -> str:
    if "while tuning" in text:
        return "learning rate of each"
    if "ours are not tuned" in text:
        return "nothing"
    return "see the page"
