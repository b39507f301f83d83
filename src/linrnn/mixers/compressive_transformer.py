"""Compressive Transformer: what leaves the memory of segments is kept in fewer rows."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.layout import gathered
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, RelativePositions, lecun_normal
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import parameters_of
from linrnn.nn.relative import distance_keys, distance_scores
from linrnn.ops.attention import positions, softmax_over, softmax_read
from linrnn.ops.attention.relative import relative, relative_weights
from linrnn.ops.attention.segments import Age, Tensors
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, real

_CHOICE = {"low_precision": "which rows are kept may turn on a rounding, and all after it"}


class CompressiveTransformer(SegmentMixer):
    r"""Compressive Transformer: attention to recent steps and to compressed older ones.

    Equation:
        rows before a segment of n steps: C of ``compressed`` rows, M of the last ``memory`` steps
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t, and so of the rows of C and M, in R^{d_head}
        score_ts = ((q_t + u) . k_s + (q_t + w) . (W_r R_d)) / sqrt(d_head), R as in
        `TransformerXL`, d the number of rows from s to t in the order C, M, segment
        y_t = W_o concat over heads of sum_s softmax_s(score_ts) v_s, over C, M and s <= t
        When a segment has ended: o <- the first n rows of [M; x],  M <- the rest,
        C <- the last rows of [C; f(o)];  f takes ``ratio`` rows to one:
        f(o)_i = b + sum_j F_j o_{ratio i + j}                                       "conv"
        f(o)_i = b + sum_j F_j o_{ratio i + 2 j + 1 - ratio}, 0 before o_0        "dilated"
        f(o)_i = mean, or maximum in each channel, of o_{ratio i + j} over j         "mean", "max"
        f(o)   = the n / ratio rows of o, in their order, of the largest sum of softmax_s(score_ts)
        over heads and over the steps t that were read while s was in M                  "used"
        In training F and b minimise, apart from all else and all else apart from them,
        n / T times the sum over the segments that end of the mean square of a(o) - a(f(o)),
        a(z)_t = sum_s softmax_s(q_t . W_k z_s / sqrt(d_head)) W_v z_s
        for the steps t of the segment, in T steps that are read. C and M hold only what was read.
        Initially weights are N(0, 1 / fan_in), u and w N(0, 0.02^2), b is 0.

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        segment: n, counted from the last reset.
        memory: rows of M, a multiple of ``segment``. Default: one segment.
        compressed: rows of C; 0 leaves Transformer-XL. Default: as many as M.
        ratio: rows that become one; it divides ``segment``.
        compression: "conv", "dilated", "mean", "max" or "used". The last has queries in its state,
            to know at the end of a segment what it looked at.
        reconstruct: train F and b by the loss above, `Mixer.add_loss`, where losses of layers are
            collected, as training does; else by the loss of the model.
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone.

    Departures from the paper:
        Gradients flow through M and C; memory_gradient=0 ends them as the paper does. Rows are
        the inputs of this layer, behind the norm of the block around it. How dilated convolutions
        are laid, and over which steps the use of a row counts, are ours. Norms of the loss are
        means, and it is a sum over layers: of a layer's F alone, each is what it is but for a
        factor.

    Example:
        >>> y, state = CompressiveTransformer(d_model=8, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["m"].shape, state["memory"]["c_k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 16, 8]), torch.Size([2, 16, 1, 8]))

    Reference:
        Rae, Potapenko, Jayakumar and Lillicrap, "Compressive Transformers for Long-Range Sequence
        Modelling", ICLR 2020, arXiv:1911.05507. Key: rae2019compressive.
    """

    choices = Choices(
        transition="none", gate="none", memory="window", normaliser="softmax", steps="linear"
    )
    in_laws: ClassVar[Mapping[str, Any]] = {"segment": 2, "ratio": 2}

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        segment: int = 64,
        memory: int | None = None,
        compressed: int | None = None,
        ratio: int = 4,
        compression: Literal["conv", "dilated", "mean", "max", "used"] = "conv",
        reconstruct: bool = True,
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient, replay)
        check_positive_int("CompressiveTransformer", n_heads=self.n_heads, ratio=ratio)
        kinds = ("conv", "dilated", "mean", "max", "used")
        check_in("CompressiveTransformer", "compression", compression, kinds)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        self.memory = segment if memory is None else memory
        check_positive_int("CompressiveTransformer", d_head=self.d_head, memory=self.memory)
        self.compressed = self.memory if compressed is None else compressed
        self.ratio, self.compression, self.reconstruct = ratio, compression, reconstruct
        self._check_rows()
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.place = RelativePositions(d_model, self.n_heads, self.d_head, **to)
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=False, **to)
        self._by_use = compression == "used" and self.compressed > 0
        if self._by_use:
            self.declared = _CHOICE  # type: ignore[misc]
        if compression in ("conv", "dilated") and self.compressed:
            self.fewer = Linear(ratio * d_model, d_model, **to)  # rows side by side
        self.reset_parameters()

    def _check_rows(self) -> None:
        where, is_integer = "CompressiveTransformer", isinstance(self.compressed, int)
        if not is_integer or isinstance(self.compressed, bool) or self.compressed < 0:
            got = f"got {self.compressed!r}."
            raise ArgumentError(f"{where}: compressed must be an integer of at least 0, {got}")
        if self.memory % self.segment:
            raise ArgumentError(
                f"{where}: memory must be a multiple of segment={self.segment}, got {self.memory}."
            )
        if self.segment % self.ratio and self.compressed:
            raise ArgumentError(
                f"{where}: ratio must divide segment={self.segment}, got {self.ratio}."
            )

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.place.proj, self.o_proj)
        for bias in (self.place.u, self.place.w):
            nn.init.normal_(bias, std=0.02)
        if hasattr(self, "fewer"):
            lecun_normal(self.fewer)
            nn.init.zeros_(self.fewer.bias)

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: rows of M, keys and values of M and C; use of M."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        m, c = (real(rows=rows, **entry) for rows in (self.memory, self.compressed))
        rows = real(rows=self.memory, d_model=self.d_model)
        use = {"m_use": real(rows=self.memory)} if self._by_use else {}
        return {"m": rows, "m_k": m, "m_v": m, "c_k": c, "c_v": c, **use}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: inputs, keys and values; of "used" queries as well."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        queries = {"near": part, "far": part} if self._by_use else {}
        return {"x": real(d_model=self.d_model), "k": part, "v": part, **queries}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return f"{self.segment} {self.ratio} {self.compression}"

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`: of keys, values and distances, and of f, alone or not."""
        _, w_k, w_v = self.heads.rows()
        compression = tuple(parameters_of(self.fewer)) if hasattr(self, "fewer") else ()
        of_keys = w_k, w_v, self.place.weight(w_k)
        return (*of_keys, *(w.detach() if self._learns_alone() else w for w in compression))

    def _learns_alone(self) -> bool:
        """Whether f learns from a separate loss."""
        return self.reconstruct and hasattr(self, "fewer") and self.asks_for_loss()

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`; the position says how much of the memory is there."""
        q, k, v = self.heads(x)
        queries = self.place.queries(wide(q))
        return (*queries, position), (x, k, v, *(queries if self._by_use else ()))

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        near, p, position = q
        k = torch.cat([memory[3], memory[1], entries[1]], 1)
        v = torch.cat([memory[4], memory[2], entries[2]], 1)
        visible = _visible(mode, position[:, 0], age, memory, entries[1].shape[1])
        if p.shape[1] > 1 and visible is not None:
            far = distance_keys(weights[2], p.shape[2], k.shape[1])
            near, p, k, v = (z.transpose(1, 2) for z in (near, p, k, v))  # (B, H, Q or S, K)
            return relative(near, p, k, v, far, visible).transpose(1, 2)
        far = distance_scores(p, weights[2], k.shape[1])
        if age is not None:  # the last entry is that of the step, wherever in its segment
            far = _moved(far, entries[1].shape[1] - 1 - position % int(mode.split()[0]), memory)
        return softmax_read(near, k, v, visible, far)

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        (n, ratio, kind), (m, c) = mode.split(), (memory[0].shape[1], memory[3].shape[1])
        every = [torch.cat(z, 1) for z in zip(memory[:3], entries[:3], strict=True)]
        recent = [z[:, int(n) :] for z in every]
        if c == 0:
            return (*recent, *memory[3:])
        fewer = every[0][:, : int(n)]
        use: Tensors = ()
        if kind == "used":
            total = memory[5] + _use(mode, entries, memory, weights[2], number)
            fewer = _most_used(fewer, total[:, : int(n)], int(n) // int(ratio))
            use = (F.pad(total[:, int(n) :], (0, int(n))),)
        else:
            fewer = _compressed(mode, fewer, weights[3:])
        fewer = torch.where((number >= m // int(n))[:, None, None], fewer, 0)  # of rows that were
        new = [(fewer @ w.mT).unflatten(-1, memory[3].shape[2:]) for w in weights[:2]]
        longer = (torch.cat(z, 1)[:, -c:] for z in zip(memory[3:5], new, strict=True))
        return (*recent, *longer, *use)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        if self._learns_alone():
            self.add_loss(self._reconstruction(x, state, reset))
        return super()._read(x, state, reset)

    def _reconstruction(self, x: Tensor, state: Any, reset: Tensor | None) -> Tensor:
        """The loss of f, a function of its weights alone."""
        n, m = self.segment, self.memory
        position = positions(state["position"], x.shape[1], reset)
        inputs = wide(x.to(self._parameter().dtype))
        rows = torch.cat([state["memory"]["m"], state["begun"]["x"], inputs], 1).detach()
        ends = (position % n == n - 1) & (position >= m + n - 1)
        row, step = (z[:, None] for z in ends.nonzero().unbind(1))
        step = step + torch.arange(1 - n, 1, device=x.device)  # of each segment, from the call's
        begun = (state["position"] % n)[row]
        h, o = (
            rows[row, torch.where(s >= -begun, m + n - 1 + s, m + begun + s)]
            for s in (step, step - m)
        )
        w_q, w_k, w_v = (wide(w.detach()) for w in self.heads.rows())
        with without_autocast(x.device):
            q, shape = (h @ w_q.mT).unflatten(-1, (self.n_heads, -1)), (self.n_heads, -1)
            f = [wide(w) for w in parameters_of(self.fewer)]
            reads = []
            for z in (o, _compressed(self.mode, o, f)):
                k, v = ((z @ w.mT).unflatten(-1, shape) for w in (w_k, w_v))
                reads.append(softmax_over(q, k, v))
        return (reads[0] - reads[1]).square().sum() / (position.numel() * w_v.shape[0])


def _visible(
    mode: str, position: Tensor, age: Age, memory: Tensors, n_entries: int
) -> Tensor | None:
    """Which rows of C, of M and entries each query sees, (B, Q, S); None: all."""
    m, c, (n, ratio) = memory[1].shape[1], memory[3].shape[1], map(int, mode.split()[:2])
    if age is None and int(position.min()) // n * n >= m + c * ratio:
        return None
    occupied = _occupied(mode, position, c, m)[:, None]
    if age is None:
        return F.pad(occupied, (0, n_entries), value=True)
    entries_visible = (age >= 0).expand(occupied.shape[0], -1, -1)
    return torch.cat([occupied.expand(-1, age.shape[1], -1), entries_visible], -1)


def _moved(far: Tensor, early: Tensor, memory: Tensors) -> Tensor:
    """Scores of distances (B, H, 1, S) for entries, moved by ``early`` (B, 1) missing ones."""
    row = torch.arange(far.shape[-1], device=far.device)
    row = torch.where(row < memory[1].shape[1] + memory[3].shape[1], row + early, row)
    return far.gather(-1, row[:, None, None].expand_as(far))


def _use(mode: str, entries: Tensors, memory: Tensors, turn: Tensor, number: Tensor) -> Tensor:
    """How much the steps of a segment looked at each row of M, (B, m)."""
    _, k, _, near, p = entries
    n, c, m = k.shape[1], memory[3].shape[1], memory[0].shape[1]
    step = torch.arange(n, device=k.device)
    visible = _visible(mode, number * n, (step[:, None] - step)[None], memory, n)
    assert visible is not None
    far = distance_keys(turn, k.shape[2], c + m + n)
    k = torch.cat([memory[3], memory[1], k], 1)
    near, p, k = (z.transpose(1, 2) for z in (near, p, k))  # (B, H, n or S, K)
    return relative_weights(near, p, k, far, visible)[..., c : c + m].sum((1, 2))


def _most_used(o: Tensor, use: Tensor, count: int) -> Tensor:
    """The rows of ``o`` (B, n, d_model) of most use (B, n), in their order."""
    place = use.topk(count, -1).indices.sort(-1).values
    return gathered(o, place)


def _occupied(mode: str, position: Tensor, c: int, m: int) -> Tensor:
    """Which rows of C and M hold something, (B, c + m), for segments that ``position`` is in."""
    n, ratio = (int(word) for word in mode.split()[:2])
    preceding = position // n * n
    left = (preceding - m).clamp(min=0) // ratio
    row = torch.arange(c + m, device=position.device)
    return row >= torch.where(row < c, c - left[:, None], c + m - preceding[:, None])


def _compressed(mode: str, o: Tensor, weights: Tensors) -> Tensor:
    """Fewer rows (..., n / ratio, d_model) instead of ``o`` (..., n, d_model)."""
    n, ratio, kind = mode.split()
    if kind == "dilated":
        place = torch.arange(0, int(n), int(ratio), device=o.device)[:, None]
        place = place + torch.arange(0, 2 * int(ratio), 2, device=o.device)
        o = F.pad(o, (0, 0, int(ratio) - 1, 0))[..., place, :]
    else:
        o = o.unflatten(-2, (-1, int(ratio)))
    if kind in ("conv", "dilated"):
        return half_linear(o.flatten(-2), *weights)
    return o.mean(-2) if kind == "mean" else o.amax(-2)
