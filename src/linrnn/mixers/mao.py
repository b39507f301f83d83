"""Mao's decaying fast weights: a matrix whose rows and columns forget."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, uniform
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class Mao(Mixer):
    r"""Decaying fast weights: the memory decays elementwise by an outer product of two gates.

    Equation:
        S_t = (z_t f_t^T) * S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t        S is d_key by d_value
        q, k, v = W_q x, W_k x, W_v x                                     in each head
        z = sigmoid(W_z x + b_z),   f = sigmoid(W_f x + b_f)              d_key and d_value gates
        y_t = W_o o_t
        No feature map, no normaliser. Initially maps are as in `torch.nn.Linear`, and sigmoid(b)
        of each gate uniform on [1/n, 1 - 1/n] with n the gates of its kind in all heads: some hold
        for one step, and some for n.

    Args:
        n_heads: heads. Default: d_model / 64, or 1.
        d_value: channels of a head's values. Default: d_model / n_heads, rounded up.
        d_key: channels of a head's queries and keys. Default: half of d_value, rounded up.

    Departures from the paper:
        The step writes k_t itself; the survey prints it with a gate. Norm and feed-forward layer
        around it belong to the block.

    Example:
        >>> y, state = Mao(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 2, 4]))

    Reference:
        Mao, "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights", EMNLP 2022,
        arXiv:2210.04243. Key: mao2022fine.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="diagonal", gate="input", memory="matrix")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("gates.proj.bias",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_heads = d_model, max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("Mao", n_heads=self.n_heads)
        self.d_value = -(-d_model // self.n_heads) if d_value is None else d_value
        self.d_key = (self.d_value + 1) // 2 if d_key is None else d_key
        check_positive_int("Mao", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        K, V = self.d_key, self.d_value
        self.heads = Heads(d_model, self.n_heads, (K, K, V), **to)
        self.gates = Heads(d_model, self.n_heads, (K, V), bias=True, **to)
        self.out = GatedOut(d_model, self.n_heads, V, norm="none", gate="none", **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.heads, self.gates, self.out):
            part.reset_parameters()
        sizes = [self.n_heads * size for size in self.gates.sizes]
        for bias in self.gates.proj.bias.split(sizes):
            smallest = 1 / max(2, len(bias))
            bias.copy_(torch.special.logit(smallest + (1 - 2 * smallest) * uniform(len(bias))))

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S of every head."""
        return {"memory": real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v = (wide(part) for part in self.heads(x))
        z, f = (F.logsigmoid(wide(part)) for part in self.gates(x))
        with without_autocast(x.device):
            o, memory = outer_scan(q, k, v, z, state["memory"], value_decay=f, reset=reset)
        return self.out(o, x), {"memory": memory}
