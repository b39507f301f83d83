"""Decays that the input chooses, as logarithms: one of a head, or one of each channel of its keys.

Shared by layers of the delta rule.
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import spread
from linrnn.errors import ArgumentError, check_in
from linrnn.nn import LowRank, bounded_exp, empty_parameters, softplus_steps
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import KeepsPrecision
from linrnn.ops.cell.cell_scan.row_function import RowFunction, row_functions

Steps = Literal["log-uniform", "one", "zero"]


class LogDecay(KeepsPrecision):
    """``-exp(A_log) softplus(W x + dt_bias)``: logarithms of the decays of every head.

    Args:
        where: the layer, in messages.
        d_model, n_heads: channels in, and heads.
        d_key: channels of a head, each with its own decay; None for one decay a head.
        rank: width of a bottleneck that ``W`` is, `LowRank`; None for a whole matrix.
        lower_bound: of ``lower_bound sigmoid(exp(A_log) (W x + dt_bias))``, which is computed
            instead; below 0. None for the formula above.
        rates: exp(A_log) begins uniform between these; with a lower bound as 1.
        steps: where dt_bias begins: "log-uniform" for softplus(dt_bias) on [0.001, 0.1], "one" or
            "zero".
        copies: of ``W``, with one A_log and dt_bias; decays have an axis of them before the heads.
        factory: device and dtype of the parameters.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("A_log", "dt_bias")

    def __init__(
        self,
        where: str,
        d_model: int,
        n_heads: int,
        d_key: int | None = None,
        *,
        rank: int | None = None,
        lower_bound: float | None = None,
        rates: tuple[float, float] = (0.01, 16.0),
        steps: Steps = "log-uniform",
        copies: int | None = None,
        **factory: Any,
    ) -> None:
        super().__init__()
        check_in(where, "dt_start", steps, ("log-uniform", "one", "zero"))
        if lower_bound is not None and not float("-inf") < lower_bound < 0:
            raise ArgumentError(
                f"{where}: lower_bound must be below 0 and finite, or None, got {lower_bound}."
            )
        self.n_heads, self.d_key, self.lower_bound = n_heads, d_key, lower_bound
        self.rates, self.steps, self.copies = rates, steps, copies
        width = n_heads if d_key is None else n_heads * d_key
        channels = width if copies is None else copies * width
        self.proj: nn.Linear | LowRank = (
            Linear(d_model, channels, bias=False, **factory)
            if rank is None
            else LowRank(d_model, rank, channels, bias=False, **factory)
        )
        empty = empty_parameters(factory.get("device"), factory.get("dtype"))
        self.A_log, self.dt_bias = empty(n_heads), empty(width)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.proj.reset_parameters()
        if self.lower_bound is None:
            rates = torch.empty(self.n_heads, dtype=torch.float64).uniform_(*self.rates)
            self.A_log.copy_(rates.log())
        else:
            self.A_log.zero_()
        if self.steps == "log-uniform":
            self.dt_bias.copy_(softplus_steps(len(self.dt_bias), 1e-3, 0.1))
        else:
            self.dt_bias.fill_(1 if self.steps == "one" else 0)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, heads), or with d_key behind, in at least float32."""
        f = self.proj(x)
        if self.copies is not None:
            f = f.unflatten(-1, (self.copies, -1))  # (B, T, H, copies)
        width = self.d_key or 1
        function = _decays(width, self.lower_bound)
        sizes = {"heads": self.n_heads, "width": width}
        (g,) = function(f, self.dt_bias, self.A_log, **sizes)
        # (B, T, channels) or (B, T, H, d_key)
        return g if self.d_key is None else g.unflatten(-1, (self.n_heads, width))


@row_functions
def _decays(width: int, lower_bound: float | None) -> RowFunction:
    """`LogDecay` of what is projected, of heads of that width."""

    def decays(f: Any, dt_bias: Any, A_log: Any) -> tuple[Any]:
        f, rate = f + dt_bias, spread(bounded_exp(A_log), width)
        return (_bounded(rate, f, lower_bound),)

    def by_head(f: Tensor, dt_bias: Tensor, A_log: Tensor) -> tuple[Tensor]:
        f, rate = (f + dt_bias).unflatten(-1, (-1, width)), bounded_exp(A_log)[:, None]
        return (_bounded(rate, f, lower_bound).flatten(-2),)

    names: Any = {"rows": "f", "channels": "dt_bias A_log", "numbers": "A_log"}
    return RowFunction(decays, "log_decays", **names, definition=by_head if width > 1 else None)


def _bounded(rate: Any, f: Any, lower_bound: float | None) -> Any:
    if lower_bound is None:
        return -rate * F.softplus(f)
    return lower_bound * (rate * f).sigmoid()
