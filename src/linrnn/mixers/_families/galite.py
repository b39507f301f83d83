"""Shared by GaLiTe and its approximation: projections, features and gates."""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.nn import Heads, default_heads
from linrnn.nn.channel_mix import orthogonal
from linrnn.nn.linear import Linear


class Written(NamedTuple):
    """Queries, keys, values and decays of all steps, (B, T, H, ...), at least float32."""

    q: Tensor  # psi_q, (.., eta d_head)
    k: Tensor  # gamma psi_k
    v: Tensor  # beta v, (.., d_head)
    log_key_decay: Tensor  # log(1 - gamma)
    log_value_decay: Tensor  # log(1 - beta)


class GatedFeatures(Mixer):
    """A layer of heads whose keys, queries and gates are outer products of two projections."""

    family: ClassVar[str] = "linear-attention"

    def _add_heads(
        self,
        where: str,
        n_heads: int | None,
        d_head: int | None,
        eta: int,
        eps: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.n_heads = default_heads(self.d_model, 4) if n_heads is None else n_heads
        check_positive_int(where, n_heads=self.n_heads, eta=eta)
        check_positive(where, eps=eps)
        self.d_head = -(-self.d_model // self.n_heads) if d_head is None else d_head
        check_positive_int(where, d_head=self.d_head)
        self.eta, self.eps = eta, eps
        to: Any = {"device": device, "dtype": dtype}
        sizes = (*[self.d_head] * 5, *[eta] * 3)
        self.heads = Heads(self.d_model, self.n_heads, sizes, bias=True, **to)
        self.out_proj = Linear(self.n_heads * self.d_head, self.d_model, **to)
        self.reset_parameters()

    @property
    def d_features(self) -> int:
        """Features of a query or key."""
        return self.eta * self.d_head

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for weight in (*self.heads.rows(), self.out_proj.weight):
            orthogonal(weight, 2**0.5)
        for bias in (self.heads.proj.bias, self.out_proj.bias):
            nn.init.zeros_(bias)

    def _written(self, x: Tensor) -> Written:
        with without_autocast(x.device):
            q, k, v, beta, gamma, *p = (wide(z) for z in self.heads(x))
            psi_q, psi_k = (_outer(F.relu(a), F.relu(b)) for a, b in ((q, p[0]), (k, p[1])))
            written = _outer(gamma.sigmoid(), p[2].sigmoid())
            # 1 - s s' = (1 - s) + s (1 - s'), which stays above 0 where s s' rounds to 1
            log_keep = torch.logaddexp(
                _outer(F.logsigmoid(-gamma), torch.zeros_like(p[2]), torch.add),
                _outer(F.logsigmoid(gamma), F.logsigmoid(-p[2]), torch.add),
            )
            v, forgotten = beta.sigmoid() * v, F.logsigmoid(-beta)
            return Written(psi_q, written * psi_k, v, log_keep, forgotten)

    def _out(self, o: Tensor) -> Tensor:
        y: Tensor = self.out_proj(o.flatten(-2).to(self.out_proj.weight.dtype))
        return y


def _outer(a: Tensor, b: Tensor, times: Any = torch.mul) -> Tensor:
    """All pairs of a channel of ``b`` and one of ``a``, those of a channel of ``b`` together."""
    pairs: Tensor = times(a[..., None, :], b[..., None])
    return pairs.flatten(-2)  # (B, T, H, eta d_head)
