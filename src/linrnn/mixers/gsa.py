"""Gated slot attention: softmax attention to a fixed number of slots that forget."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.slots import slots_spec
from linrnn.nn import GatedOut, Heads, default_heads
from linrnn.nn.memories import read_slots
from linrnn.ops.matrix.log_sigmoid import log_sigmoid
from linrnn.state_spec import Part


class GSA(Mixer):
    r"""Gated slot attention: softmax attention over slots that are written as much as they forget.

    Equation:
        q, k, v = silu(W_q x_t), silu(W_k x_t), silu(W_v x_t)           in each head
        alpha_t = sigmoid(W_f x_t)^(1 / tau)                            in (0, 1)^slots
        K_t = diag(alpha_t) K_{t-1} + (1 - alpha_t) k_t^T               (slots, d_key)
        V_t = diag(alpha_t) V_{t-1} + (1 - alpha_t) v_t^T               (slots, d_value)
        o_t = V_t^T softmax(scale K_t q_t)
        y_t = W_o norm(silu(concat over heads of o_t)),   norm(z) = z / sqrt(mean(z^2) + norm_eps)
        Every slot is a weighted mean of the past, and the norm is of all heads together. Initially
        as torch.nn.Linear.

    Args:
        n_heads: heads. Default: 4, fewer if they had less than 16 of d_model channels each.
        d_key, d_value: channels of a head's keys, and values. Default: d_model / n_heads, rounded
            up.
        slots: of each head. Default: d_key.
        tau: temperature of the gate; larger ones remember longer.
        scale: of the products with queries, 1 as published.
        norm_eps: of the norm.

    Departures from the paper:
        Extension beyond the survey. The norm has no weights: W_o follows, with nothing but
        products between.

    Example:
        >>> y, state = GSA(d_model=8, n_heads=2, slots=3)(torch.randn(2, 100, 8))
        >>> y.shape, state["keys"].shape, state["values"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 3]), torch.Size([2, 2, 3, 4]))

    Reference:
        Zhang et al., "Gated Slot Attention for Efficient Linear-Time Sequence Modeling", NeurIPS
        2024, arXiv:2409.07146. Key: zhang2024gated.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="diagonal", gate="input", memory="matrix", normaliser="softmax")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        slots: int | None = None,
        tau: float = 8.0,
        scale: float = 1.0,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        n_heads = default_heads(d_model, 4) if n_heads is None else n_heads
        check_positive_int("GSA", n_heads=n_heads)
        check_positive("GSA", tau=tau, scale=scale, norm_eps=norm_eps)
        self.n_heads, self.tau, self.scale, self.norm_eps = n_heads, tau, scale, norm_eps
        self.d_key = -(-d_model // n_heads) if d_key is None else d_key
        self.d_value = -(-d_model // n_heads) if d_value is None else d_value
        self.slots = self.d_key if slots is None else slots
        check_positive_int("GSA", d_key=self.d_key, d_value=self.d_value, slots=self.slots)
        to: Any = {"device": device, "dtype": dtype}
        sizes = (self.d_key, self.d_key, self.d_value, self.slots)
        self.heads = Heads(d_model, n_heads, sizes, **to)
        width = n_heads * self.d_value
        self.out = GatedOut(d_model, 1, width, eps=norm_eps, gate="none", **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: keys and values of the slots."""
        return slots_spec(self.n_heads, self.slots, self.d_key, self.d_value)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v, f = (wide(z) for z in self.heads(x))  # (B, T, H, K or V or slots)
        q, k, v = F.silu(q), F.silu(k), F.silu(v)
        g = log_sigmoid(f, 1 / self.tau)
        write = -torch.expm1(g)
        with without_autocast(x.device):
            o, last = read_slots(q, k, v, write, g, state, scale=self.scale, reset=reset)
        return self.out(F.silu(o).flatten(2).unsqueeze(2), x), last  # o: (B, T, 1, H V)
