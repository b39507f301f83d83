"""One point of a sweep, and what came out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linrnn.compare._runs import Row


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of a sweep."""

    values: Mapping[str, Any]
    """Value of each swept option, by its dotted name."""
    row: Row
    """The results; the label names the values."""
