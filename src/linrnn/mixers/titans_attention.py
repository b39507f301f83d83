"""Titans with attention: the memory gates attention with a window, or stands before it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn import mixers
from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import HeadNorm


class TitansAttention(Mixer):
    r"""Titans' memory with windowed attention: as its gate (MAG) or after it (MAL).

    Equation:
        m_t = the layer `titans`,   a_t = the layer `attention` with a window
        y_t = norm_a(a_t) * sigmoid(norm_m(m_t))       both read x                  "gate", MAG
        y_t = a_t,   of attention that reads m                                      "layer", MAL
        norm is z / sqrt(mean(z^2) + norm_eps) times a weight. Initially weights of norms are 1, and
        the two layers begin as they do alone.

    Args:
        arrangement: "gate" or "layer".
        window: steps that attention sees, the current one included.
        n_heads: heads of both. Default: d_model / 64, at least one.
        depth, expand, mini_batch, rate_max: of the memory, see `titans`.
        norm_eps: of the norms.

    Departures from the paper:
        Extension beyond the survey. There are no persistent tokens in front of the sequence. Each
        layer has its map of the output. The paper leaves the nonlinearity of the gate open. MAC,
        whose segments attend to what they read of the memory, is not there: the paper does not say
        which of these a token sees.

    Example:
        >>> layer = TitansAttention(d_model=8, window=16)
        >>> y, state = layer(torch.randn(2, 100, 8))
        >>> y.shape, state["attention"]["k"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 15, 1, 8]))

    Reference:
        Behrouz, Zhong and Mirrokni, "Titans: Learning to Memorize at Test Time", 2025,
        arXiv:2501.00663. Key: behrouz2025titans.
    """

    family: ClassVar[str] = "test-time"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    in_laws: ClassVar[Mapping[str, Any]] = {"mini_batch": 4, "window": 4}
    choices = Choices(
        transition="gradient",
        gate="state",
        memory="network",
        normaliser="softmax",
        steps="nonlinear",
        output="gated",
    )

    def __init__(
        self,
        d_model: int,
        *,
        arrangement: Literal["gate", "layer"] = "gate",
        window: int = 64,
        n_heads: int | None = None,
        depth: int = 2,
        expand: int = 2,
        mini_batch: int = 16,
        rate_max: float = 0.02,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.arrangement, self.window = d_model, arrangement, window
        self.depth, self.expand, self.mini_batch = depth, expand, mini_batch
        self.rate_max, self.norm_eps = rate_max, norm_eps
        check_in("TitansAttention", "arrangement", arrangement, ("gate", "layer"))
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("TitansAttention", n_heads=self.n_heads, window=window)
        to: Any = {"device": device, "dtype": dtype}
        memory: Any = {"depth": depth, "expand": expand, "mini_batch": mini_batch}
        memory |= {"rate_max": rate_max, "n_heads": self.n_heads, "norm_eps": norm_eps}
        self.memory = mixers.build("titans", d_model, memory, **to)
        near = {"window": window, "n_heads": self.n_heads}
        self.attention = mixers.build("attention", d_model, near, **to)
        self.memory_norm = self.attention_norm = None
        if arrangement == "gate":
            norm: Any = {"norm": "rms", "eps": norm_eps, **to}
            self.memory_norm, self.attention_norm = (HeadNorm(1, d_model, **norm) for _ in range(2))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        parts: Any = (self.memory, self.attention, self.memory_norm, self.attention_norm)
        for part in parts:
            if part is not None:
                part.reset_parameters()

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: those of both layers."""
        return {"memory": self.memory.state_spec(), "attention": self.attention.state_spec()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        memory, learned = self.memory(x, state["memory"], reset=reset)
        if self.memory_norm is None or self.attention_norm is None:
            y, recent = self.attention(memory, state["attention"], reset=reset)
            return y, {"memory": learned, "attention": recent}
        near, recent = self.attention(x, state["attention"], reset=reset)
        with without_autocast(x.device):
            near, memory = wide(near)[..., None, :], wide(memory)[..., None, :]  # (B, T, 1, D)
            y = self.attention_norm(near) * self.memory_norm(memory).sigmoid()  # (B, T, D)
        return y, {"memory": learned, "attention": recent}
