"""Recurrent attention network: a cell carried from window to window, and a review of cells."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, empty_parameters, head_norm, lecun_normal, rotate
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary
from linrnn.ops.attention import softmax_over, softmax_read
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real

_NORMS = ("layer", "rms", "none")


class RecurrentAttentionNetwork(SegmentMixer):
    r"""Recurrent attention network, not the additive one: windows read and update a memory cell.

    Equation:
        rows of a window: the cell g, tokens x_1 .. x_n;  a row u has q, k, v = W_q u, W_k u, W_v u
        in R^{d_head} for each head, of which q and k are turned by its place, 0 for the cell
        o_t = W_o (what token t reads from the cell and from tokens up to its own, by softmax)
        When the window has ended
        g <- norm(g + W_o (what the cell reads from itself and all tokens))
        review_t = what U_q norm(x_t + o_t) reads from U_k g, U_v g of the last n_review cells
        y_t = o_t + U_o review_t;  in the first window review_t is 0
        norm has a weight, a bias, and 1e-6 under the root. Initially the first g is N(0, 1) and
        learned, weights are N(0, 1 / fan_in), those of norms 1, biases 0.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head, an even number. Default: d_model / n_heads, rounded up to one.
        n_review: cells that are reviewed, those of the last windows.
        segment: n, counted from the last reset.
        norm: "layer", "rms" or "none", of the cell and of what asks the review.
        residual: the cell keeps what it was; without, g <- norm(W_o (...)).
        memory_gradient: gradients pass through this many cells: they end before every window whose
            number, from 0, divides by one more. Default: they never end.
        replay: compute windows once more for the backward pass, which keeps cells alone.

    Departures from the paper:
        The paper reviews all cells of a text, those of later windows too where it is classified:
        here the last ``n_review`` before the window, so that a stream costs the same at any length.
        Where tokens are causal the cell still reads its whole window, when that has ended. Residual
        and norm of the tokens belong to the block around a mixer; x + o is what the review is
        asked with.

    Example:
        >>> layer = RecurrentAttentionNetwork(d_model=8, n_review=3, segment=16)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["cell"].shape, state["memory"]["review_k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 8]), torch.Size([2, 3, 1, 8]))

    Reference:
        Li et al., "Recurrent Attention Networks for Long-text Modeling", Findings of ACL 2023,
        arXiv:2306.06843. Key: li2023recurrent.
    """

    aliases: ClassVar[tuple[str, ...]] = ("ran",)

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="attention",
        gate="none",
        memory="vector",
        normaliser="norm",
        steps="nonlinear",
    )
    in_laws: ClassVar[Mapping[str, Any]] = {"segment": 3}  # so that two cells are reviewed

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        n_review: int = 16,
        segment: int = 64,
        norm: Literal["layer", "rms", "none"] = "layer",
        residual: bool = True,
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_review, self.norm, self.residual = d_model, n_review, norm, residual
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient, replay)
        check_positive_int("RecurrentAttentionNetwork", n_heads=self.n_heads, n_review=n_review)
        check_in("RecurrentAttentionNetwork", "norm", norm, _NORMS)
        self.d_head = 2 * -(-d_model // (2 * self.n_heads)) if d_head is None else d_head
        check_positive_int("RecurrentAttentionNetwork", d_head=self.d_head)
        check_rotary("RecurrentAttentionNetwork", self.d_head, self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.review = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        inner = self.n_heads * self.d_head
        self.o_proj, self.review_proj = (Linear(inner, d_model, bias=False, **to) for _ in range(2))
        empty = empty_parameters(device, dtype)
        self.first = empty(d_model)
        self.gain, self.shift = (None if norm == "none" else empty(2, d_model) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.review.proj, self.o_proj, self.review_proj)
        nn.init.normal_(self.first)
        if self.gain is not None and self.shift is not None:
            nn.init.ones_(self.gain)
            nn.init.zeros_(self.shift)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: g, what tokens see of it, and what they review."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        current, review = real(**entry), real(n_review=self.n_review, **entry)
        cell = real(d_model=self.d_model)
        return {"cell": cell, "k": current, "v": current, "review_k": review, "review_v": review}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: turned keys, and values."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        return {"k": part, "v": part}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return f"{self.segment} {self.norm} {'keeps' if self.residual else 'loses'}"

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        maps = (self.heads.proj, self.o_proj, self.review.proj, self.review_proj)
        norms = (self.gain, self.shift)
        return (self.first, *(m.weight for m in maps), *(w for w in norms if w is not None))

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`."""
        every = self.heads.stacked(x)
        q, k = rotate(every[:, :, :2], position % self.segment + 1).unbind(2)
        return (x, q, position), (k, every[:, :, 2])

    def output(self, y: Tensor) -> Tensor:
        """See `SegmentMixer.output`."""
        return y

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        x, queries, position = q
        segment, norm, _ = mode.split()
        k, v = (torch.cat([m[:, None], e], 1) for m, e in zip(memory[1:3], entries, strict=True))
        o = softmax_read(queries, k, v, seen(age, 1))
        o = o.flatten(2) @ weights[2].mT
        z = _normed(norm, x + o, weights, 1)
        queries = _part(z, weights[3], 0, memory[3].shape[2:])
        number, (k, v) = position // int(segment), memory[3:]
        back = torch.arange(k.shape[1], 0, -1, device=k.device)
        none = number[..., None] == 0  # which must not come to a softmax of nothing
        read = softmax_read(queries, k, v, (back <= number[..., None]) | none)
        return o + torch.where(none, 0, read.flatten(2)) @ weights[4].mT

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        (_, norm, keeps), g = mode.split(), memory[0]
        shape = memory[1].shape[1:]
        k, v = (torch.cat([m[:, None], e], 1) for m, e in zip(memory[1:3], entries, strict=True))
        q = _part(g, weights[1], 0, shape)[:, None]  # at place 0 nothing turns
        read = softmax_over(q, k, v)[:, 0].flatten(1) @ weights[2].mT
        g = _normed(norm, g + read if keeps == "keeps" else read, weights, 0)
        bank = (
            torch.cat([previous[:, 1:], _part(g, weights[3], i, shape)[:, None]], 1)
            for i, previous in enumerate(memory[3:], 1)
        )
        return (g, *(_part(g, weights[1], i, shape) for i in (1, 2)), *bank)

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        g, shape = weights[0].expand_as(memory[0]).clone(), memory[1].shape[1:]
        projected = (_part(g, weights[1], i, shape) for i in (1, 2))
        return (g, *projected, *(torch.zeros_like(h) for h in memory[3:]))


def _part(u: Tensor, weight: Tensor, i: int, shape: torch.Size) -> Tensor:
    """Queries (0), keys (1) or values (2) of every head, (..., H, K)."""
    part: Tensor = (u @ weight.chunk(3)[i].mT).unflatten(-1, tuple(shape))
    return part


def _normed(norm: str, u: Tensor, weights: Tensors, i: int) -> Tensor:
    """Apply the norm of the cell, 0, or of the queries of the review, 1."""
    if norm == "none":
        return u
    gain, shift = weights[5:]
    return head_norm(u, norm, 1e-6) * gain[i] + shift[i]
