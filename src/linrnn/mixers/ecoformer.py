"""EcoFormer: linear attention of binary codes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_shape
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.nn.heads import l2_normalise
from linrnn.nn.kernel_hash import KernelHash, sign

_STEP = "the gradient of a sign is taken for that of the identity, where its argument is small"


class EcoFormer(KernelAttention):
    r"""EcoFormer: causal attention weighted by matching bits of hash codes.

    Equation:
        u_t, v_t = W_u x_t + b_u, W_v x_t + b_v       in each head: u_t is both query and key
        n_t = u_t / sqrt(|u_t|^2 + 1e-6)
        z_tr = sum_i A_ri (exp(-|n_t - p_i|^2 / (2 width)) - mean_i),  i = 1..n_points, r = 1..bits
        h_t = sign(z_t)                                             in {-1, 1}^bits
        w_ts = h_t . h_s + bits + 1                                 from 1 to 2 bits + 1
        o_t = sum_{s<=t} w_ts v_s / sum_{s<=t} w_ts,  y_t = W_o concat over heads of o_t + b_o
        The gradient of a sign is that of its argument, where this is smaller than 1. A, p, width
        and mean are buffers of each head: p starts as random unit vectors, A as N(0, 1); `fit`
        takes p from data, width as the mean squared distance of its vectors, and fits A so that
        codes of similar vectors agree and others differ. Initially maps are as torch.nn.Linear.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of what a head hashes, and of its values. Default:
            d_model / n_heads, rounded up.
        bits: of a code.
        n_points: points that a vector is compared with.
        bias: biases in the maps.

    Departures from the paper:
        The paper's attention is not causal. Its code adds (bits + 1) v_t to what is read, instead
        of (bits + 1) times the sum of values, and takes width from the batch at hand, also
        after training. It fits every 30 epochs; here `fit` is called by whoever trains, and a
        memory written before is empty after it.

    Example:
        >>> y, state = EcoFormer(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 17, 5]))

    Reference:
        Liu et al., "EcoFormer: Energy-Saving Attention with Linear Complexity", 2022,
        arXiv:2209.09004. Key: liu2022ecoformer.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")
    constant_state: ClassVar[tuple[str, ...]] = ("draw",)
    declared: ClassVar[Mapping[str, str]] = {
        "gradients": _STEP,
        "higher_derivatives": _STEP,
    }

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        bits: int = 16,
        n_points: int = 25,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.bits, self.n_points, self.bias = d_model, bits, n_points, bias
        self._set_division("add", 0.0)
        to: Any = {"device": device, "dtype": dtype}
        self._add_heads(n_heads, d_key, d_value, bias=bias, sharing=True, **to)
        self.hash = KernelHash(self.d_key, self.n_heads, bits, n_points, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter and the hash functions anew from torch's global generator."""
        super().reset_parameters()
        self.hash.reset_parameters()

    @torch.no_grad()
    def fit(self, x: Tensor, *, pairs: int = 10, steps: int = 100, lr: float = 5e-4) -> None:
        """Fit the hash functions to inputs; whatever state there is begins anew at the next call.

        Args:
            x: inputs (batch, time, d_model), at least as many steps in all as there are points.
                Memory for heads times the square of their number is needed.
            pairs, steps, lr: see `linrnn.nn.kernel_hash.KernelHash.fit`.

        Raises:
            ShapeError, ArgumentError: an input of another width, or too few steps.
        """
        check_shape(
            "EcoFormer.fit", "x", x.shape, {"batch": None, "time": None, "d_model": self.d_model}
        )
        with without_autocast(x.device):
            u = l2_normalise(wide(self.heads(x)[0])).flatten(0, 1)  # (B T, H, d_key)
            self.hash.fit(u, pairs=pairs, steps=steps, lr=lr)

    def _draws(self) -> Tensor:
        return self.hash.fits

    @property
    def d_features(self) -> int:
        """Features of a query or key: its bits, and one that makes weights positive."""
        return self.bits + 1

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        z = self.hash(l2_normalise(q))
        slope = z.clamp(-1, 1)
        code = sign(z) + (slope - slope.detach())  # in this order 1 or -1 to the bit
        more = torch.full_like(code[..., :1], (self.bits + 1) ** 0.5)
        h = torch.cat([code, more], -1)  # (B, T, H, bits + 1)
        return Features(h, h)
