"""Memformer: slots that tokens look at, and that look at the tokens of a segment."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, lecun_normal, rotate
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary
from linrnn.ops.attention import softmax_over, softmax_read
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real


class Memformer(SegmentMixer):
    r"""Memformer: memory slots, read and updated by attention once a segment.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t               in R^{d_head} for each head
        a_t = W_o concat over heads of sum over s <= t of t's segment of
        softmax_s((R^t q_t) . (R^s k_s) / sqrt(d_head)) v_s
        y_t = a_t + W_c (what U_q norm(x_t + a_t) reads of U_k m_j, U_v m_j over all slots j)
        When a segment has ended, with p a softmax over slot i alone and the segment's steps:
        m'_i = p_i m_i + sum_t p_t S_v x_t,
        p ~ exp(S_q m_i . [S_k m_i ; S_k x_t] / (tau sqrt(d_model)))
        m_i <- (m'_i + b_i) / |m'_i + b_i|;  before the first segment m_i = b_i / |b_i|
        norm is RMS with a weight and 1e-6 under the root, as |.| has; R turns pairs of channels,
        see `linrnn.nn.rotate`. Initially b is N(0, 1), other weights N(0, 1 / fan_in), those of
        norm 1.

    Args:
        n_memory: slots.
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head, an even number. Default: d_model / n_heads, rounded up to one.
        temperature: tau, above 0; below 1 a slot writes what it looks at most.
        segment: steps of a segment, counted from the last reset.
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone: the
            memory replay back-propagation of the paper, with the same gradients.

    Departures from the paper:
        Attention of tokens is causal, for there is no decoder. A layer has its own slots and
        writes its inputs, where the paper writes what comes out of the last layer; so the
        feed-forward network and the residual of the tokens belong to the block. Positions are
        turns and not a bias. Slots have one head.

    Example:
        >>> y, state = Memformer(d_model=8, n_memory=3, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["m"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 3, 8]))

    Reference:
        Wu, Lan, Qian, Gu, Geramifard and Yu, "Memformer: A Memory-Augmented Transformer for
        Sequence Modeling", AACL Findings 2022, arXiv:2010.06891. Key: wu2020memformer.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="attention",
        gate="state",
        memory="vector",
        normaliser="convex",
        steps="nonlinear",
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_memory: int = 8,
        n_heads: int | None = None,
        d_head: int | None = None,
        temperature: float = 1.0,
        segment: int = 64,
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_memory = d_model, n_memory
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient, replay)
        check_positive_int("Memformer", n_heads=self.n_heads, n_memory=n_memory)
        self.d_head = 2 * -(-d_model // (2 * self.n_heads)) if d_head is None else d_head
        check_positive_int("Memformer", d_head=self.d_head)
        check_rotary("Memformer", self.d_head, self.d_head)
        if not 0 < temperature < float("inf"):
            raise ArgumentError(
                f"Memformer: temperature must be positive and finite, got {temperature}."
            )
        self.temperature = temperature
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        width = self.n_heads * self.d_head
        self.o_proj, self.far_o = (Linear(width, d_model, bias=False, **to) for _ in range(2))
        self.far_q = Linear(d_model, width, bias=False, **to)
        self.far_kv = Linear(d_model, 2 * width, bias=False, **to)
        self.slot = Linear(d_model, 3 * d_model, bias=False, **to)
        self.bias = nn.Parameter(torch.empty(n_memory, d_model, **to))
        self.norm = nn.Parameter(torch.empty(d_model, **to))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.o_proj, self.far_o, self.far_q, self.far_kv, self.slot)
        nn.init.normal_(self.bias)
        nn.init.ones_(self.norm)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: slots, and their keys and values for the tokens."""
        rows = {"n_memory": self.n_memory}
        entry = real(**rows, n_heads=self.n_heads, d_head=self.d_head)
        return {"m": real(**rows, d_model=self.d_model), "k": entry, "v": entry}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: turned keys and values, and keys and values for slots."""
        part, row = real(n_heads=self.n_heads, d_head=self.d_head), real(d_model=self.d_model)
        return {"k": part, "v": part, "slot_k": row, "slot_v": row}

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        maps = (self.o_proj, self.far_q, self.far_o, self.far_kv, self.slot)
        tau = self.bias.new_full((), self.temperature)  # no compiler writes a number as text
        return (self.bias, self.norm, *(m.weight for m in maps), tau)

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`."""
        every = self.heads.stacked(x)  # (B, T, 3, H, K)
        q, k = rotate(every[:, :, :2], position % self.segment).unbind(2)
        _, slot_k, slot_v = self.slot(x).chunk(3, -1)  # (B, T, d_model)
        return (x, q), (k, every[:, :, 2], slot_k, slot_v)

    def output(self, y: Tensor) -> Tensor:
        """See `SegmentMixer.output`."""
        return y

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        (x, queries), (_, norm, out, far_q, far_out, *_) = q, weights
        a = softmax_read(queries, entries[0], entries[1], seen(age)).flatten(2) @ out.mT
        far = F.rms_norm(x + a, x.shape[-1:], norm, eps=1e-6) @ far_q.mT
        far = softmax_over(far.view_as(queries), memory[1], memory[2])  # (B, Q, H, K)
        return a + far.flatten(2) @ far_out.mT

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        m, (k, v) = memory[0], entries[2:]
        q, keys, _ = (m @ weights[6].mT).chunk(3, -1)  # (B, M, d_model)
        scores = torch.cat([(q * keys).sum(-1, keepdim=True), q @ k.mT], -1)  # (B, M, 1 + n)
        p = (scores / (weights[7] * m.shape[-1] ** 0.5)).softmax(-1)
        return _remembered(p[..., :1] * m + p[..., 1:] @ v, memory, weights)

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        return _remembered(memory[0].new_zeros(()).expand_as(memory[0]), memory, weights)


def _remembered(m: Tensor, memory: Tensors, weights: Tensors) -> Tensors:
    """Slots that forget towards their bias, and what tokens see of them."""
    m = m + weights[0]
    m = m * (m.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    k, v = (z.unflatten(-1, memory[1].shape[2:]) for z in (m @ weights[5].mT).chunk(2, -1))
    return m, k, v
