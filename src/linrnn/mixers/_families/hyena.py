"""Hyena around its long filters, whatever these are: projections, short filters, gates."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn.conv import CausalConv
from linrnn.nn.linear import Linear

ORDERINGS = ("code", "paper")

Filter = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""A long filter: ``(z, state) -> (z, state)``, of a sequence (B, T, width) or of a step."""


class GatedFilters(Mixer):
    """Such a mixer says its filters, by `long`; its state is ``{"short": .., "long": [..]}``.

    With ordering "code" a gate stands before each filter and one behind the last, which makes one
    filter less than gates; with "paper" one behind each. With heads the one filter of each reads
    all products of a key, the gate before it, and a value, and the gate behind is a query.
    """

    n_heads: int | None
    order: int
    ordering: str
    l_max: int
    filters: int
    """How many long filters there are."""
    in_proj: nn.Linear
    short: CausalConv
    out_proj: nn.Linear

    def long(
        self, state: Sequence[Any], time: int, reset: Tensor | None, dt: Tensor | None
    ) -> Sequence[Filter]:
        """The filters in the order they are applied, for a sequence of ``time`` steps.

        Args:
            state: of each, before the sequence.
            time: steps of it.
            reset: boolean (B, T), or None.
            dt: times between the steps, (B, T), or None; given only where the layer is `timed`.
        """
        raise NotImplementedError

    def _begin(
        self, order: int, ordering: str, d_short: int, n_heads: int | None, **to: Any
    ) -> None:
        """Check and keep the options, and make what is before the gates."""
        where = type(self).__name__
        self.order, self.ordering, self.d_short, self.n_heads = order, ordering, d_short, n_heads
        check_positive_int(where, order=order)
        check_in(where, "ordering", ordering, ORDERINGS)
        if ordering == "code" and order < 2:
            raise ArgumentError(
                f"{where}: order must be at least 2 for ordering='code', which has one filter "
                f"less, got {order}. Use ordering='paper'."
            )
        if n_heads is not None:
            check_positive_int(where, n_heads=n_heads)
            if self.d_model % n_heads:
                raise ArgumentError(
                    f"{where}: n_heads must divide d_model={self.d_model}, got {n_heads}."
                )
            if (order, ordering) != (2, "code"):
                raise ArgumentError(
                    f"{where}: order must be 2 and ordering 'code' with n_heads, got {order} and "
                    f"{ordering!r}. Leave n_heads out."
                )
        self.filters = order - (ordering == "code")
        self.in_proj = Linear(self.d_model, (order + 1) * self.d_model, **to)
        self.short = CausalConv((order + 1) * self.d_model, d_short, **to)

    @property
    def kernels_of_filter(self) -> int:
        """How many impulse responses each filter has: one for a head, or for a channel."""
        return self.d_model if self.n_heads is None else self.n_heads

    @property
    def pairs(self) -> int:
        """Channels of what a filter reads that have one impulse response in common."""
        return (self.d_model // self.kernels_of_filter) ** 2

    def _read(
        self,
        x: Tensor,
        state: dict[str, Any],
        reset: Tensor | None,
        dt: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        with without_autocast(x.device):
            mixed, short = self.short(self._project_in(x), state["short"], reset)
            filters = self.long(state["long"], x.shape[1], reset, dt)
            z, long = self._gated(mixed, filters, state["long"])
        return self._project_out(z), {"short": short, "long": long}

    def _gated(
        self, mixed: Tensor, filters: Sequence[Filter], state: Sequence[Any]
    ) -> tuple[Tensor, list[Any]]:
        """The recurrence of gates and filters: what goes into the last map, and the state."""
        *gates, z = mixed.split(self.d_model, -1)  # (..., d_model) each
        if self.n_heads is not None:
            q, k, v = (part.unflatten(-1, (self.n_heads, -1)) for part in (*gates, z))
            products = k[..., None] * v[..., None, :]  # (..., H, d_head, d_head)
            z, last = filters[0](products.flatten(-3), state[0])
            o = (q[..., None] * z.reshape(products.shape)).sum(-2)
            return o.flatten(-2), [last]
        gate_first, long = self.ordering == "code", []
        for n, long_filter in enumerate(filters):
            z = gates[-1 - n] * z if gate_first else z
            z, last = long_filter(z, state[n])
            z = z if gate_first else gates[n] * z
            long.append(last)
        return (gates[0] * z if gate_first else z), long

    def _project_in(self, x: Tensor) -> Tensor:
        """Gates and values, at least float32."""
        return wide(self.in_proj(x.to(self.in_proj.weight.dtype)))

    def _project_out(self, z: Tensor) -> Tensor:
        y: Tensor = self.out_proj(z.to(self.out_proj.weight.dtype))
        return y
