"""RetNet's multi-scale retention."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, rotate
from linrnn.ops.attention import positions
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, integer, real


class RetNet(Mixer):
    r"""Multi-scale retention: linear attention whose heads forget at fixed rates of their own.

    Equation:
        q_t, k_t, v_t = R^t W_q x_t, R^t W_k x_t / sqrt(d_key), W_v x_t        in each head
        S_t = gamma S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t        S is d_key by d_value
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        gamma = 1 - 2^(-5-h) in head h = 0, 1, ...: a memory of 32, 64, 128, ... steps
        R turns the pair of channels (2i, 2i+1) by 10000^(-2i/(d_key - 2)) radians.
        Initially Glorot-uniform with gain 2^(-5/2), W_o with gain 1/2.

    Args:
        n_heads: heads, at most 19, beyond which gamma rounds to 1. Default: d_model / 256, or 1.
        d_key: channels of a head's queries and keys, an even number. Default: d_model / n_heads,
            rounded up to an even number.
        d_value: channels of a head's values. Default: twice d_key.
        norm: of each head, "rms" as in the public code and above, or "layer" as in the paper, which
            subtracts the mean of o_t first.
        norm_eps: of the norm.

    Departures from the paper:
        Scores are not normalised before the norm of the heads, which cancels it but for norm_eps.
        Norm and feed-forward layer around it belong to the block.

    Example:
        >>> y, state = RetNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 8]))

    Reference:
        Sun et al., "Retentive Network: A Successor to Transformer for Large Language Models",
        2023, arXiv:2307.08621. Key: sun2023retentive.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(
        transition="scalar", gate="fixed", memory="matrix", normaliser="norm", output="gated"
    )
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        norm: Literal["rms", "layer"] = "rms",
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.norm, self.norm_eps = d_model, norm, norm_eps
        self.n_heads = max(1, d_model // 256) if n_heads is None else n_heads
        check_positive_int("RetNet", n_heads=self.n_heads)
        self.d_key = 2 * -(-d_model // (2 * self.n_heads)) if d_key is None else d_key
        self.d_value = 2 * self.d_key if d_value is None else d_value
        check_positive_int("RetNet", d_key=self.d_key, d_value=self.d_value)
        if self.d_key % 2 or self.n_heads > 19 or not norm_eps > 0:
            raise ArgumentError(
                "RetNet: d_key must be even, n_heads at most 19 and norm_eps positive, got "
                f"d_key={self.d_key}, n_heads={self.n_heads}, norm_eps={norm_eps}."
            )
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_key, self.d_key, self.d_value), **to)
        self.out = GatedOut(d_model, self.n_heads, self.d_value, norm=norm, eps=norm_eps, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters(gain=2**-2.5)
        nn.init.xavier_uniform_(self.out.gate_proj.weight, 2**-2.5)
        nn.init.xavier_uniform_(self.out.out_proj.weight, 0.5)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and the steps since the last reset."""
        memory = real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)
        return {"memory": memory, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        position = positions(state["position"], x.shape[1], reset)
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, K or V)
        q, k = (rotate(z, position, endpoint=True) for z in (q, k))
        head = torch.arange(self.n_heads, dtype=torch.float64, device=x.device)
        g = torch.log1p(-(2 ** (-5 - head)))
        with without_autocast(x.device):
            o, memory = outer_scan(q, k * self.d_key**-0.5, v, g, state["memory"], reset=reset)
        return self.out(o, x), {"memory": memory, "position": position[:, -1] + 1}
