"""Block-state attention: blocks that see what a state space has made of all before them."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn import mixers
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import Heads, empty_parameters, lecun_normal, rotate
from linrnn.nn.linear import Linear
from linrnn.nn.rotary import check_rotary
from linrnn.ops.attention import softmax_over, softmax_read
from linrnn.ops.attention.segments import Age, Tensors, seen
from linrnn.state_spec import Part, real

_CONTEXTS = ("single_head", "multi_head", "multi_filter")


class BlockState(SegmentMixer):
    r"""Block-state attention: softmax in a block and to states of a state-space model before it.

    Equation:
        e_t = (any layer of this library, over all steps)(x)_t
        q_t, q'_t, k_t, v_t = W x_t in R^{d_head} for each head
        y_t = W_o [softmax over s <= t of t's block of (R^t q_t) . (R^s k_s) / sqrt(d_head), of v_s;
                   softmax over contexts j of q'_t . W_k c_j / sqrt(d_head), of W_v c_j]
        the contexts c_1 .. c_N of a block that begins with step b are
        e_{b-N} .. e_{b-1}, of the block before it          "single_head"
        U_j e_{b-1} + id_j                                  "multi_head"
        e^j_{b-1} + id_j, e^1 .. e^N the channels of one
        layer of width N d_model that reads N copies of x   "multi_filter"
        In the first block keys and values of contexts are 0. Blocks have ``segment`` steps, counted
        from the last reset; R turns pairs of channels, see `linrnn.nn.rotate`. All blocks are read
        at once. Initially weights are N(0, 1 / fan_in), id N(0, 1).

    Args:
        ssm: the layer that makes e, by name, with its default options: a causal one whose state
            does not grow.
        context: "single_head", "multi_head" or "multi_filter".
        n_context: N; of "single_head" at most ``segment``.
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head, an even number. Default: d_model / n_heads, rounded up to one.
        segment: steps of a block.
        memory_gradient: gradients pass through this many contexts: they end before each block whose
            number, from 0, divides by one more; those through the layer's state do not. Default:
            they never end.

    Departures from the paper:
        Turned queries and keys instead of a relative bias. The paper leaves open what is used
        as the context of a first block. Norms, residual and feed-forward network belong to the
        block around a mixer, so the state space reads the normed input as well.

    Example:
        >>> y, state = BlockState(d_model=8, n_context=3, segment=16)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"]["k"].shape, state["ssm"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 3, 1, 8]), torch.Size([2, 8, 32]))

    Reference:
        Fathi et al., "Block-State Transformers", NeurIPS 2023, arXiv:2306.09539.
        Key: fathi2023block.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("id", "read_out")

    choices = Choices(
        transition="complex diagonal", gate="learned", memory="systems", normaliser="softmax"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "parallel"
    independent: ClassVar[bool] = True

    def __init__(
        self,
        d_model: int,
        *,
        ssm: str = "s4d",
        context: Literal["single_head", "multi_head", "multi_filter"] = "multi_head",
        n_context: int = 8,
        n_heads: int | None = None,
        d_head: int | None = None,
        segment: int = 64,
        memory_gradient: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.context, self.n_context = d_model, context, n_context
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        self.set_segments(segment, memory_gradient)
        check_positive_int("BlockState", n_heads=self.n_heads, n_context=n_context)
        check_in("BlockState", "context", context, _CONTEXTS)
        self.d_head = 2 * -(-d_model // (2 * self.n_heads)) if d_head is None else d_head
        check_positive_int("BlockState", d_head=self.d_head)
        check_rotary("BlockState", self.d_head, self.d_head)
        to: Any = {"device": device, "dtype": dtype}
        self._copies = n_context if context == "multi_filter" else 1
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 4, **to)
        self.context_heads = Heads(d_model, self.n_heads, (self.d_head,) * 2, **to)
        self.o_proj = Linear(2 * self.n_heads * self.d_head, d_model, bias=False, **to)
        self.ssm = ssm
        self.layer = mixers.build(ssm, self._copies * d_model, **to)
        self._check_layer()
        single, empty = context == "single_head", empty_parameters(device, dtype)
        self.id = None if single else empty(n_context, d_model)
        self.read_out = empty(n_context * d_model, d_model) if context == "multi_head" else None
        self.reset_parameters()

    def _check_layer(self) -> None:
        layer = self.layer
        if not layer.causal or "constant_memory" in layer.declared:
            raise ArgumentError(
                "BlockState: ssm must name a causal layer whose state does not grow, got "
                f"{self.ssm!r}. Take 's4d', 's5' or 'lru'."
            )
        self.cost = layer.cost  # type: ignore[misc]
        self.constant_state = (*type(self).constant_state, *layer.constant_state)  # type: ignore[misc]
        self.declared = layer.declared  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.context_heads.proj, self.o_proj)
        if self.id is not None:
            nn.init.normal_(self.id)
        if self.read_out is not None:
            nn.init.normal_(self.read_out, std=self.d_model**-0.5)
        self.layer.reset_parameters()  # type: ignore[operator]

    def memory_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.memory_spec`: keys and values of the contexts."""
        N = self.n_context
        N = min(N, self.segment) if self.context == "single_head" else N
        part = real(n_context=N, n_heads=self.n_heads, d_head=self.d_head)
        return {"k": part, "v": part}

    def entry_spec(self) -> dict[str, Part]:
        """See `SegmentMixer.entry_spec`: turned keys, values, and e."""
        part = real(n_heads=self.n_heads, d_head=self.d_head)
        return {"k": part, "v": part, "e": real(d_context=self._copies * self.d_model)}

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: as of all layers of segments, and the state of ``ssm``."""
        return {**super().state_spec(), "ssm": self.layer.state_spec()}

    @property
    def mode(self) -> str:
        """See `SegmentMixer.mode`."""
        return self.context

    def weights(self) -> Tensors:
        """See `SegmentMixer.weights`."""
        parameters = (self.context_heads.proj.weight, self.id, self.read_out)
        return [weight for weight in parameters if weight is not None]

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.o_proj.weight.dtype)
        inputs = x.repeat(1, 1, self._copies)  # (B, T, copies d_model)
        if x.shape[1] == 1 and reset is None:
            e, last = self.layer.step(inputs[:, 0], state["ssm"])
            e = e[:, None]
        else:
            e, last = self.layer(inputs, state["ssm"], reset=reset)
        y, state = super()._read(torch.cat([x, e], -1), state, reset)  # y: (B, T, d_model)
        return y, {**state, "ssm": last}

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """See `SegmentMixer.tokens`; behind x stands e."""
        x, e = x[..., : self.d_model], x[..., self.d_model :]
        every = self.heads.stacked(x)  # q, q', k, v; (B, T, 4, H, K)
        q, k = rotate(every[:, :, ::2], position % self.segment).unbind(2)
        return (torch.cat([q, every[:, :, 1]], 2),), (k, every[:, :, 3], e)

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        near, far = q[0].chunk(2, 2)  # (B, Q, H, K)
        local = softmax_read(near, entries[0], entries[1], seen(age))
        return torch.cat([local, softmax_over(far, *memory)], 2)

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        e, (count, *shape) = entries[2], memory[0].shape[1:]
        if mode == "single_head":
            c = e[:, e.shape[1] - count :]
        elif mode == "multi_head":
            c = F.linear(e[:, -1], weights[2]).unflatten(-1, (count, -1)) + weights[1]
        else:
            c = e[:, -1].unflatten(-1, (count, -1)) + weights[1]
        return tuple(z.unflatten(-1, shape) for z in (c @ weights[0].mT).chunk(2, -1))
