"""Steps that go to some of several memories, side by side as each memory sees them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.modes import may_look


class Route:
    """Rows of those steps that each memory is sent, before those that it is not.

    So what a memory is sent later moves no row, and as many rows are enough as the memory with most
    is sent.

    Args:
        sent: boolean (B, memories, T).
        reset: boolean (B, T) or None; True begins anew, in all memories, before that step.
    """

    reset: Tensor | None = None
    """Where a memory begins anew among its rows, (B memories, rows)."""

    def __init__(self, sent: Tensor, reset: Tensor | None) -> None:
        self.sent = sent
        self.single = sent.shape[-1] == 1 and reset is None
        """Whether it is one step, which has no order."""
        self.begun: Tensor | None = None
        if self.single:
            return
        count = sent.sum(-1, keepdim=True)
        self.cut = sent.numel() > 0 and may_look(sent)
        """Whether there are fewer rows than steps; a graph must hold for any number of them."""
        rows = max(1, int(count.max())) if self.cut else sent.shape[-1]
        # a stable order leaves steps in theirs
        order = (~sent).to(torch.uint8).argsort(dim=-1, stable=True)
        self.place = order.argsort(dim=-1).clamp(max=rows - 1)  # of each step
        self.order = order[..., :rows]
        self.full = torch.arange(rows, device=sent.device) < count
        """Which rows hold a step, (B, memories, rows)."""
        if reset is not None:
            begun = reset.long().cumsum(-1)[:, None]  # resets up to each step
            self.total = begun[..., -1]
            self.begun = (begun * sent).gather(-1, self.order)
            self.reset = (self.begun > F.pad(self.begun, (1, 0))[..., :-1]).flatten(0, 1)

    def gather(self, z: Tensor) -> Tensor:
        """Rows (B memories, rows, ...) of steps (B, memories, T, ...), zeros behind the last."""
        if self.single:
            return torch.where(self.sent[..., None], z, 0).flatten(0, 1)
        order = self.order[..., None].expand(*self.order.shape, z.shape[3])
        if self.cut:
            return torch.where(self.full[..., None], z.gather(2, order), 0).flatten(0, 1)
        # a compiler lays the gradient of what was expanded out in another way than it is
        return torch.where(self.sent[..., None], z, 0).gather(2, order).flatten(0, 1)

    def scatter(self, rows: Tensor) -> Tensor:
        """The steps (B, memories, T, ...) of rows, zeros where a memory was not sent any."""
        rows = rows.unflatten(0, self.sent.shape[:2])
        steps = rows
        if not self.single:
            place = self.place[..., None].expand(*self.place.shape, rows.shape[3])
            steps = rows.gather(2, place)
        return torch.where(self.sent[..., None], steps, 0)

    def last(self, memory: Tensor) -> Tensor:
        """A memory (B memories, ...) after all rows as (B, memories, ...) after all steps."""
        memory = memory.unflatten(0, self.sent.shape[:2])
        if self.begun is None:
            return memory
        ended = self.begun.amax(-1) < self.total  # after the last step that it was sent
        return memory.masked_fill(ended.view(*ended.shape, *[1] * (memory.ndim - 2)), 0)

    def last_rows(self, rows: Tensor, past: Tensor) -> Tensor:
        """The last that were sent, as many as ``past`` (B, memories, past, ...) holds.

        They are zeros where they belong to a sequence that has ended.
        """
        joined = torch.cat([past, rows.unflatten(0, self.sent.shape[:2])], 2)
        if self.single:
            return torch.where(self.sent[..., None], joined[:, :, 1:], past)
        at = self.sent.sum(-1, keepdim=True) + torch.arange(past.shape[2], device=rows.device)
        last = joined.gather(2, at[..., None].expand(*at.shape, joined.shape[-1]))
        if self.begun is None:
            return last
        begun = F.pad(self.begun, (past.shape[2], 0)).gather(-1, at)
        return last.masked_fill((begun < self.total[..., None])[..., None], 0)
