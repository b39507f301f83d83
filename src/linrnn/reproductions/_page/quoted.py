"""Numbers as they are printed."""

import math
from collections.abc import Mapping
from typing import NamedTuple


class Quoted(NamedTuple):
    """A printed number, in the unit it is printed in, and the error beside it, if there is one.

    Example:
        >>> Quoted(72.2, 0.2).text, Quoted(18.3).text, FAILS.text
        ('72.2 ± 0.2', '18.3', '✗')
    """

    value: float
    error: float = math.nan
    taken: float = math.nan
    """Error assumed where none is printed; the page says why."""

    @property
    def text(self) -> str:
        """The value as a cell of a table, with the published digits."""
        if math.isnan(self.value):
            return "✗"
        return f"{self.value}" + ("" if math.isnan(self.error) else f" ± {self.error}")


def of_share(per_cent: float, n: int) -> float:
    """Standard error, in points, of a share of ``n`` examples that were drawn alike.

    Example:
        >>> round(of_share(60.0, 2_000), 2)
        1.1
    """
    return math.sqrt(per_cent * (100 - per_cent) / n)


FAILS = Quoted(math.nan)
"""Printed as no better than guessing."""

Printed = Mapping[str, Quoted]
"""The printed number of each row of a column."""
