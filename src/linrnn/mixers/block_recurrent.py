"""Block-recurrent transformer: a bank of states beside a sliding window."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.modes import eager, transformed
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, head_norm, l2_normalise, lecun_normal
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import parameters_of
from linrnn.ops.attention.segments import Age, Tensors
from linrnn.state_spec import Part, real


class BlockRecurrent(SegmentMixer):
    r"""Block-recurrent attention: sliding-window attention with state vectors read and updated.

    Equation:
        q, q', k, v of tokens and of states in R^{d_head} for each head, W_x x_t and
        W_c (norm(c_i) + id_i); q, q', k have length 1, and scores are s_h times their product
        y_t = W_o [sum over the last n steps of softmax(q_t . k_s + b_{t-s}) v_s ;
                   sum over states of softmax(q'_t . k_j) v_j]
        When a segment of n steps has ended, with the states before it:
        h_i = [sum over states of softmax(q_i . k_j) v_j ;
               sum over the last 2 n tokens of softmax(q'_i . k_s) v_s]
        z = W_z h + b_z;  c <- gate(c, z)                                            "skip"
        c <- gate(c, z), z = W_2 gelu(W_1 h), of which "fixed" takes the tanh        "single"
        c <- gate(c, W_z h + b_z), then c <- gate'(c, W_2 u), u = gelu(W_1 norm(c))  "dual"
        gate(c, z) = c * g + z * (1 - g),  g = sigmoid(b_g)                          "fixed"
        gate(c, z) = c * sigmoid(W_f h + b_f + 1) + tanh(z) * sigmoid(W_i h + b_i - 1)   "lstm"
        gate' reads u instead of h. Initially c and b_g are N(0, 0.1^2), id N(0, 1), s_h = 1,
        b = 0, weights N(0, 1 / fan_in), those of gates N(0, 0.01 / fan_in).

    Args:
        n_states: states of the bank.
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        d_inner: width of W_1. Default: 4 d_model.
        segment: n, counted from the last reset.
        gate: "fixed" or "lstm".
        update: "skip", "single" or "dual".
        memory_gradient: gradients pass through this many memories: they end before every segment
            whose number, from 0, divides by one more. Default: they never end.
        replay: compute segments once more for the backward pass, which keeps memories alone.

    Departures from the paper:
        The relative bias has an entry for each distance, where the paper's shares them among far
        ones. Norms have no weights, and 1e-6 under the root; that of a state comes before id is
        added. Residual, norm and feed-forward network of the tokens belong to the block.

    Example:
        >>> y, state = BlockRecurrent(d_model=8, n_states=5, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["c"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 5, 8]))

    Reference:
        Hutchins et al., "Block-Recurrent Transformers", NeurIPS 2022, arXiv:2203.07852.
        Key: hutchins2022block.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("id",)

    choices = Choices(
        transition="attention",
        gate="learned",
        memory="vector",
        normaliser="convex",
        steps="nonlinear",
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_states: int = 16,
        n_heads: int | None = None,
        d_head: int | None = None,
        d_inner: int | None = None,
        segment: int = 64,
        gate: Literal["fixed", "lstm"] = "fixed",
        update: Literal["skip", "single", "dual"] = "skip",
        memory_gradient: int | None = None,
        replay: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_states, self.gate, self.update = d_model, n_states, gate, update
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient, replay)
        check_in("BlockRecurrent", "gate", gate, ("fixed", "lstm"))
        check_in("BlockRecurrent", "update", update, ("skip", "single", "dual"))
        self.d_inner = 4 * d_model if d_inner is None else d_inner
        check_positive_int(
            "BlockRecurrent", n_states=n_states, n_heads=self.n_heads, d_inner=self.d_inner
        )
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int("BlockRecurrent", d_head=self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        self.heads, self.state_heads = (
            Heads(d_model, self.n_heads, (self.d_head,) * 4, **to) for _ in range(2)
        )
        both = 2 * self.n_heads * self.d_head
        self.o_proj = Linear(both, d_model, bias=False, **to)
        self.first, self.id = (nn.Parameter(torch.empty(n_states, d_model, **to)) for _ in range(2))
        self.scale = nn.Parameter(torch.empty(4, self.n_heads, **to))
        self.bias = nn.Parameter(torch.empty(self.n_heads, segment, **to))
        self.states = _StateUpdate(d_model, both, self.d_inner, gate, update, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.state_heads.proj, self.o_proj)
        nn.init.normal_(self.first, std=0.1)
        nn.init.normal_(self.id)
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.bias)
        self.states.reset_parameters()

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: states, what tokens see of them, and the last segment."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        state_heads, previous = (
            real(n_states=self.n_states, **entry),
            real(steps=self.segment, **entry),
        )
        c = real(n_states=self.n_states, d_model=self.d_model)
        return {
            "c": c,
            "k": state_heads,
            "v": state_heads,
            "before_k": previous,
            "before_v": previous,
        }

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        return {"k": part, "v": part}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return f"{self.update} {self.gate}"

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        parameters = (self.first, self.id, self.scale, self.bias, self.state_heads.proj.weight)
        return (*parameters, *parameters_of(self.states))

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`; the position says whether there is a segment before."""
        heads = self.heads.proj(x.to(self.heads.proj.weight.dtype)).unflatten(-1, (-1, self.d_head))
        both, k, v = heads.split([2 * self.n_heads, self.n_heads, self.n_heads], 2)
        scale = self.scale[:2].flatten()[:, None]  # (2 H, 1)
        return (l2_normalise(both, scale=scale), position), (l2_normalise(k), v)

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        (near, far), n, steps = q[0].chunk(2, 2), weights[3].shape[1], entries[0].shape[1]
        number, step = q[1][:, 0] // n, q[1] % n
        k_c, v_c, *previous, k, v = (z.transpose(1, 2) for z in (*memory[1:], *entries))
        same_place = _in_same_place(number, step, age)
        if same_place:  # what is too far from the first query is no query's
            previous = [z[:, :, steps - step.shape[1] + 1 :] for z in previous]
        if not same_place or number[0]:  # else there is no segment before
            k, v = torch.cat([previous[0], k], 2), torch.cat([previous[1], v], 2)
        if same_place:
            bias = _by_distance(weights[3], step.shape[1], k.shape[2])
        else:
            if age is None:
                age = torch.arange(steps - 1, -1, -1, device=k.device)[None, None]
            bias = _by_place(weights[3], age, number, step)
        local = _read(near.transpose(1, 2), k, v, bias)
        read = _read(far.transpose(1, 2), k_c, v_c, None)
        return torch.cat([local.transpose(1, 2), read.transpose(1, 2)], 2)

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        c, shape, scale = memory[0], memory[1].shape[2:], weights[2][2:, :, None]
        q, far, _, _ = _projected(c, weights, shape)
        q, far = ((z * s).transpose(1, 2) for z, s in zip((q, far), scale, strict=True))
        k_c, v_c, *tokens = (z.transpose(1, 2) for z in (*memory[1:], *entries))
        # the segment before and this one, side by side in scores alone
        scores = [far @ k.mT for k in tokens[::2]]  # (B, H, N, S) each
        none = (number == 0)[:, None, None, None]  # before the first is none
        scores[0] = torch.where(none, float("-inf"), scores[0])
        weight = torch.cat(scores, -1).softmax(-1).split([z.shape[-1] for z in scores], -1)
        read = weight[0] @ tokens[1] + weight[1] @ tokens[3]  # (B, H, N, K)
        h = torch.cat([_read(q, k_c, v_c, None), read], 1).transpose(1, 2).flatten(2)
        c = _updated(mode, c, h, weights[5:])
        return (c, *_projected(c, weights, shape)[2:], *entries)

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        c = weights[0].expand_as(memory[0]).clone()
        _, _, k, v = _projected(c, weights, memory[1].shape[2:])
        return (c, k, v, *(torch.zeros_like(h) for h in memory[3:]))


def _in_same_place(number: Tensor, step: Tensor, age: Age) -> bool:
    """Whether one look says that all rows are at the same place of a sequence."""
    if age is not None and (step.shape[1] == 1 or not step.is_cpu or transformed()):
        return False
    if not bool((number == number[0]).all()):
        return False
    return age is None or bool((step == step[:1]).all())


def _by_distance(bias: Tensor, rows: int, size: int) -> Tensor:
    """The bias of the last rows of ``size`` steps, for each step before: (1, H, Q, S)."""
    if rows == 1:
        return bias[:, :size].flip(1)[None, :, None]
    heads, n = bias.shape
    # column c of a row is distance c from the end; one more in front moves each row by one more
    row = F.pad(bias.flip(1), (size + 1 - n, 0))[:, -size - 1 :]
    moved = row[:, None].expand(-1, rows, -1).flatten(1)[:, rows:].view(1, heads, rows, size)
    step = torch.arange(size, device=bias.device)
    distance = step[size - rows :, None] - step
    return torch.where((distance >= 0) & (distance < n), moved, float("-inf"))


def _by_place(bias: Tensor, age: Tensor, number: Tensor, step: Tensor) -> Tensor:
    """The bias of any rows, for the segment before and their own entries: (B, H, Q, S)."""
    n = bias.shape[1]
    # entries of the segment before: seen where there is one, and by steps not too far away
    past = n + step[..., None] - torch.arange(n, device=age.device)
    past = torch.where((past < n) & (number > 0)[:, None, None], past, -1)
    ages = torch.cat([past, age.expand(past.shape[0], -1, -1)], -1)
    place, rows = ages.clamp(min=0), bias.T
    # of so few rows a GPU adds up an embedding's gradient a thousand times faster than an index's
    biases = (rows[place] if rows.is_cpu else F.embedding(place, rows)).permute(0, 3, 1, 2)
    return torch.where((ages >= 0)[:, None], biases, float("-inf"))


def _read(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax attention (B, H, Q, K) with a bias (B or 1, H, Q, S)."""
    scores = q @ k.mT  # (B, H, T, S)
    if bias is not None:
        alone = eager(scores, bias)
        scores = scores.add_(bias) if alone else scores + bias
    outputs: Tensor = scores.softmax(-1) @ v
    return outputs


def _projected(c: Tensor, weights: Tensors, shape: torch.Size) -> list[Tensor]:
    """Both queries, keys and values of states (B, N, d_model)."""
    u = head_norm(c, "layer", 1e-6) + weights[1]  # (B, N, d_model)
    q, far, k, v = (z.unflatten(-1, tuple(shape)) for z in (u @ weights[4].mT).chunk(4, -1))
    return [l2_normalise(q), l2_normalise(far), l2_normalise(k), v]


def _updated(mode: str, c: Tensor, h: Tensor, weights: Tensors) -> Tensor:
    """The states after a segment, of what they have read."""
    (update, gate), matrices = mode.split(), list(weights)
    size = 2 if gate == "lstm" else 1
    outer, inner = matrices[:size], matrices[size if update == "dual" else 0 :][:size]
    if update != "single":
        z, bias = matrices[size if update == "skip" else 2 * size :][:2]
        c = _gated(gate, c, h @ z.mT + bias, h, outer)
    if update == "skip":
        return c
    up, down = matrices[-2:]
    if update == "single":
        z = F.gelu(h @ up.mT) @ down.mT
        return _gated(gate, c, z.tanh() if gate == "fixed" else z, h, inner)
    hidden = F.gelu(head_norm(c, "layer", 1e-6) @ up.mT)
    return _gated(gate, c, hidden @ down.mT, hidden, inner)


def _gated(gate: str, c: Tensor, z: Tensor, read: Tensor, weights: Tensors) -> Tensor:
    """The gated sum of states and new states."""
    if gate == "fixed":
        keep = weights[0].sigmoid()
        return c * keep + z * (1 - keep)
    i, f = (read @ weights[1].mT + weights[0]).chunk(2, -1)  # (B, N, d_model)
    return c * (f + 1).sigmoid() + z.tanh() * (i - 1).sigmoid()


class _StateUpdate(nn.Module):
    """The weights of what is made of states, in the order in which `_updated` takes them."""

    weight_parameters: ClassVar[tuple[str, ...]] = ("gate_weight",)

    def __init__(
        self, d_model: int, width: int, d_inner: int, gate: str, update: str, **to: Any
    ) -> None:
        super().__init__()
        self.gated = gate == "lstm"
        if update != "single":
            self.z = Linear(width, d_model, **to)
            self._gate("gate", width if self.gated else 0, d_model, to)
        if update != "skip":
            reads = d_model if update == "dual" else width
            self.up = Linear(reads, d_inner, bias=False, **to)
            self.down = Linear(d_inner, d_model, bias=False, **to)
            of = d_inner if update == "dual" else width
            self._gate("inner_gate", of if self.gated else 0, d_model, to)

    def _gate(self, name: str, width: int, d_model: int, to: Any) -> None:
        rows = 2 * d_model if self.gated else d_model
        setattr(self, f"{name}_bias", nn.Parameter(torch.empty(rows, **to)))
        if self.gated:
            setattr(self, f"{name}_weight", nn.Parameter(torch.empty(rows, width, **to)))

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter) if name == "z.bias" else nn.init.normal_(
                    parameter, std=0.1
                )
            else:
                small = 0.1 if "gate" in name else 1.0
                nn.init.normal_(parameter, std=small * parameter.shape[1] ** -0.5)
