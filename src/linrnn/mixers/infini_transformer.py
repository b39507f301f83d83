"""Infini-attention: softmax within a segment, a linear memory of all before it."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, feature_map, lecun_normal, rotate
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary
from linrnn.ops.attention import softmax_read
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real

_TINY = 1e-10  # instead of a sum of no keys


class InfiniTransformer(SegmentMixer):
    r"""Infini-attention: causal softmax in a segment, mixed with a linear memory of older ones.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t               in R^{d_head} for each head
        p_ts = softmax over s <= t of t's segment of (R^t q_t) . (R^s k_s) / sqrt(d_head)
        local_t = sum_s p_ts v_s
        far_t = S^T phi(q_t) / (z . phi(q_t)), 0 where z is,    phi(x) = elu(x) + 1
        y_t = W_o concat over heads of sigmoid(beta) far_t + (1 - sigmoid(beta)) local_t
        S, z are those of all earlier segments; when a segment ends
        S <- S + sum over its steps of phi(k_s) v_s^T                                   "linear"
        S <- S + sum over its steps of phi(k_s) (v_s - S^T phi(k_s) / (z . phi(k_s)))^T  "delta"
        z <- z + sum over its steps of phi(k_s)
        R turns pairs of channels, see `linrnn.nn.rotate`. Initially S and z are 0, weights
        N(0, 1 / fan_in) and beta 0.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head, an even number. Default: d_model / n_heads, rounded up to one.
        segment: steps of a segment, counted from the last reset.
        update: "linear" or "delta".
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone.

    Departures from the paper:
        The released description leaves open what a first segment reads from a memory of nothing:
        zeros, which the gate mixes in. Public code, which its authors did not write, has no gate
        in the first segment, and the other sign of beta.

    Example:
        >>> y, state = InfiniTransformer(d_model=8, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["S"].shape, state["begun"]["v"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 1, 8, 8]), torch.Size([2, 15, 1, 8]))

    Reference:
        Munkhdalai, Faruqui and Gopal, "Leave No Context Behind: Efficient Infinite Context
        Transformers with Infini-attention", 2024, arXiv:2404.07143. Key: munkhdalai2024leave.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(transition="identity", gate="none", memory="matrix", normaliser="sum")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        segment: int = 64,
        update: Literal["linear", "delta"] = "linear",
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient, replay)
        check_positive_int("InfiniTransformer", n_heads=self.n_heads)
        check_in("InfiniTransformer", "update", update, ("linear", "delta"))
        self.d_head = 2 * -(-d_model // (2 * self.n_heads)) if d_head is None else d_head
        check_positive_int("InfiniTransformer", d_head=self.d_head)
        check_rotary("InfiniTransformer", self.d_head, self.d_head)
        self.update = update
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.beta = nn.Parameter(torch.empty(self.n_heads, **to))
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=False, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.o_proj)
        nn.init.zeros_(self.beta)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: the sums over all segments before."""
        heads = {"n_heads": self.n_heads, "d_key": self.d_head}
        return {"S": real(**heads, d_value=self.d_head), "z": real(**heads)}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: turned keys, keys as they are, values."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        return {"turned": part, "k": part, "v": part}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return self.update

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        return (self.beta,)

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`: the memory has no positions."""
        every = self.heads.stacked(x)  # (B, T, 3, H, K)
        (q, k, v), rotated = every.unbind(2), rotate(every[:, :, :2], position)
        return (rotated[:, :, 0], q), (rotated[:, :, 1], k, v)

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        local = softmax_read(q[0], entries[0], entries[2], seen(age))
        gate = weights[0].sigmoid()[:, None]
        recalled, weight = _recalled(q[1], memory)
        return torch.addcmul((1 - gate) * local, recalled, gate / weight)

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        (_, k, v), (S, z) = entries, memory
        if mode == "delta":
            recalled, weight = _recalled(k, memory)
            v = v - recalled / weight
        keys, v = feature_map("elu", k).transpose(1, 2), v.transpose(1, 2)  # (B, H, n, K)
        return S + keys.mT @ v, z + keys.sum(2)  # (B, H, K, K), (B, H, K)


def _recalled(x: Tensor, memory: Tensors) -> tuple[Tensor, Tensor]:
    """Values that queries or keys read, (B, T, H, K), times the weight sums (B, T, H, 1)."""
    features, (S, z) = feature_map("elu", x).transpose(1, 2), memory  # (B, H, T, K)
    weight = (features @ z[..., None]).clamp(min=_TINY)  # (B, H, T, 1)
    return (features @ S).transpose(1, 2), weight.transpose(1, 2)
