"""The state of a recurrent model in the form of cache that transformers hands around."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import Cache

from linrnn import state as states
from linrnn.errors import ArgumentError
from linrnn.typing import State


class Piece(NamedTuple):
    """Columns that were read."""

    x: Tensor
    """Embeddings (batch, time, d_model)."""
    valid: Tensor | None = None
    """Boolean (batch, time): what is no padding; None for all."""
    reset: Tensor | None = None
    """Boolean (batch, time): before which steps a row began anew; None for none."""

    def first(self, columns: int) -> "Piece":
        """The first ``columns`` columns."""
        masks = (self.valid, self.reset)
        return Piece(self.x[:, :columns], *(m if m is None else m[:, :columns] for m in masks))


class Snapshot(NamedTuple):
    """The contents of a cache at one time."""

    state: State | None
    begun: Tensor | None
    all_begun: bool
    length: int


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
        """Options of the model whose state this is."""
        self.all_begun = False
        """Whether every row has read something, known without waiting for a device."""
        self.pending: Piece | None = None
        """Piece that `crop` left to be read again before anything else; `length` counts it."""
        self._snapshot: Snapshot | None = None
        self._since: list[Piece] | None = None

    def advance(
        self, state: State, x: Tensor, valid: Tensor | None, reset: Tensor | None = None
    ) -> None:
        """Take the state after a `Piece` of these parts."""
        if valid is None:
            if not self.all_begun:
                self.begun, self.all_begun = x.new_ones(len(x), dtype=torch.bool), True
        elif not self.all_begun:
            read = valid.any(1)
            self.begun = read if self.begun is None else self.begun | read
            self.all_begun = bool(self.begun.all())
        self.state, self.length = state, self.length + x.shape[1]
        if self._since is not None:
            self._since.append(Piece(x, valid, reset))

    def take_pending(self) -> "Piece | None":
        """Take the columns to read again first; `advance` and `remember` follow."""
        piece, self.pending = self.pending, None
        if piece is not None:
            self.length -= piece.x.shape[1]
        return piece

    def remember(self) -> None:
        """Let `crop` come back to here, and no further."""
        self._snapshot = Snapshot(self.state, self.begun, self.all_begun, self.length)
        self._since = []

    def activate_past_recording(self) -> None:
        """From here on keep what `crop` needs: one state, and what was read since."""
        if self._since is None:
            self.remember()

    def __deepcopy__(self, memo: dict[int, Any]) -> "LinrnnCache":
        """A copy that later calls leave alone; gradients go through it to what was read."""
        for h in tree_leaves(self.__dict__):
            if isinstance(h, Tensor) and not h.is_leaf:  # PyTorch copies no others
                memo[id(h)] = h.clone()
        copied = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

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
        """Whether `activate_past_recording` was called."""
        return self._since is not None

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.begun, self.all_begun, self.length = None, None, False, 0
        self.pending = None
        if self._since is not None:
            self.remember()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row ``i`` a copy of row ``beam_idx[i]``."""
        if self.pending is not None or self._since is not None:
            raise ArgumentError(
                "LinrnnCache: rows must be chosen before activate_past_recording, got a cache that "
                "can be cropped. Keep a copy, with copy.deepcopy(cache), from before."
            )
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
        """Forget the last ``-tokens_to_remove`` columns, of those read since the last crop.

        A state cannot be taken back. So the one at the last crop is kept, with what was read since;
        what of that is left is read again by the next call of the model.

        Raises:
            ArgumentError: a positive number, columns from before the last crop, or
                `activate_past_recording` was not called; 0 columns can always be removed.
        """
        n_columns = sum(piece.x.shape[1] for piece in self._since or ())
        if not -n_columns <= tokens_to_remove <= 0:
            lowest = (
                f"-{n_columns}, what was read since the last crop,"
                if self._since is not None
                else 0
            )
            raise ArgumentError(
                f"LinrnnCache.crop: tokens_to_remove must be from {lowest} to 0, got "
                f"{tokens_to_remove}: a state does not know what it was before. Call "
                "activate_past_recording first, or keep a copy with copy.deepcopy(cache)."
            )
        if tokens_to_remove and self._since is not None and self._snapshot is not None:
            left = joined(self._since).first(n_columns + tokens_to_remove)
            self.state, self.begun, self.all_begun, self.length = self._snapshot
            self.length += left.x.shape[1]
            self.pending = left if left.x.shape[1] else None
            self._since = [left]
        if self._since is not None and self.pending is None:
            self.remember()


def joined(pieces: list[Piece]) -> Piece:
    """Pieces in one, in their order."""
    x = torch.cat([piece.x for piece in pieces], 1)
    valid = [(piece.x, piece.valid) for piece in pieces]
    reset = [(piece.x, piece.reset) for piece in pieces]
    return Piece(x, _masks(valid, otherwise=True), _masks(reset, otherwise=False))


def _masks(parts: list[tuple[Tensor, Tensor | None]], *, otherwise: bool) -> Tensor | None:
    """Masks of columns side by side, of which one that is None has one value."""
    if all(mask is None for _, mask in parts):
        return None
    full = [
        x.new_full(x.shape[:2], otherwise, dtype=torch.bool) if mask is None else mask
        for x, mask in parts
    ]
    return torch.cat(full, 1)
