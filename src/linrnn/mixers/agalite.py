"""AGaLiTe: GaLiTe whose matrix is a sum of few outer products of waves."""

from math import pi
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.galite import GatedFeatures
from linrnn.ops import linear_scan
from linrnn.ops.attention import positions
from linrnn.state_spec import Part, integer, real


class AGaLiTe(GatedFeatures):
    r"""AGaLiTe (once AReLiT): GaLiTe with r pairs of key and value vectors instead of a matrix.

    Equation:
        In each head, with psi_q, psi_k, gamma, beta, v and s_t of `GaLiTe`,
        K_t[m] = (1 - gamma) * K_{t-1}[m] + cos(omega_m t) gamma * psi_k          m = 0..r-1
        V_t[m] = (1 - beta) * V_{t-1}[m] + cos(omega_m t) beta * v
        o_t = sum_m V_t[m] (K_t[m] . psi_q),   n_t = s_t . psi_q
        "paper"     y_t = W_o concat over heads of 2 / r o_t / (n_t + eps), omega_m = 2 pi m / r, t
                    from 1: GaLiTe itself over (r - 1) / 2 steps, beyond which writes r steps
                    apart, or at mirrored times, are taken for one
        "released"  y_t = W_o concat over heads of o_t / (2 r n_t + eps), omega_m from -pi to pi in
                    equal steps, t from 2
        Parameters and their start are those of GaLiTe.

    Args:
        n_heads, d_head: as in `GaLiTe`. Default: its own.
        eta, eps: as in `GaLiTe`.
        r: waves.
        waves: "paper" or "released", as above.

    Departures from the paper:
        As `GaLiTe`.

    Example:
        >>> y, state = AGaLiTe(d_model=8, n_heads=2, r=3)(torch.randn(2, 100, 8))
        >>> state["k"].shape, state["v"].shape, state["s"].shape
        (torch.Size([2, 2, 3, 16]), torch.Size([2, 2, 3, 4]), torch.Size([2, 2, 16]))

    Reference:
        Pramanik et al., "AGaLiTe: Approximate Gated Linear Transformers for Online Reinforcement
        Learning", 2023, arXiv:2310.15719. Key: pramanik2023agalite.
    """

    choices = Choices(transition="diagonal", gate="input", memory="vector", normaliser="sum")

    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        eta: int = 4,
        r: int = 2,
        waves: Literal["paper", "released"] = "paper",
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.r, self.waves = d_model, r, waves
        check_positive_int("AGaLiTe", r=r)
        check_in("AGaLiTe", "waves", waves, ("paper", "released"))
        self._add_heads("AGaLiTe", n_heads, d_head, eta, eps, device, dtype)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: K, V and s, and the steps since the last reset."""
        heads, features = {"n_heads": self.n_heads}, {"d_features": self.d_features}
        k, v = real(**heads, r=self.r, **features), real(**heads, r=self.r, d_head=self.d_head)
        return {"k": k, "v": v, "s": real(**heads, **features), "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        w = self._written(x)
        position = positions(state["position"], x.shape[1], reset)
        wave = self._waves(position).to(w.q.dtype)[:, :, None, :, None]  # (B, T, 1, r, 1)
        with without_autocast(x.device):
            key_decay, value_decay = w.log_key_decay.exp(), w.log_value_decay.exp()
            k, last_k = linear_scan(
                key_decay[..., None, :], wave * w.k[..., None, :], state["k"], reset=reset
            )
            v, last_v = linear_scan(
                value_decay[..., None, :], wave * w.v[..., None, :], state["v"], reset=reset
            )
            s, last_s = linear_scan(key_decay, w.k, state["s"], reset=reset)
            read = torch.einsum("bthrk,bthk->bthr", k, w.q)  # (B, T, H, r)
            # (B, T, H, d_head), (B, T, H, 1)
            o, weight = torch.einsum("bthr,bthrv->bthv", read, v), (s * w.q).sum(-1, keepdim=True)
            if self.waves == "paper":
                o = 2 / self.r * o / (weight + self.eps)
            else:
                o = o / (2 * self.r * weight + self.eps)
        last = {"k": last_k, "v": last_v, "s": last_s, "position": position[:, -1] + 1}
        return self._out(o), last

    def _waves(self, position: Tensor) -> Tensor:
        """``cos(omega_m t)``, (B, T, r): times modulo the period, or large ones lose precision."""
        m = torch.arange(self.r, device=position.device)
        if self.waves == "paper":
            turn = ((position[..., None] + 1) * m % self.r).double() / self.r
        else:
            n = max(self.r - 1, 1)
            turn = ((position[..., None] + 2) * (2 * m - n) % (2 * n)).double() / (2 * n)
        return torch.cos(2 * pi * turn)
