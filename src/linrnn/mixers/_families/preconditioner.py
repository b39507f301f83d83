"""Keys scaled by how much was written along each of their channels before.

Shared by layers of the preconditioned delta rule.
"""

from math import log
from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive
from linrnn.mixers._families.log_decay import LogDecay
from linrnn.nn import empty_parameters
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import KeepsPrecision
from linrnn.ops import linear_scan
from linrnn.state_spec import Part, real


class Preconditioner(KeepsPrecision):
    """``k * squash^(-r / (1 + |r|))``, less of a key along channels that were written much.

    Equation, in every head::

        A_t = exp(decay(x_t)) A_{t-1} + sigmoid(w x_t) k_t^2          in R^d_key
        r_t = log(A_t + eps) - m

    The powers lie between 1 / squash and squash.

    Args:
        where: the layer, in messages.
        d_model, n_heads, d_key: channels in, and heads of keys and their channels.
        squash: above 1 and at most 2, with which ``k * k * powers`` sums up to 2 at most.
        centre: where m begins, in every head.
        eps: what is added to A.
        rates: of the decay, `LogDecay`.
        factory: device and dtype of the parameters.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("m",)

    def __init__(
        self,
        where: str,
        d_model: int,
        n_heads: int,
        d_key: int,
        *,
        squash: float,
        centre: float,
        eps: float,
        rates: tuple[float, float] = (0.01, 16.0),
        **factory: Any,
    ) -> None:
        super().__init__()
        if not 1 < squash <= 2:
            raise ArgumentError(
                f"{where}: squash must be above 1 and at most 2, got {squash}. Beyond, a memory "
                "grows without bound."
            )
        check_positive(where, squash_eps=eps)
        if not abs(centre) < float("inf"):
            raise ArgumentError(f"{where}: centre must be finite, got {centre}. Take -0.2.")
        self.n_heads, self.d_key = n_heads, d_key
        self.squash, self.centre, self.eps = squash, centre, eps
        self.decay = LogDecay(where, d_model, n_heads, rates=rates, **factory)
        self.rate = Linear(d_model, n_heads, bias=False, **factory)
        self.m = empty_parameters(factory.get("device"), factory.get("dtype"))(n_heads)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.decay.reset_parameters()
        self.rate.reset_parameters()
        self.m.fill_(self.centre)

    def state_spec(self) -> Part:
        """A before the first step."""
        return real(n_heads=self.n_heads, d_key=self.d_key)

    def forward(
        self, x: Tensor, k: Tensor, A: Tensor, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Scale keys (B, T, H, K) that follow from ``x``: ``(k, A)``."""
        log_decay, rate = self.decay(x)[..., None], wide(self.rate(x)).sigmoid()[..., None]
        with without_autocast(x.device):
            squares, A = linear_scan(log_decay.exp(), rate * k.square(), A, reset=reset)
        r = (squares + self.eps).log() - wide(self.m)[:, None]
        return k * (-log(self.squash) * r / (1 + r.abs())).exp(), A
