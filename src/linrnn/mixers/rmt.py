"""Recurrent memory transformer: rows of memory around each segment."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, lecun_normal, rotate
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary
from linrnn.ops.attention import softmax_over, softmax_read
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real


class RMT(SegmentMixer):
    r"""Recurrent Memory Transformer (RMT): memory tokens read and updated in every segment.

    Equation:
        rows of a segment: read block M, tokens x_1 .. x_n, write block M;  n_memory rows in M
        a row u has q, k, v = W_q u, W_k u, W_v u in R^{d_head} for each head, of M after a norm
        tokens attend to the read block and to tokens up to their own: y_t = W_o (what they read)
        rows of the write block attend to the read block, all tokens and all rows of their own:
        M' = M + W_o (what they read);  M <- M' + W_2 gelu(W_1 norm(M'))
        Queries and keys are turned by the place of their row, 0 for the read block, t for tokens
        and n + 1 for the write block. norm is RMS with a weight and 1e-6 under the root. Initially
        the rows of the first M are N(0, 1), each drawn for itself, weights N(0, 1 / fan_in), those
        of norms 1.

    Args:
        n_memory: rows of M.
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head, an even number. Default: d_model / n_heads, rounded up to one.
        d_inner: width of W_1. Default: 4 d_model.
        segment: steps of a segment, counted from the last reset.
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone.

    Departures from the paper:
        A layer has its own memory, where the paper carries one from the last layer of a
        whole transformer to the first. Residual and norm of the tokens belong to the block; those
        of the memory are here. Positions are turns and not added vectors. No XL cache.

    Example:
        >>> y, state = RMT(d_model=8, n_memory=3, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["rows"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 3, 8]))

    Reference:
        Bulatov, Kuratov and Burtsev, "Recurrent Memory Transformer", NeurIPS 2022,
        arXiv:2207.06881. Key: bulatov2022recurrent.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

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
        n_memory: int = 8,
        n_heads: int | None = None,
        d_head: int | None = None,
        d_inner: int | None = None,
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
        self.d_inner = 4 * d_model if d_inner is None else d_inner
        check_positive_int("RMT", n_heads=self.n_heads, n_memory=n_memory, d_inner=self.d_inner)
        self.d_head = 2 * -(-d_model // (2 * self.n_heads)) if d_head is None else d_head
        check_positive_int("RMT", d_head=self.d_head)
        check_rotary("RMT", self.d_head, self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=False, **to)
        self.first = nn.Parameter(torch.empty(n_memory, d_model, **to))
        self.norm, self.inner_norm = (nn.Parameter(torch.empty(d_model, **to)) for _ in range(2))
        self.up = Linear(d_model, self.d_inner, bias=False, **to)
        self.down = Linear(self.d_inner, d_model, bias=False, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.o_proj, self.up, self.down)
        nn.init.normal_(self.first)
        for weight in (self.norm, self.inner_norm):
            nn.init.ones_(weight)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: M, and its keys and values for the tokens."""
        rows = {"n_memory": self.n_memory}
        entry = real(**rows, n_heads=self.n_heads, d_head=self.d_head)
        return {"rows": real(**rows, d_model=self.d_model), "k": entry, "v": entry}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: turned keys, and values."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        return {"k": part, "v": part}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return str(self.segment + 1)

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        maps = (self.heads.proj, self.o_proj, self.up, self.down)
        return (self.first, self.norm, self.inner_norm, *(m.weight for m in maps))

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`."""
        every = self.heads.stacked(x)
        q, k = rotate(every[:, :, :2], position % self.segment + 1).unbind(2)
        return (q,), (k, every[:, :, 2])

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        k, v = (torch.cat(z, 1) for z in zip(memory[1:], entries, strict=True))
        return softmax_read(q[0], k, v, seen(age, memory[0].shape[1]))

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        rows, inner_norm, heads, out, up, down = memory[0], *weights[2:]
        q, k, v = _projected(rows, weights[1], heads, memory[1].shape[2:])
        place = torch.full(rows.shape[:2], int(mode), device=rows.device)
        q, k = rotate(q, place), rotate(k, place)
        keys, values = (
            torch.cat([m, e, w], 1) for m, e, w in zip(memory[1:], entries, (k, v), strict=True)
        )
        rows = rows + softmax_over(q, keys, values).flatten(2) @ out.mT
        rows = rows + F.gelu(_normed(rows, inner_norm) @ up.mT) @ down.mT
        return _with_keys(rows, memory, weights)

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        return _with_keys(weights[0].expand_as(memory[0]).clone(), memory, weights)


def _with_keys(rows: Tensor, memory: Tensors, weights: Tensors) -> Tensors:
    """The rows, and what tokens see of them: a step does not map them again."""
    _, k, v = _projected(rows, weights[1], weights[3], memory[1].shape[2:])
    return rows, k, v  # at place 0 nothing turns


def _projected(rows: Tensor, norm: Tensor, heads: Tensor, shape: torch.Size) -> Tensors:
    """Queries, keys and values (B, M, H, K) of rows (B, M, d_model)."""
    parts = (_normed(rows, norm) @ heads.mT).chunk(3, -1)  # (B, M, H K)
    return tuple(part.unflatten(-1, tuple(shape)) for part in parts)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps=1e-6)
