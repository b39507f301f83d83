"""Pooling over time that can be continued: what was read is summed up in a small state."""

import torch
from torch import Tensor, nn

from linrnn.errors import check_in
from linrnn.nn.lengths import check_lengths, steps_before
from linrnn.typing import Lengths

POOLS = ("mean", "last", "none")


class Pool(nn.Module):
    """Reduce (B, T, D) to (B, D), or pass it on: ``mean``, ``last`` or ``none``.

    The state of ``mean`` is the sum and the number of the steps since the last reset, so a
    sequence pooled in pieces gives the mean of the whole. ``none`` and ``last`` carry the same
    tree with unused numbers dropped: an empty dict, and the last value.

    Example:
        >>> y, state = Pool("mean")(torch.ones(2, 3, 4))
        >>> y.shape
        torch.Size([2, 4])
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        check_in("pool", "kind", kind, POOLS)
        self.kind = kind

    def init_state(
        self,
        batch_size: int,
        width: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Nothing read yet."""
        if self.kind == "none":
            return {}
        total = torch.zeros(batch_size, width, device=device, dtype=dtype)
        if self.kind == "last":
            return {"last": total}
        return {"sum": total, "count": total.new_zeros(batch_size, 1)}

    def forward(
        self,
        x: Tensor,
        state: dict[str, Tensor] | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Pool ``x`` (B, T, D) after what ``state`` holds.

        Args:
            x: (batch, time, width).
            state: from `init_state` or an earlier call.
            reset: boolean (batch, time); only what follows the last reset counts.
            lengths: (batch,) valid steps of each row; the rest is padding.
        """
        batch, time, width = x.shape
        if self.kind == "none":
            return x, {}
        if state is None:
            state = self.init_state(batch, width, device=x.device, dtype=x.dtype)
        valid = (
            x.new_ones(batch, time, dtype=torch.bool)
            if lengths is None
            else steps_before(check_lengths("Pool", lengths, x), time, x.device)
        )
        if self.kind == "last":
            return self._last(x, state, valid)
        fresh = torch.zeros_like(valid[:, 0]) if time else valid.new_zeros(batch)
        if reset is not None and time:
            active = reset & valid
            resets_ahead = active.flip(1).cumsum(1).flip(1) - active.long()  # resets still to come
            valid = valid & (resets_ahead == 0)
            fresh = active.any(1)
        # choices and not products, for what does not count may be NaN
        previous = {name: torch.where(fresh[:, None], 0, h) for name, h in state.items()}
        total = previous["sum"] + torch.where(valid[..., None], x, 0).sum(1)
        count = previous["count"] + valid.sum(1, keepdim=True)
        return total / count.clamp_min(1), {"sum": total, "count": count}

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Pool one more step (B, D): what `forward` gives for a sequence of one."""
        if self.kind == "none":
            return x_t, {}
        if self.kind == "last":
            return x_t, {"last": x_t}
        total, count = state["sum"] + x_t, state["count"] + 1
        return total / count, {"sum": total, "count": count}

    def _last(
        self, x: Tensor, state: dict[str, Tensor], valid: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if x.shape[1] == 0:
            return state["last"], state
        count = valid.sum(1)
        index = (count - 1).clamp_min(0)
        last = x[torch.arange(x.shape[0], device=x.device), index]
        last = torch.where((count > 0)[:, None], last, state["last"])
        return last, {"last": last}
