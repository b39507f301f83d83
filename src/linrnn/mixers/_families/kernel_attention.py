"""Attention whose weights are products of features: what the layers of that kind share."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn import Heads
from linrnn.nn.head_norm import head_norm
from linrnn.nn.linear import Linear
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, integer, real


class Features(NamedTuple):
    """Features of queries and keys, decays and further state of a memory, at least float32."""

    q: Tensor
    """(B, T, H, features)."""
    k: Tensor
    """(B, T, H, features)."""
    g: Tensor | None = None
    """Logarithms of decays (B, T, H)."""
    carried: dict[str, Tensor] = {}  # noqa: RUF012
    """Parts of the state beside the memory."""


class KernelAttention(Mixer):
    """``S_t = exp(g_t) S_{t-1} + phi(k_t) [v_t, 1]^T``, read by ``phi(q_t)`` and divided.

    An author writes an ``__init__`` that calls `_add_heads`, and `_features`; `d_features`,
    `_more_state` and `_read_out` where they differ. Features that can be drawn or fitted anew have
    a count of that, `_draws`: a memory that was written with others is begun anew.
    """

    family: ClassVar[str] = "linear-attention"
    division: str = "add"
    """How what is read is divided by the sum of weights: see `divide`."""
    eps: float

    def _add_heads(
        self,
        n_heads: int | None,
        d_key: int | None,
        d_value: int | None,
        *,
        bias: bool = True,
        sharing: bool = False,
        min_key: int = 1,
        **to: Any,
    ) -> None:
        """Maps to queries, keys and values, and from what the heads have read.

        Args:
            n_heads: None is one for each 64 channels, at least one.
            d_key, d_value: channels of a head; None is d_model / n_heads, rounded up.
            bias: of all maps.
            sharing: the queries are the keys.
            min_key: the least d_key, where that is None.
            to: device and dtype.
        """
        name, width = type(self).__name__, self.d_model
        self.n_heads = max(1, width // 64) if n_heads is None else n_heads
        check_positive_int(name, n_heads=self.n_heads)
        even = -(-width // self.n_heads)
        self.d_key = max(even, min_key) if d_key is None else d_key
        self.d_value = even if d_value is None else d_value
        check_positive_int(name, d_key=self.d_key, d_value=self.d_value)
        sizes = (self.d_key,) * (1 if sharing else 2) + (self.d_value,)
        self.heads = Heads(width, self.n_heads, sizes, bias=bias, **to)
        self.out_proj = Linear(self.n_heads * self.d_value, width, bias=bias, **to)

    def _set_division(self, division: str, eps: float, choices: tuple[str, ...] = ()) -> None:
        """Both, checked; ``choices`` are the divisions there are, if there is a choice."""
        name = type(self).__name__
        check_in(name, "division", division, choices or (division,))
        if not 0 <= eps < float("inf"):
            raise ArgumentError(f"{name}: eps must be at least 0 and finite, got {eps}.")
        self.division, self.eps = division, eps

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out_proj.reset_parameters()

    @torch.no_grad()
    def _draw_glorot(self, gain: float = 1.0) -> None:
        """Glorot-uniform maps, each vector of the heads for itself, without biases."""
        self.heads.reset_parameters(gain)
        nn.init.xavier_uniform_(self.out_proj.weight, gain)
        for linear in (self.heads.proj, self.out_proj):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return self.d_key

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, whose last column, where it is divided by, sums up keys.

        ``draw`` says of which draw of the features the rest is.
        """
        columns = self.d_value + self._normalizer
        memory = real(n_heads=self.n_heads, d_features=self.d_features, columns=columns)
        spec = {"memory": memory, **self._more_state()}
        return spec if self._draws() is None else {**spec, "draw": integer()}

    def _draws(self) -> Tensor | None:
        """An integer that is another one for other features; None where they never change."""
        return None

    def _more_state(self) -> dict[str, Part]:
        """The layout of `Features.carried`."""
        return {}

    @property
    def _normalizer(self) -> bool:
        return self.division not in ("norm", "none")

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        """Features of queries and keys (B, T, H, d_key), at least float32, outside of autocast."""
        raise NotImplementedError

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        draw = self._draws()
        if draw is not None:
            state = self._of_draw(state, draw)
        q, *keys, v = (wide(z) for z in self.heads(x))  # (B, T, H, d_key or d_value)
        with without_autocast(x.device):
            features = self._features(q, keys[0] if keys else q, x, state, reset)
            o, memory = self._attend(features, v, state, reset)
            o = self._read_out(o)
        y = self.out_proj(o.flatten(2).to(self.out_proj.weight.dtype))  # (B, T, d_model)
        last = {**features.carried, **memory}
        return y, last if draw is None else {**last, "draw": state["draw"]}

    def _of_draw(self, state: Any, draw: Tensor) -> dict[str, Tensor]:
        """The state in rows that were written with the features of this draw; others are empty."""
        spec, valid = self.state_spec(), state["draw"] == draw
        now = torch.zeros_like(state["draw"]) + draw
        return {
            name: torch.where(valid.view(-1, *[1] * len(part.axes)), state[name], part.start)
            for name, part in spec.items()
            if name != "draw"
        } | {"draw": now}

    def _attend(
        self, features: Features, v: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Numbers read from the memory, (B, T, H, columns), and the state that holds it."""
        q, k, g, _ = features
        o, memory = outer_scan(
            q, k, v, g, state["memory"], normalizer=self._normalizer, reset=reset
        )
        return o, {"memory": memory}

    def _read_out(self, o: Tensor) -> Tensor:
        """(B, T, H, d_value) of what was read."""
        return divide(o, self.division, self.eps)


def divide(o: Tensor, how: str, eps: float) -> Tensor:
    """The numbers read, divided by the sum of weights in the last channel.

    Args:
        o: (..., channels + 1), or without that sum for "norm" and "none".
        how: by the sum plus ``eps`` ("add"), the sum or ``eps`` if that is larger ("clamp"), its
            absolute value or ``eps`` ("abs"), the root of the mean square ("norm"), or not at all.
        eps: keeps away from zero.

    Example:
        >>> divide(torch.tensor([6.0, -2.0]), "abs", 1e-3)
        tensor([3.])
    """
    if how in ("norm", "none"):
        return head_norm(o, "rms" if how == "norm" else "none", eps)
    read, total = o[..., :-1], o[..., -1:]
    if how == "add":
        return read / (total + eps)
    return read / (total.abs() if how == "abs" else total).clamp(min=eps)
