"""The assignment of the steps of a call to the segments of their rows."""

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import gathered

Rows: TypeAlias = bool | Tensor
"""Which rows of a batch: all, none, or a mask (B,)."""


def rows_of(mask: Tensor) -> list[Rows]:
    """The `Rows` of each column of a mask (B, count)."""
    every, any_row = mask.all(0).tolist(), mask.any(0).tolist()
    return [a or (s and mask[:, i]) for i, (a, s) in enumerate(zip(every, any_row, strict=True))]


class Plan:
    """The assignment of the steps of a call to the segments of their rows.

    Segments are cut out where all rows begin them together; elsewhere they are gathered.
    """

    def __init__(self, position: Tensor, n: int) -> None:
        (rows, time), self.n = position.shape, n
        place = position % n
        number = (place == 0).cumsum(1)
        number = number - number.min()  # of the segments of the call, those begun before it first
        self.count = int(number.max()) + 1
        step = torch.arange(time, device=position.device)
        table = position.new_zeros(rows, self.count)
        self.begin = table.scatter(1, number, n - 1 + step - place)  # among begun and new entries
        self.length = table.scatter_reduce(1, number, place + 1, "amax")
        self.number = table.scatter(1, number, position // n)
        self.fresh = table.scatter_reduce(1, number, (position == 0).long(), "amax") > 0
        self.where = number * n + place
        self.fresh_rows, self.full_rows = rows_of(self.fresh), rows_of(self.length == n)
        self.read_rows = rows_of(self.length > 0)
        self.together = bool(((number == number[:1]) & (place == place[:1])).all())
        self.left: int | Tensor = int(place[0, -1]) if self.together else place[:, -1]
        """The place of the last step."""
        self._ages: dict[tuple[int, int], Tensor] = {}
        if self.together:
            begin, length = self.begin[0].tolist(), self.length[0].tolist()
            self.begun = n - 1 - min(begin[0], n - 1)  # entries that the first has from before
            self.sizes = [length[0] - self.begun, *length[1:]]

    def entries(self, begun: Tensor, new: Tensor) -> Any:
        """Entries, for `entries_of`."""
        if not self.together:
            return torch.cat([begun, new], 1)  # (B, n - 1 + T, ...)
        parts = list(new.split(self.sizes, 1))  # (B, up to n, ...) each
        if self.begun:
            # (B, up to n, ...)
            parts[0] = torch.cat([begun[:, begun.shape[1] - self.begun :], parts[0]], 1)
        return parts

    def queries(self, x: Tensor) -> Any:
        """Queries, for `queries_of`."""
        # (B, whole, ...), (B, remaining, ...)
        return x.split(self.sizes, 1) if self.together else x

    def entries_of(self, parts: Any, i: int) -> Tensor:
        """Those of a segment."""
        if self.together:
            return parts[i]  # type: ignore[no-any-return]
        return self._gathered(parts, self.begin[:, i])

    def queries_of(self, parts: Any, i: int) -> Tensor:
        """Those of a segment; where gathered, some that nobody asks for."""
        if self.together:
            return parts[i]  # type: ignore[no-any-return]
        return self._gathered(parts, self.begin[:, i] - self.n + 1)

    def _gathered(self, x: Tensor, begin: Tensor) -> Tensor:
        place = begin[:, None] + torch.arange(self.n, device=begin.device)
        return gathered(x, place.clamp(0, x.shape[1] - 1))

    def outputs(self, ys: list[Tensor]) -> Tensor:
        """The outputs of all segments as those of the steps of the call."""
        y = torch.cat(ys, 1)  # (B, T or count * n, ...)
        return y if self.together else gathered(y, self.where)

    def age(self, queries: int, entries: int, device: torch.device) -> Tensor:
        """How far each query, the last of the entries, is behind each entry; -1 if before it."""
        ages = self._ages.get((queries, entries))
        if ages is None:
            step = torch.arange(entries, device=device)
            ages = (step[entries - queries :, None] - step)[None].clamp(min=-1)
            self._ages[queries, entries] = ages
        return ages

    def whole(self, begun: Tensor | None, new: Tensor) -> Tensor:
        """Segments as rows (B * count, n, ...), of entries, or of queries if nothing is begun."""
        if self._even():
            lacking = self.count * self.n - new.shape[1]
            # (B, n T, ...)
            new = F.pad(new, (0, 0) * (new.ndim - 2) + (0, lacking)) if lacking else new
            # (B * count, n, ...)
            rows: Tensor = new.unflatten(1, (self.count, self.n)).flatten(0, 1)
            return rows
        place = self.begin[..., None] + torch.arange(self.n, device=new.device)
        if begun is None:
            x, place = new, place - (self.n - 1)
        else:
            x = torch.cat([begun, new], 1)  # (B, n - 1 + T, ...)
        segments = gathered(x, place.clamp(0, x.shape[1] - 1).flatten(1))  # (B, count * n, ...)
        return segments.view(-1, self.n, *x.shape[2:])  # (B * count, n, ...)

    def taken(self, y: Tensor) -> Tensor:
        """The outputs of segments in a row, as those of the steps of the call."""
        return y[:, : self.where.shape[1]] if self._even() else gathered(y, self.where)

    def _even(self) -> bool:
        """Whether all segments but the last are whole, and none was begun before."""
        return self.together and not self.begun and all(s == self.n for s in self.sizes[:-1])
