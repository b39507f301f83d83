"""Attention over a cache of earlier steps, shared by the mixers that keep one.

A cache is a state ``{"k": (B, S, ...), "v": (B, S, ...), "position": (B,)}``: the keys and values
of the last S steps, oldest first, and how many steps of the current sequence have been read. Of
the entries at most the last ``position`` can be seen; the others are zero. Without a window S grows
with every step; with one it is always ``window - 1``.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, ShapeError, check_positive_int
from linrnn.mixers._base import Mixer
from linrnn.mixers._reset import check_reset
from linrnn.typing import ResetMask, Sequence, State, Token


class CachedMixer(Mixer):
    """A mixer whose state is a cache; a subclass says what an entry is and how it is read.

    A subclass sets ``window`` and ``base`` through `_set_sight`, and implements `_entry_shapes`
    and `_read`.
    """

    family: ClassVar[str] = "attention"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = {
        "constant_memory": "without a window every key and value is kept"
    }
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    @abstractmethod
    def _entry_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape of a step's key and of its value."""

    @abstractmethod
    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Read (B, T, d_model), T at least 1."""

    def _set_sight(self, window: int | None, base: float) -> None:
        """Keep ``window`` and ``base`` after a check; a window bounds cost and state.

        Raises:
            ArgumentError: a window below 1, or a base that is not positive and finite.
        """
        where = type(self).__name__
        if not 0 < base < float("inf"):
            raise ArgumentError(f"{where}: base must be positive and finite, got {base}.")
        if window is not None:
            check_positive_int(where, window=window)
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        self.window, self.base = window, base

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """No entries, or ``window - 1`` that nothing sees."""
        entries = 0 if self.window is None else self.window - 1
        k, v = (
            self._zeros(batch_size, entries, *shape, device=device, dtype=dtype)
            for shape in self._entry_shapes()
        )
        return {"k": k, "v": v, "position": k.new_zeros(batch_size, dtype=torch.long)}

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        where = f"{type(self).__name__}.forward"
        self._check_input(x, time=True)
        check_reset(where, reset, x)
        start = self._start(state, x)
        _check_cache(where, start)
        return (x, start) if x.shape[1] == 0 else self._read(x, start, reset)

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step: see `Mixer.step`. Its time grows with the cache."""
        self._check_input(x_t, time=False)
        start = self._start(state, x_t)
        _check_cache(f"{type(self).__name__}.step", start)
        y, last = self._read(x_t[:, None], start, None)
        return y[:, 0], last


def _check_cache(where: str, state: Any) -> None:
    """Raise unless keys and values are of the same steps."""
    lengths = state["k"].shape[1], state["v"].shape[1]
    if lengths[0] != lengths[1]:
        raise ShapeError(
            f"{where}: state['k'] and state['v'] must hold the same number of steps, "
            f"got {lengths[0]} and {lengths[1]}. Pass what this layer returned, or None."
        )
