"""Attention with bounded-memory control: softmax over time fills slots, one over slots reads."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.slots import slots_spec
from linrnn.nn import GatedOut, Heads, default_heads, rotate
from linrnn.nn.memories import read_slots
from linrnn.ops.attention import positions
from linrnn.ops.linear.weighted_mean import EMPTY, softmax_of_past
from linrnn.state_spec import Part, integer, real


class ABC(Mixer):
    r"""Attention with bounded memory control (ABC): attention over a fixed number of slots.

    Equation:
        q, k, v = W_q x_t, W_k x_t, W_v x_t                             in each head
        s_t = W_s x_t, within +-clip                                    in R^slots
        K_t = sum over i <= t of exp(s_i) k_i^T / sum over i <= t of exp(s_i)     (slots, d_key)
        V_t the same with v                                                      (slots, d_value)
        o_t = V_t^T softmax(K_t q_t / sqrt(d_key))
        y_t = W_o (silu(W_g x_t) * concat over heads of o_t / sqrt(mean(o_t^2) + norm_eps))
        With ``rotary`` q and k are turned by their position before. Initially as torch.nn.Linear.

    Args:
        n_heads: heads. Default: 4, fewer if they had less than 16 of d_model channels each.
        d_key: channels of a head's keys, even with rotary. Default: d_model / (2 n_heads), up to
            an even number.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        slots: of each head. Default: d_key.
        clip: bound of s.
        rotary: turn queries and keys, as published since.
        norm_eps: of the norm of each head.

    Departures from the paper:
        Extension beyond the survey. This is the form of the paper in which the input controls the
        slots, with the gate and the norm of its later public code. The norm has no weights: those
        of W_o are the same.

    Example:
        >>> y, state = ABC(d_model=8, n_heads=2, slots=3)(torch.randn(2, 100, 8))
        >>> y.shape, state["keys"].shape, state["log_norm"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 2, 3]), torch.Size([2, 2, 3]))

    Reference:
        Peng et al., "ABC: Attention with Bounded-memory Control", ACL 2022, arXiv:2110.02488.
        Key: peng2022abc.
    """

    family: ClassVar[str] = "linear-attention"
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    choices = Choices(
        transition="diagonal",
        gate="input",
        memory="matrix",
        normaliser="softmax",
        steps="staged",
        output="gated",
    )

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        slots: int | None = None,
        clip: float = 32.0,
        rotary: bool = True,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        n_heads = default_heads(d_model, 4) if n_heads is None else n_heads
        check_positive_int("ABC", n_heads=n_heads)
        check_positive("ABC", clip=clip, norm_eps=norm_eps)
        self.n_heads, self.clip, self.rotary, self.norm_eps = n_heads, clip, rotary, norm_eps
        self.d_key = 2 * -(-d_model // (4 * n_heads)) if d_key is None else d_key
        self.d_value = -(-d_model // n_heads) if d_value is None else d_value
        self.slots = self.d_key if slots is None else slots
        check_positive_int("ABC", d_key=self.d_key, d_value=self.d_value, slots=self.slots)
        if rotary and self.d_key % 2:
            raise ArgumentError(
                f"ABC: d_key must be even with rotary, which turns pairs, got {self.d_key}."
            )
        to: Any = {"device": device, "dtype": dtype}
        sizes = (self.d_key, self.d_key, self.d_value, self.slots)
        self.heads = Heads(d_model, n_heads, sizes, **to)
        self.out = GatedOut(d_model, n_heads, self.d_value, eps=norm_eps, **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: slots, the logarithm of their sums of weights, the position."""
        slots = slots_spec(self.n_heads, self.slots, self.d_key, self.d_value)
        log_norm = real(n_heads=self.n_heads, slots=self.slots, start=EMPTY)
        return {**slots, "log_norm": log_norm, **({"position": integer()} if self.rotary else {})}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v, s = (wide(z) for z in self.heads(x))  # (B, T, H, K or V or slots)
        more = {}
        if self.rotary:
            position = positions(state["position"], x.shape[1], reset)
            q, k = rotate(q, position), rotate(k, position)
            more["position"] = position[:, -1] + 1
        s = s.clamp(-self.clip, self.clip)
        with without_autocast(x.device):
            g, write, more["log_norm"] = softmax_of_past(s, state["log_norm"], reset)
            scale = self.d_key**-0.5
            o, slots = read_slots(q, k, v, write, g, state, scale=scale, reset=reset)
        return self.out(o, x), {**slots, **more}
