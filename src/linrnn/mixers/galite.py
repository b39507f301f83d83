"""GaLiTe: linear attention with features and gates that are outer products."""

from typing import Any, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.galite import GatedFeatures, Written
from linrnn.ops import linear_scan
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class GaLiTe(GatedFeatures):
    r"""GaLiTe (once ReLiT): linear attention with gates on the rows and columns of its memory.

    Equation:
        In each head,
        psi_k = vec(relu(W_1 x) relu(W_k x)^T),  psi_q = vec(relu(W_2 x) relu(W_q x)^T)
        gamma = vec(sigmoid(W_3 x) sigmoid(W_gamma x)^T)               each in R^{eta d_head}
        v = W_v x,  beta = sigmoid(W_beta x)                           in R^d_head
        S_t = ((1 - gamma) (1 - beta)^T) * S_{t-1} + (gamma * psi_k) (beta * v)^T
        s_t = (1 - gamma) * s_{t-1} + gamma * psi_k
        y_t = W_o concat over heads of S_t^T psi_q / (s_t . psi_q + eps)
        All maps have a bias. Initially weights are orthogonal with gain sqrt(2), biases 0.

    Args:
        n_heads: heads. Default: 4, fewer if they had less than 16 of d_model channels each.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        eta: features for each channel of a head.
        decay: "factors" as above, or "product", 1 - gamma beta^T as in public code: another model,
            which needs room for a memory at every step.
        eps: added to what is divided by.

    Departures from the paper:
        The relu behind W_o, the gate in place of a residual and the norm before the layer belong
        to the block.

    Example:
        >>> y, state = GaLiTe(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 16, 5]))

    Reference:
        Pramanik et al., "AGaLiTe: Approximate Gated Linear Transformers for Online Reinforcement
        Learning", 2023, arXiv:2310.15719. Key: pramanik2023agalite.
    """

    choices = Choices(transition="diagonal", gate="input", memory="matrix", normaliser="sum")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        eta: int = 4,
        decay: Literal["factors", "product"] = "factors",
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.decay = d_model, decay
        check_in("GaLiTe", "decay", decay, ("factors", "product"))
        self._add_heads("GaLiTe", n_heads, d_head, eta, eps, device, dtype)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, with s as its last column."""
        sizes = {"d_features": self.d_features, "columns": self.d_head + 1}
        return {"memory": real(n_heads=self.n_heads, **sizes)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        w = self._written(x)
        with without_autocast(x.device):
            if self.decay == "product":
                o, memory = _product(w, state["memory"], reset)
            else:
                o, memory = outer_scan(
                    w.q, w.k, w.v, w.log_key_decay, state["memory"],
                    value_decay=w.log_value_decay, normalizer=True, reset=reset,
                )  # fmt: skip
            o = o[..., :-1] / (o[..., -1:] + self.eps)
        return self._out(o), {"memory": memory}


def _product(w: Written, S: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every number of the memory decays by itself; the last column as in the other form."""
    one = torch.ones_like(w.v[..., :1])
    gamma, beta = -w.log_key_decay.expm1(), -w.log_value_decay.expm1()
    decay = 1 - gamma[..., None] * torch.cat([beta, one], -1)[..., None, :]
    writes = w.k[..., None] * torch.cat([w.v, one], -1)[..., None, :]  # (B, T, H, K, d_head + 1)
    memories, last = linear_scan(decay, writes, S, reset=reset)
    return torch.einsum("bthkv,bthk->bthv", memories, w.q), last
