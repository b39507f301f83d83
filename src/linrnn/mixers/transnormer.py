"""TransNormer: attention inside blocks in early layers, normed linear attention in late ones."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.kernel_attention import Features, KernelAttention
from linrnn.nn.channel_mix import check_layer
from linrnn.nn.heads import feature_map
from linrnn.ops.attention import attend, in_sight, positions
from linrnn.state_spec import Part, integer, real


class TransNormer(KernelAttention):
    r"""TransNormer: normalised linear attention; blockwise softmax attention in its first layers.

    Equation:
        q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v     in each head
        in late layers S_t = S_{t-1} + phi(k_t) v_t^T,   o_t = S_t^T phi(q_t)
            y_t = W_o norm(concat over heads of o_t) + b_o
        in early ones, with s from the first step of t's block up to t,
            variant "T1"  o_t = sum_s relu(q_t . k_s / sqrt(d_key)) v_s,   y_t as in late layers
            variant "T2"  o_t = sum_s softmax over s of (q_t . k_s / sqrt(d_key)) v_s, without norm
        phi(x) = elu(x) in "T1" and 1 + elu(x) in "T2". Blocks are of block_size steps, counted from
        the last reset; one norm, with a gain for every channel, is over all heads.
        Initially Glorot-uniform with gain 2^(-1/2), no biases, gains 1.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_key, d_value: channels of a head's queries and keys, and of its values. Default:
            d_model / n_heads, rounded up.
        attention: "linear" or "block"; "auto" takes blocks in the first half of a stack, the middle
            layer of an odd number included, and in no stack of one.
        variant: see above.
        block_size: steps of a block.
        norm: "rms", or "layer", which also subtracts the mean and has shifts.
        norm_eps: of the norm.
        layer, n_layers: place in the stack, counted from 0; the stack sets them.

    Departures from the paper:
        The published language models turn queries and keys by learned angles, which are left out.
        Norm and feed-forward layer around it belong to the block of the stack. Where all products
        of a block are next to zero, the norm of "T1" makes their rounding large.

    Example:
        >>> y, state = TransNormer(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]))
        >>> early = TransNormer(d_model=8, layer=0, n_layers=2)
        >>> early(torch.randn(2, 100, 8))[1]["k"].shape
        torch.Size([2, 63, 1, 8])

    Reference:
        Qin et al., "The Devil in Linear Transformer", 2022, arXiv:2210.10340. Key: qin2022devil.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="norm")
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    division = "none"
    gain: nn.Parameter | None
    shift: nn.Parameter | None

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        attention: Literal["auto", "linear", "block"] = "auto",
        variant: Literal["T1", "T2"] = "T2",
        block_size: int = 64,
        norm: Literal["rms", "layer"] = "rms",
        norm_eps: float = 1e-6,
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.attention, self.variant = d_model, attention, variant
        self.block_size, self.norm, self.norm_eps = block_size, norm, norm_eps
        self.layer, self.n_layers = layer, n_layers
        check_in("TransNormer", "attention", attention, ("auto", "linear", "block"))
        check_in("TransNormer", "variant", variant, ("T1", "T2"))
        check_in("TransNormer", "norm", norm, ("rms", "layer"))
        check_positive_int("TransNormer", block_size=block_size)
        check_layer("TransNormer", layer, n_layers)
        if not 0 < norm_eps < float("inf"):
            raise ArgumentError(f"TransNormer: norm_eps must be positive, got {norm_eps}.")
        self._add_heads(n_heads, d_key, d_value, device=device, dtype=dtype)
        self.register_parameter("gain", None)
        self.register_parameter("shift", None)
        self.reset_parameters()

    @property
    def in_blocks(self) -> bool:
        """Whether it looks at the steps of a block, and not at all earlier ones."""
        if self.attention == "auto":
            return self.n_layers > 1 and 2 * self.layer < self.n_layers
        return self.attention == "block"

    @property
    def _normed(self) -> bool:
        return not self.in_blocks or self.variant == "T1"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._draw_glorot(2**-0.5)
        weight, width = self.out_proj.weight, self.n_heads * self.d_value
        # a copy may have been given another place in the stack
        ones, zeros = weight.new_ones(width), weight.new_zeros(width)
        self.gain = nn.Parameter(ones) if self._normed else None
        self.shift = nn.Parameter(zeros) if self._normed and self.norm == "layer" else None

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S; or keys and values of the block, and the steps read of it."""
        if not self.in_blocks:
            return super().state_spec()
        heads = {"entries": self.block_size - 1, "n_heads": self.n_heads}
        k, v = real(**heads, d_key=self.d_key), real(**heads, d_value=self.d_value)
        return {"k": k, "v": v, "position": integer()}

    def _features(
        self, q: Tensor, k: Tensor, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> Features:
        q, k = (F.elu(z) if self.variant == "T1" else feature_map("elu", z) for z in (q, k))
        return Features(q, k)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        if not self.in_blocks:
            return super()._read(x, state, reset)
        size = self.block_size
        sight = positions(state["position"], x.shape[1], reset) % size
        q, k, v = (wide(z) for z in self.heads(x))  # (B, T, H, d_head)
        # (B, S, H, d_head) each
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        kind = "relu" if self.variant == "T1" else "softmax"
        with without_autocast(x.device):
            o = attend(kind, q, k, v, sight, window=size, whole=False)
            o = self._read_out(o) if self._normed else o.flatten(2)  # (B, T, H V)
        n_visible, first = (sight[:, -1] + 1) % size, k.shape[1] - (size - 1)  # by the next step
        cache = {
            "k": in_sight(k[:, first:], n_visible - 1),
            "v": in_sight(v[:, first:], n_visible - 1),
        }
        y = self.out_proj(o.to(self.out_proj.weight.dtype))
        return y, {**cache, "position": n_visible}

    def _read_out(self, o: Tensor) -> Tensor:
        """(B, T, all heads), normed."""
        # (B, T, H V), (H V,)
        o, gain = o.flatten(2), None if self.gain is None else wide(self.gain)
        if self.norm == "rms":
            return F.rms_norm(o, o.shape[-1:], gain, self.norm_eps)
        shift = None if self.shift is None else wide(self.shift)
        return F.layer_norm(o, o.shape[-1:], gain, shift, self.norm_eps)
