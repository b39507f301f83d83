"""Gated linear units whose values are mixed along time: GAU and FLASH."""

from math import log
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn.kv_cache import cache_spec, check_sight
from linrnn.nn.parameters import empty_parameters
from linrnn.nn.rotary import rotate, with_relative
from linrnn.ops import accumulator_dtype
from linrnn.ops.attention import attend
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part

_INITS = ("scaled", "published")


class GatedUnit(Mixer):
    """``y_t = W_o (r_t * m_t)``; a subclass says by `_read` how m is mixed of the values."""

    family: ClassVar[str] = "attention"
    widening: ClassVar[bool] = True
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    n_maps: ClassVar[int]
    """Vectors that are made of z, those of the attention first."""

    def __init__(
        self,
        d_model: int,
        d_inner: int | None,
        d_key: int,
        n: int,
        rotary: bool,
        relative_bias: bool,
        window: int | None,
        base: float,
        init: str,
        attention: str,
        bias: bool,
        buckets: int | None,
        table: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_model, where = d_model, type(self).__name__
        check_positive_int(where, d_key=d_key, n=n)
        self.d_inner = 2 * d_model if d_inner is None else d_inner
        self.d_key, self.n = d_key, n
        self.rotary, self.relative_bias, self.init = rotary, relative_bias, init
        check_in(where, "init", init, _INITS)
        check_in(where, "attention", attention, ("relu_squared", "laplace"))
        if buckets is not None and (
            isinstance(buckets, bool) or not isinstance(buckets, int) or not 4 <= buckets <= 64
        ):
            raise ArgumentError(f"{where}: buckets must be an integer from 4 to 64, got {buckets}.")
        self.attention, self.bias, self.buckets, self.table = attention, bias, buckets, table
        if table is not None:
            check_positive_int(where, table=table)
        if None not in (table, buckets):
            raise ArgumentError(f"{where}: table must be None with buckets, got {table}.")
        check_positive_int(where, d_inner=self.d_inner)
        if d_key % 2:
            raise ArgumentError(f"{where}: d_key must be even, got {d_key}.")
        check_sight(where, window, base)
        self.window, self.base = window, base
        empty = empty_parameters(device, dtype)
        self.W_in = empty(2 * self.d_inner + d_key, d_model)  # rows of W_r, W_v, W_z
        self.gamma, self.beta = empty(self.n_maps, d_key), empty(self.n_maps, d_key)
        self.b = empty(2, d_key) if relative_bias else None
        self.W_out = empty(d_model, self.d_inner)
        self.b_in = empty(2 * self.d_inner + d_key) if bias else None
        self.b_out = empty(d_model) if bias else None
        count = buckets if table is None else table
        self.distances = None if count is None else empty(count)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.init == "published":
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.normal_(self.W_in, std=self.d_model**-0.5)
            nn.init.normal_(self.W_out, std=self.d_inner**-0.5)
            # an entry of silu(N(0, 1)) has 0.36 of the square that one of b has
            alone = 1.0 if self.relative_bias else 1 / 0.36
            nn.init.constant_(self.gamma[:2], (alone * self.n**0.75 / self.d_key) ** 0.5)
            nn.init.constant_(self.gamma[2:], (1 / 0.36 / self.d_key) ** 0.5)
            if self.b is not None:
                nn.init.normal_(self.b[0], std=(self.n**-0.25 / self.d_key) ** 0.5)
                self.b[1] = self.b[0]
        nn.init.zeros_(self.beta)
        drawn = self.init == "published" and self.table is not None
        for bias in (self.b_in, self.b_out, None if drawn else self.distances):
            if bias is not None:
                nn.init.zeros_(bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: turned keys and values, and the steps since the last reset."""
        return cache_spec(self.window, {"d_key": self.d_key}, {"d_inner": self.d_inner})

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Tensor) -> Tensor:
        """Attention of each step over itself and the ``sight`` entries before it."""
        # squares of small scores leave the range of float16, and the precision of bfloat16
        with without_autocast(q.device):
            return attend(
                self.attention,
                self._with_bias(q / self.n, 0, offset=k.shape[1] - q.shape[1]),
                self._with_bias(k, 1),
                v,
                sight,
                window=self.window,
                whole=False,
                far=self._of_distances(),
            )

    def _of_distances(self) -> Tensor | None:
        """The biases that scores get for distances from 0 on."""
        if self.distances is None:
            return None
        numbers = self.distances.to(accumulator_dtype(self.distances.dtype))
        return numbers if self.buckets is None else numbers[_buckets(self.buckets)]

    def _project_in(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Gate, values, and the turned vectors made of z, at least float32."""
        dtype = accumulator_dtype(self.W_in.dtype)
        hidden = F.silu(half_linear(x.to(self.W_in.dtype), self.W_in, self.b_in).to(dtype))
        r, v, z = hidden.split([self.d_inner, self.d_inner, self.d_key], -1)
        vectors = self.gamma.to(dtype) * z.unsqueeze(-2) + self.beta.to(dtype)
        vectors = rotate(vectors, position, self.base) if self.rotary else vectors
        return r, v, list(vectors.unbind(-2))

    def _with_bias(self, x: Tensor, which: int, *, offset: int = 0) -> Tensor:
        """The vector of the relative bias, turned, as further channels of queries or keys."""
        if self.b is None:
            return x
        return with_relative(x, self.b[which], self.base, offset)

    def _project_out(self, r: Tensor, mixed: Tensor) -> Tensor:
        return half_linear((r * mixed).to(self.W_out.dtype), self.W_out, self.b_out)


FARTHEST = 128
"""The distance from which on all share the last bucket."""


def _buckets(count: Any) -> list[int]:
    """The bucket of each distance from 0 to `FARTHEST`: one each, then of equal ratios.

    Example:
        >>> _buckets(8)[:6], _buckets(8)[-1]
        ([0, 1, 2, 3, 4, 4], 7)
    """
    exact = count // 2
    of_ratio = (count - exact) / log(FARTHEST / exact)
    return [
        d if d < exact else min(exact + int(of_ratio * log(d / exact)), count - 1)
        for d in range(FARTHEST + 1)
    ]
