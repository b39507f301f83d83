"""Temporal latent bottleneck: a fast stream in chunks, beside a state that moves once a chunk."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import head_norm, lecun_normal
from linrnn.nn.linear import Linear
from linrnn.nn.relative import waves
from linrnn.ops.attention import softmax_over, softmax_read
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real


class TLB(SegmentMixer):
    r"""Temporal latent bottleneck: a transformer per chunk, and a slow state updated between them.

    Equation:
        att(q, z) = W_o concat over heads of softmax attention of W_q norm(q) to W_k norm(z),
        W_v norm(z);  mlp(z) = W_2 gelu(W_1 norm(z)): each has its own weights and norms
        u_t = x_t + p_i, step i of its chunk
        a_t = u_t + att(u_t, u_s of the chunk with s <= t);  b_t = a_t + mlp(a_t)
        c_t = b_t + att(b_t, X);  o_t = c_t + mlp(c_t);  y_t = o_t - u_t
        When a chunk has ended, with P the sines and cosines of the rows of X:
        Z = X + P + att(X + P, o_t of the chunk);  X <- Z + mlp(Z);  before the first chunk X = P
        norm is a layer norm with a weight and 1e-6 under the root. Initially weights are
        N(0, 1 / fan_in), p N(0, 0.02^2), those of norms 1.

    Args:
        n_states: rows of X.
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        d_inner: width of W_1. Default: 4 d_model.
        segment: steps of a chunk, counted from the last reset.
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone.

    Departures from the paper:
        One layer of self-attention stands before one of cross-attention, with a state of their
        own; a stack of layers is a stack of such pairs, where the paper's share a state. What is
        written is computed once more at the end of a chunk: so a step asks one query and keeps
        what a token keeps. The residual around y belongs to the block.

    Example:
        >>> y, state = TLB(d_model=8, n_states=3, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["X"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 3, 8]))

    Reference:
        Didolkar et al., "Temporal Latent Bottleneck: Synthesis of Fast and Slow Processing
        Mechanisms in Sequence Learning", NeurIPS 2022, arXiv:2205.14794.
        Key: didolkar2022temporal.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("place",)

    choices = Choices(
        transition="attention",
        gate="none",
        memory="vector",
        normaliser="softmax",
        steps="nonlinear",
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_states: int = 8,
        n_heads: int | None = None,
        d_head: int | None = None,
        d_inner: int | None = None,
        segment: int = 16,
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_states = d_model, n_states
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient, replay)
        self.d_inner = 4 * d_model if d_inner is None else d_inner
        check_positive_int("TLB", n_heads=self.n_heads, n_states=n_states, d_inner=self.d_inner)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int("TLB", d_head=self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        self.place = nn.Parameter(torch.empty(segment, d_model, **to))
        sizes = d_model, self.n_heads * self.d_head, self.d_inner
        self.own, self.read, self.written = (_Block(*sizes, **to) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.normal_(self.place, std=0.02)
        for block in (self.own, self.read, self.written):
            lecun_normal(block.q, block.kv, block.o, block.up, block.down)
            nn.init.ones_(block.norms)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: X, and its keys and values for the tokens."""
        rows = {"n_states": self.n_states}
        entry = real(**rows, n_heads=self.n_heads, d_head=self.d_head)
        return {"X": real(**rows, d_model=self.d_model), "k": entry, "v": entry}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: u, with keys and values."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        return {"u": real(d_model=self.d_model), "k": part, "v": part}

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        return [w for block in (self.own, self.read, self.written) for w in block.weights()]

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`."""
        u = x + self.place[position % self.segment]
        k, v = _keys_and_values(u, self.own.weights(), (self.n_heads, self.d_head))
        return (u,), (u, k, v)

    def output(self, y: Tensor) -> Tensor:
        """See `SegmentMixer.output`."""
        return y

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        (u,) = q
        b = _block(u, entries[1:], seen(age), weights[:_SIZE])
        return _block(b, memory[1:], None, weights[_SIZE : 2 * _SIZE]) - u

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        u, place = entries[0], torch.arange(entries[0].shape[1], device=entries[0].device)
        age = (place[:, None] - place)[None]
        o = u + TLB.attend(mode, (u,), entries, age, memory, weights)
        block_weights = weights[2 * _SIZE :]
        heads = _keys_and_values(o, block_weights, tuple(memory[1].shape[2:]))
        return _with_keys(
            _block(memory[0] + _rows(memory), heads, None, block_weights), memory, weights
        )

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        return _with_keys(_rows(memory).expand_as(memory[0]), memory, weights)


class _Block(nn.Module):
    """Attention and a network behind it, with the norms of both."""

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    def __init__(self, d_model: int, width: int, d_inner: int, **to: Any) -> None:
        super().__init__()
        self.norms = nn.Parameter(torch.empty(3, d_model, **to))  # of queries, keys, the network
        sizes = ((d_model, width), (d_model, 2 * width), (width, d_model))
        self.q, self.kv, self.o = (Linear(*size, bias=False, **to) for size in sizes)
        self.up = Linear(d_model, d_inner, bias=False, **to)
        self.down = Linear(d_inner, d_model, bias=False, **to)

    def weights(self) -> Tensors:
        """As `_block` takes them."""
        maps = (self.q, self.kv, self.o, self.up, self.down)
        return (self.norms, *(m.weight for m in maps))


_SIZE = 6
"""Weights of a block."""


def _block(z: Tensor, entries: Tensors, visible: Tensor | None, weights: Tensors) -> Tensor:
    """``z`` after attention to keys and values, all where nothing is hidden, and the network."""
    norms, q, _, o, up, down = weights
    k, v = entries
    queries = (_normed(z, norms[0]) @ q.mT).unflatten(-1, k.shape[2:])  # (B, Q, H, K)
    read = softmax_over(queries, k, v) if visible is None else softmax_read(queries, k, v, visible)
    z = z + read.flatten(2) @ o.mT
    return z + F.gelu(_normed(z, norms[2]) @ up.mT) @ down.mT


def _keys_and_values(z: Tensor, weights: Tensors, shape: tuple[int, ...]) -> Tensors:
    """Keys and values of a block."""
    both = (_normed(z, weights[0][1]) @ weights[2].mT).chunk(2, -1)
    return [part.unflatten(-1, shape) for part in both]


def _with_keys(X: Tensor, memory: Tensors, weights: Tensors) -> Tensors:
    shape = tuple(memory[1].shape[2:])
    return (X, *_keys_and_values(X, weights[_SIZE : 2 * _SIZE], shape))


def _rows(memory: Tensors) -> Tensor:
    """P, (n_states, d_model)."""
    X = memory[0]
    return waves(torch.arange(X.shape[1], device=X.device), X.shape[2], X.dtype)[:, : X.shape[2]]


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return head_norm(x, "layer", 1e-6) * weight
