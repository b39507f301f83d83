"""Token Turing machine: a memory of tokens, read and written by summaries."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import head_norm, lecun_normal
from linrnn.nn.linear import Linear
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real


class TokenTuringMachine(SegmentMixer):
    r"""Token Turing machine: reads and rewrites its memory through learned token summaries.

    Equation:
        S(X) of rows X, to r rows: row i is sum_s softmax_s(l_si) X_s,
        l_s = W_2 gelu(W_1 norm(X_s) + b_1) in R^r                                "mlp"
        l_si = c_i . W_k norm(X_s) / sqrt(d_model), and X_s is W_v norm(X_s) in the sum  "query"
        Z_t = S_r([M; x_s of t's segment with s <= t] + p)
        O_t = Z_t + W_o softmax attention of W_q, W_k, W_v norm(Z_t), over its rows
        O_t <- O_t + W_2' gelu(W_1' norm(O_t));  y_t = W_y times the mean of the rows of O_t
        When a segment has ended, at step t:
        M <- S_m([M; x_s of the segment; O_t] + p')                               "summary"
        M_j <- M_j * prod_i (1 - w_ij e_i) + sum_i w_ij a_i,  a_i, e_i = A O_i, sigmoid(E O_i),
        w_i = softmax over the rows of M + p' of the "mlp" above                  "erase_add"
        S_r, S_m and w have weights of their own; norm is a layer norm with 1e-6 under the root.
        Initially M is 0, p, p' and c are N(0, 0.02^2), weights N(0, 1 / fan_in), biases 0.

    Args:
        n_memory: rows of M, m.
        n_read: rows of Z and O, r.
        d_inner: width of W_1. Default: 64, as in the paper.
        d_process: width of W_1'. Default: 4 d_model.
        summary: "mlp" or "query".
        update: "summary" or "erase_add".
        segment: steps of a segment, the tokens of one step of the paper, counted from the last
            reset.
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone.

    Departures from the paper:
        Every step of a segment has an output, of the tokens up to it; at the last of a segment it
        is the paper's. y is one row, the mean of O mapped. Attention of O has one head. No
        dropout. Rows that are erased have places too: without them M, which starts as zeros, would
        have equal rows for ever. What is added in "erase_add" is w_i a_i, where the released code
        has 1 - w_i a_i.

    Example:
        >>> y, state = TokenTuringMachine(d_model=8, n_memory=6)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["M"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 6, 8]))

    Reference:
        Ryoo et al., "Token Turing Machines", CVPR 2023, arXiv:2211.09119. Key: ryoo2022token.
    """

    choices = Choices(
        transition="attention",
        gate="state",
        memory="vector",
        normaliser="convex",
        steps="nonlinear",
    )
    in_laws: ClassVar[Mapping[str, Any]] = {"segment": 2, "n_memory": 4, "n_read": 2}

    def __init__(
        self,
        d_model: int,
        *,
        n_memory: int = 32,
        n_read: int = 8,
        d_inner: int = 64,
        d_process: int | None = None,
        summary: Literal["mlp", "query"] = "mlp",
        update: Literal["summary", "erase_add"] = "summary",
        segment: int = 16,
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_memory, self.n_read = d_model, n_memory, n_read
        self.set_segments(segment, memory_gradient, replay)
        self.d_inner, self.summary, self.update = d_inner, summary, update
        self.d_process = 4 * d_model if d_process is None else d_process
        check_positive_int(
            "TokenTuringMachine",
            n_memory=n_memory, n_read=n_read, d_inner=d_inner, d_process=self.d_process,
        )  # fmt: skip
        check_in("TokenTuringMachine", "summary", summary, ("mlp", "query"))
        check_in("TokenTuringMachine", "update", update, ("summary", "erase_add"))
        to: Any = {"device": device, "dtype": dtype}
        rows = n_memory + segment
        self.reads = _Summary(summary, d_model, d_inner, n_read, rows, **to)
        if update == "summary":
            self.writes = _Summary(summary, d_model, d_inner, n_memory, rows + n_read, **to)
        else:
            self.writes = _Summary("mlp", d_model, d_inner, n_read, n_memory, **to)
            self.erase, self.add = (Linear(d_model, d_model, bias=False, **to) for _ in range(2))
        self.qkv = Linear(d_model, 3 * d_model, bias=False, **to)
        self.o_proj, self.y_proj = (Linear(d_model, d_model, bias=False, **to) for _ in range(2))
        self.up = Linear(d_model, self.d_process, bias=False, **to)
        self.down = Linear(self.d_process, d_model, bias=False, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                lecun_normal(part)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        for name, parameter in self.named_parameters():
            if name.endswith((".place", ".query")):
                nn.init.normal_(parameter, std=0.02)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: M, what is summed of it and its l for the next reads."""
        rows, row = {"n_memory": self.n_memory}, {"d_model": self.d_model}
        return {
            "M": real(**rows, **row),
            "value": real(**rows, **row),
            "l": real(**rows, r=self.n_read),
        }

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: inputs, what is summed of them, and their l."""
        row = {"d_model": self.d_model}
        return {"x": real(**row), "value": real(**row), "l": real(r=self.n_read)}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return f"{self.summary} {self.update}"

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`: of processing, of reading, of writing."""
        maps = (self.qkv, self.o_proj, self.up, self.down, self.y_proj)
        parameters = [*(m.weight for m in maps), *self.reads.weights(), *self.writes.weights()]
        return (
            parameters
            if self.update == "summary"
            else [*parameters, self.erase.weight, self.add.weight]
        )

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`."""
        weights = self.reads.weights()
        rows = x + weights[0][self.n_memory + position % self.segment]
        return (x,), (x, *_judged(self.summary, rows, weights))

    def output(self, y: Tensor) -> Tensor:
        """See `SegmentMixer.output`."""
        return y

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        return _processed(entries, age, memory, weights).mean(2) @ weights[4].mT

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        M, (summary, update) = memory[0], mode.split()
        o, summary_weights = _processed(entries, None, memory, weights)[:, 0], weights[5 + _SIZE :]
        if update == "summary":
            every = torch.cat([M, entries[0], o], 1) + summary_weights[0]
            value, score = _judged(summary, every, summary_weights)
            return _with_scores(summary, score.softmax(1).mT @ value, weights)
        _, score = _judged("mlp", M + summary_weights[0], summary_weights)
        w = score.softmax(1)[..., None]  # (B, m, r, 1)
        erased, added = (o @ z.mT for z in summary_weights[_SIZE:])
        M = M * (1 - w * erased.sigmoid()[:, None]).prod(2) + (w * added[:, None]).sum(2)
        return _with_scores(summary, M, weights)

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        M = memory[0].new_zeros(()).expand_as(memory[0])
        return _with_scores(mode.split()[0], M, weights)


class _Summary(nn.Module):
    """The weights of S, in the order in which `_judged` takes them."""

    weight_parameters: ClassVar[tuple[str, ...]] = ("place",)

    def __init__(
        self, kind: str, d_model: int, d_inner: int, out: int, rows: int, **to: Any
    ) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.empty(rows, d_model, **to))
        if kind == "mlp":
            self.up = Linear(d_model, d_inner, **to)
            self.down = Linear(d_inner, out, bias=False, **to)
        else:
            self.query = nn.Parameter(torch.empty(out, d_model, **to))
            self.kv = Linear(d_model, 2 * d_model, bias=False, **to)

    def weights(self) -> list[Tensor]:
        """The places and the maps; always as many."""
        if hasattr(self, "query"):
            parameters = [self.query, self.kv.weight, self.kv.weight[:0, 0]]
        else:
            parameters = [self.up.weight, self.down.weight, self.up.bias]
        return [self.place, *parameters]


_SIZE = 4
"""Weights of a summary."""


def _judged(kind: str, rows: Tensor, weights: Tensors) -> tuple[Tensor, Tensor]:
    """The values of rows (..., d_model) that are summed, and their scores l (..., r)."""
    normed = head_norm(rows, "layer", 1e-6)
    if kind == "mlp":
        return rows, F.gelu(normed @ weights[1].mT + weights[3]) @ weights[2].mT
    key, value = (normed @ weights[2].mT).chunk(2, -1)
    return value, key @ weights[1].mT * rows.shape[-1] ** -0.5


def _processed(entries: Tensors, age: Age, memory: Tensors, weights: Tensors) -> Tensor:
    """O (B, Q, r, d_model) of queries that see the memory, and of the entries what is `seen`."""
    value, score = (torch.cat(z, 1) for z in zip(memory[1:], entries[1:], strict=True))
    visible, score = seen(age, memory[0].shape[1]), score[:, None]
    if visible is not None:
        score = torch.where(visible[..., None], score, float("-inf"))
    p = score.softmax(2)  # (B, Q, S, r)
    z: Tensor = torch.einsum("bqsr,bsd->bqrd", p, value)  # (B, Q, r, d_model)
    qkv, out, up, down = weights[:4]
    q, k, v = (head_norm(z, "layer", 1e-6) @ qkv.mT).chunk(3, -1)
    z = z + (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v @ out.mT
    return z + F.gelu(head_norm(z, "layer", 1e-6) @ up.mT) @ down.mT


def _with_scores(summary: str, M: Tensor, weights: Tensors) -> Tensors:
    """M, and what the next segment's steps sum of it."""
    reads = weights[5 : 5 + _SIZE]
    return (M, *_judged(summary, M + reads[0][: M.shape[1]], reads))
