"""The state of a recurrent model in the form of cache that transformers hands around."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from linrnn import state as states
from linrnn.errors import ArgumentError
from linrnn.typing import State


class LinrnnCache(Cache):  # type: ignore[misc]
    """The state after what was read, one row a sequence; empty at first.

    Unlike a cache of keys and values it does not grow, unless the mixer is attention without a
    window. A call of the model replaces what it holds; ``copy.deepcopy`` keeps a copy.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.state: State | None = None
        self.begun: Tensor | None = None
        """Boolean (batch,): whether a row has read anything but padding."""
        self.length = 0
        """Columns read, those of padding included."""
        self.options: dict[str, Any] | None = None
        """Of the model whose state this is."""

    def __repr__(self) -> str:
        return f"LinrnnCache(length={self.length}, batch_size={self.batch_size})"

    def __len__(self) -> int:
        return 0 if self.state is None else 1  # so that `if cache:` asks whether it holds a state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns read so far."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no end."""
        return -1

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether anything was read."""
        return self.state is not None

    @property
    def batch_size(self) -> int:
        """Rows, or -1 before the first call."""
        return -1 if self.begun is None else len(self.begun)

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        """No: a state does not know what it was before."""
        return False

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.begun, self.length = None, None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row ``i`` a copy of row ``beam_idx[i]``."""
        if self.state is not None and self.begun is not None:
            self.state = states.select(self.state, beam_idx)
            self.begun = self.begun[beam_idx.to(self.begun.device)]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows: row numbers, or a boolean for each row."""
        rows = indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices
        self.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row ``repeats`` times, its copies side by side."""
        if self.begun is not None:
            rows = torch.arange(len(self.begun), device=self.begun.device)
            self.reorder_cache(rows.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Refused, but for 0 tokens."""
        if tokens_to_remove:
            raise ArgumentError(
                f"LinrnnCache.crop: tokens_to_remove must be 0, got {tokens_to_remove}: a state "
                "does not know what it was before. Keep a copy, with copy.deepcopy(cache)."
            )
