"""Real-time learning of two layers, written out from public equations, a step at a time."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from linrnn.mixers import LRU, MinGRU


class LRUTraces:
    """Traces of an LRU: one complex trace of lam, gamma and B each, for each row.

    With lam = exp(-exp(nu) + i exp(theta)) and h' = lam h + gamma (B x), which is holomorphic in
    lam and B: ``e_lam' = lam e_lam + h``, ``e_gamma' = lam e_gamma + B x`` and
    ``e_B' = lam e_B + gamma x``.

    Args:
        layer: whose weights are used, and whose parameters the gradients are of.
        rows: of a batch.
    """

    def __init__(self, layer: LRU, rows: int) -> None:
        self.layer, kind = layer, torch.complex(layer.D.detach(), layer.D.detach()).dtype
        n, d = layer.d_state, layer.d_model
        self.h, self.lam, self.gamma = (torch.zeros(rows, n, dtype=kind) for _ in range(3))
        self.B = torch.zeros(rows, n, d, dtype=kind)

    @torch.no_grad()
    def step(self, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
        """Gradients of a step with input (rows, d_model), given that of its output."""
        p = self.layer
        lam, gamma = p.eigenvalues(), p.gamma_log.exp()
        Bx = torch.complex(linear(x, p.B[:, 0]), linear(x, p.B[:, 1]))
        self.lam = torch.addcmul(self.h, lam, self.lam)
        self.gamma = torch.addcmul(Bx, lam, self.gamma)
        self.B.mul_(lam[:, None]).add_(gamma[:, None] * x[:, None])
        self.h = torch.addcmul(gamma * Bx, lam, self.h)
        C = torch.complex(p.C[..., 0], -p.C[..., 1])  # y = Re(C h) + D x
        credit = dy.to(C.dtype) @ C.conj()
        d_lam = (credit * self.lam.conj()).sum(0)
        d_B = torch.einsum("bn,bnd->nd", credit, self.B.conj())
        d_C = torch.einsum("bd,bn->dn", dy.to(C.dtype), self.h.conj())
        inner = d_lam.conj() * lam
        return {
            "nu_log": -(inner.real * p.nu_log.exp()),
            "theta_log": (inner * 1j).real * p.theta_log.exp(),
            "gamma_log": gamma * (credit * self.gamma.conj()).real.sum(0),
            "B": torch.stack([d_B.real, d_B.imag], 1),
            "C": torch.stack([d_C.real, -d_C.imag], -1),
            "D": (dy * x).sum(0),
        }


class MinGRUTraces:
    """Traces of a minGRU with g(v) = v + 1/2 where v is positive, else sigmoid(v).

    ``E_v' = (1 - z) E_v + z g'(v) x`` and ``E_z' = (1 - z) E_z + (g - h) z (1 - z) x``.

    Args:
        layer, rows: as of `LRUTraces`.
    """

    def __init__(self, layer: MinGRU, rows: int) -> None:
        self.layer, weight = layer, layer.in_proj.weight
        n, d = layer.d_inner, layer.d_model
        self.h = torch.full((rows, n), layer.start, dtype=weight.dtype)
        self.v, self.z = (torch.zeros(rows, n, d, dtype=weight.dtype) for _ in range(2))

    @torch.no_grad()
    def step(self, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
        """Gradients of a step with input (rows, d_model), given that of its output."""
        v, logit = linear(x, self.layer.in_proj.weight).chunk(2, -1)
        s, z = v.sigmoid(), logit.sigmoid()
        g, slope = torch.where(v > 0, v + 0.5, s), torch.where(v > 0, 1.0, s * (1 - s))
        keep = (1 - z)[..., None]
        self.v.mul_(keep).add_((z * slope)[..., None] * x[:, None])
        self.z.mul_(keep).add_(((g - self.h) * z * (1 - z))[..., None] * x[:, None])
        self.h = torch.lerp(self.h, g, z)
        parts = [torch.einsum("bn,bnd->nd", dy, trace) for trace in (self.v, self.z)]
        return {"in_proj.weight": torch.cat(parts)}


WRITTEN_OUT = {"lru": LRUTraces, "mingru": MinGRUTraces}
