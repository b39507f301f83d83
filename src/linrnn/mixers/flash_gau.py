"""FLASH of the GAU paper: gated attention units that see earlier chunks by linear attention."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import without_autocast
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.gated_unit import GatedUnit
from linrnn.nn.kv_cache import cache_of, check_cache
from linrnn.ops.attention import positions
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real


class FlashGAU(GatedUnit):
    r"""FLASH, not FlashAttention: gated attention in chunks plus linear attention across them.

    Equation:
        r_t, v_t, z_t = silu(W_r x_t), silu(W_v x_t), silu(W_z x_t)    in R^e, R^e, R^s
        q_t, k_t, q'_t, k'_t = gamma_i * z_t + beta_i                  i = 1..4
        a_ts = relu((R^t q_t) . (R^s k_s) / C + (R^t b_1) . (R^s b_2))^2
        M = 1/C sum over the steps s of all earlier chunks of (R^s k'_s) v_s^T
        y_t = W_o (r_t * (sum over s <= t of its chunk of a_ts v_s + M^T R^t q'_t))
        Chunks are the steps 0..C-1, C..2C-1, ... of a sequence, C = chunk, also in a stream. R and
        everything else is as in `GAU` with n = C; "scaled" gamma_3 = gamma_4 = sqrt(1 / 0.36 / s).

    Args:
        d_inner: channels of gate and values. Default: 2 d_model.
        d_key, rotary, relative_bias, base, init, attention, bias: as in `GAU`.
        buckets, table: learned biases of distances, as in `GAU`. Default: none.
        chunk: steps of a chunk.

    Departures from the paper:
        As `GAU`. M is the difference of two sums of a length that grows with the sequence, as is M
        itself: what divides them or M is left to the norm of the next layer.

    Example:
        >>> y, state = FlashGAU(d_model=4, chunk=16, d_key=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["k"].shape, state["memory"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 15, 8]), torch.Size([2, 8, 8]))

    Reference:
        Hua et al., "Transformer Quality in Linear Time", ICML 2022, arXiv:2202.10447.
        Key: hua2022transformer.
    """

    aliases: ClassVar[tuple[str, ...]] = ("flash",)

    weight_parameters: ClassVar[tuple[str, ...]] = ("W_in", "W_out")

    choices = Choices(transition="identity", gate="none", memory="matrix", output="gated")

    n_maps: ClassVar[int] = 4

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        d_key: int = 128,
        chunk: int = 256,
        rotary: bool = True,
        relative_bias: bool = True,
        base: float = 10_000.0,
        init: Literal["scaled", "published"] = "scaled",
        attention: Literal["relu_squared", "laplace"] = "relu_squared",
        bias: bool = False,
        buckets: int | None = None,
        table: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_positive_int("FlashGAU", chunk=chunk)
        scores = d_inner, d_key, chunk, rotary, relative_bias, chunk, base, init
        options = attention, bias, buckets, table
        super().__init__(d_model, *scores, *options, device, dtype)
        self.chunk = chunk

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: of `GAU`, and C M over all steps, and over those of the chunk."""
        sums = real(d_key=self.d_key, d_inner=self.d_inner)
        return {**super().state_spec(), "memory": sums, "chunk": sums}

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("FlashGAU", state)
        position = positions(state["position"], x.shape[1], reset)
        r, v, (q, k, q_far, k_far) = self._project_in(x, position)
        earlier, sums = self._earlier(q_far, k_far, v, position, state, reset)
        # (B, S, d_key), (B, S, d_inner)
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        mixed = self._attend(q, k, v, position % self.chunk) + earlier  # (B, T, d_inner)
        last = cache_of(k, v, position, reset, self.chunk)
        return self._project_out(r, mixed), {**last, **sums}

    def _earlier(
        self, q: Tensor, k: Tensor, v: Tensor, position: Tensor, state: Any, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Output of the earlier chunks: that of all steps so far, less that of this chunk."""
        # chunks begin anywhere in a row, at other places in each; a sum begins anew at any step
        begin, scale = position % self.chunk == 0, 1 / self.chunk
        q, k, v = (z.unsqueeze(2) for z in (q, k, v))  # (B, T, 1, d_key or d_inner)
        with without_autocast(q.device):
            (every, memory), (within, chunk) = (
                outer_scan(q, k, v, None, state[name][:, None], scale=scale, reset=mask)
                for name, mask in (("memory", reset), ("chunk", begin))
            )
            # before any chunk has ended that is nothing, in whichever order a kernel adds
            earlier = torch.where((position >= self.chunk)[..., None], (every - within)[:, :, 0], 0)
        return earlier, {"memory": memory[:, 0], "chunk": chunk[:, 0]}
