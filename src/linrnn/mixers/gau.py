"""Gated attention unit."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.parameters import empty_parameters
from linrnn.nn.rotary import rotate, with_relative
from linrnn.ops import accumulator_dtype
from linrnn.ops.attention import attend, positions
from linrnn.state_spec import Part

_INITS = ("scaled", "published")


class GAU(Mixer):
    r"""Gated attention unit: a gated linear unit whose values are mixed by one squared-ReLU head.

    Equation:
        r_t, v_t, z_t = silu(W_r x_t), silu(W_v x_t), silu(W_z x_t)    in R^e, R^e, R^s
        q_t = gamma_1 * z_t + beta_1,   k_t = gamma_2 * z_t + beta_2
        a_ts = relu((R^t q_t) . (R^s k_s) / n + (R^t b_1) . (R^s b_2))^2    s <= t
        y_t = W_o (r_t * sum_s a_ts v_s)
        R turns the pair of channels (2i, 2i+1) by base^(-2i/s) radians, so the weights depend on
        t - s only. They do not sum to one: n, a constant, bounds them over n steps.
        e = d_inner, s = d_key. Initially beta is 0, and
        "scaled"     W_r, W_v, W_z ~ N(0, 1/d_model), W_o ~ N(0, 1/e),
                     gamma_1 = gamma_2 = sqrt(n^(3/4) / s), b_1 = b_2 ~ N(0, n^(-1/4) / s);
                     without the relative bias gamma is sqrt(1 / 0.36) times that
        "published"  weights, gamma and b ~ N(0, 0.02^2)
        Parameters: W_in (2 d_inner + d_key, d_model) holds the rows of W_r, W_v and W_z in this
        order, W_out (d_model, d_inner) is W_o; gamma, beta and b (2, d_key) hold those of index 1
        and 2

    Args:
        d_inner: channels of gate and values. Default: 2 d_model.
        d_key: channels of queries and keys, an even number.
        n: the length that scores are divided by, in steps: that of the training sequences. It
            stays the same for shorter and longer ones, or a stream would not give what a whole
            sequence does.
        rotary: turn queries and keys; without it R = 1 in the first product.
        relative_bias: add the second product, a learned function of t - s.
        window: steps that can be seen, the current one included. Default: all.
        base: the slowest turn is about 1 / base radians per step.
        init: "scaled" or "published", as above.

    Departures from the paper:
        The norm before and the residual around the unit belong to the block around a mixer. The
        paper adds the relative bias only; turning queries and keys as well is usual since. Its
        other bias, a learned table for lengths up to 512, is left out.

        The published start needs a wide model, many steps and the residual around the unit: of
        width 8 it makes some 1e-9 of 12 inputs of size 1, and where b_1 . b_2 happens to be
        negative, as in every other unit, no step sees any and nothing has a gradient. The scaled
        one makes 0.1 to 0.6 of n inputs of size 1 at any width. Its queries and keys start equal,
        so that a step sees itself, with a weight of some 2 / sqrt(n); over n steps, 64 to 16,384,
        the bias alone brings weights that sum to 1 to 3. Four residual units of width 64 then
        learned a text faster (training loss of 1.64 nats a byte after 250 steps, in place of
        2.20).

    Example:
        >>> y, state = GAU(d_model=4, n=100)(torch.randn(2, 100, 4))
        >>> y.shape, state["k"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 100, 128]))

    Reference:
        Hua et al., "Transformer Quality in Linear Time", ICML 2022, arXiv:2202.10447.
        Key: hua2022transformer.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("W_in", "W_out")

    family: ClassVar[str] = "attention"
    choices = Choices(transition="none", gate="none", memory="past", output="gated")
    widening: ClassVar[bool] = True
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    n_maps: ClassVar[int] = 2  # vectors that are made of z, those of the attention first

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        d_key: int = 128,
        n: int = 1024,
        rotary: bool = True,
        relative_bias: bool = True,
        window: int | None = None,
        base: float = 10_000.0,
        init: Literal["scaled", "published"] = "scaled",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, where = d_model, type(self).__name__
        check_positive_int(where, d_key=d_key, n=n)
        self.d_inner = 2 * d_model if d_inner is None else d_inner
        self.d_key, self.n = d_key, n
        self.rotary, self.relative_bias, self.init = rotary, relative_bias, init
        check_in(where, "init", init, _INITS)
        check_positive_int(where, d_inner=self.d_inner)
        if d_key % 2:
            raise ArgumentError(f"{where}: d_key must be even, got {d_key}.")
        check_sight(where, window, base)
        self.window, self.base = window, base
        if window is not None:  # which bounds cost and state
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        empty = empty_parameters(device, dtype)
        self.W_in = empty(2 * self.d_inner + d_key, d_model)  # rows of W_r, W_v, W_z
        self.gamma, self.beta = empty(self.n_maps, d_key), empty(self.n_maps, d_key)
        self.b = empty(2, d_key) if relative_bias else None
        self.W_out = empty(d_model, self.d_inner)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.init == "published":
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.normal_(self.W_in, std=self.d_model**-0.5)
            nn.init.normal_(self.W_out, std=self.d_inner**-0.5)
            # an entry of silu(N(0, 1)) has 0.36 of the square that one of b has
            alone = 1.0 if self.relative_bias else 1 / 0.36
            nn.init.constant_(self.gamma[:2], (alone * self.n**0.75 / self.d_key) ** 0.5)
            nn.init.constant_(self.gamma[2:], (1 / 0.36 / self.d_key) ** 0.5)
            if self.b is not None:
                nn.init.normal_(self.b[0], std=(self.n**-0.25 / self.d_key) ** 0.5)
                self.b[1] = self.b[0]
        nn.init.zeros_(self.beta)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: turned keys and values, and the steps since the last reset."""
        return cache_spec(self.window, {"d_key": self.d_key}, {"d_inner": self.d_inner})

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("GAU", state)
        position = positions(state["position"], x.shape[1], reset)
        r, v, (q, k) = self._project_in(x, position)
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        most = position if self.window is None else position.clamp(max=self.window - 1)
        mixed = self._attend(q, k, v, most)
        y = F.linear((r * mixed).to(self.W_out.dtype), self.W_out)
        return y, cache_of(k, v, position, reset, self.window)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Tensor) -> Tensor:
        """What each step sees of itself and the ``sight`` entries before it."""
        # squares of small scores leave the range of float16, and the precision of bfloat16
        with without_autocast(q.device):
            return attend(
                "relu_squared",
                self._with_bias(q / self.n, 0, before=k.shape[1] - q.shape[1]),
                self._with_bias(k, 1),
                v,
                sight,
                window=self.window,
                whole=False,
            )

    def _project_in(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Gate, values, and the turned vectors made of z, at least float32."""
        wide = accumulator_dtype(self.W_in.dtype)
        hidden = F.silu(F.linear(x.to(self.W_in.dtype), self.W_in).to(wide))
        r, v, z = hidden.split([self.d_inner, self.d_inner, self.d_key], -1)
        made = self.gamma.to(wide) * z.unsqueeze(-2) + self.beta.to(wide)
        made = rotate(made, position, self.base) if self.rotary else made
        return r, v, list(made.unbind(-2))

    def _with_bias(self, x: Tensor, which: int, *, before: int = 0) -> Tensor:
        """The vector of the relative bias, turned, as further channels of queries or keys."""
        if self.b is None:
            return x
        return with_relative(x, self.b[which], self.base, before)
