"""Mega, gated attention to a moving average."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import make_norm
from linrnn.nn.kv_cache import GROWS_BY_CHUNK, cache_of, cache_spec, check_cache, check_sight
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters, lecun_normal
from linrnn.nn.rotary import with_relative
from linrnn.ops.attention import attend, positions
from linrnn.ops.conv import siso
from linrnn.state_spec import Part, real

_READS = ("softmax", "relu_squared", "laplace")
_INITS = ("scaled", "published")


class Mega(Mixer):
    r"""Mega: single-head gated attention with queries and keys from a damped moving average.

    Equation:
        h_t = a * beta x_t + (1 - a * d) * h_{t-1}        in R^{d_ema} for each channel of x
        m_t = silu(eta . h_t / sqrt(d_ema) + omega * x_t)
        a = sigmoid(alpha), d = sigmoid(delta)
        u_t, r_t, c_t = sigmoid(W_u m_t + b_u), silu(W_r m_t + b_r), W_c m_t + b_c
        z_t = silu(W_z m_t + b_z);   q_t = kappa_1 * z_t + mu_1,   k_t = kappa_2 * z_t + mu_2
        v_t = silu(W_v x_t + b_v)
        "softmax"   p_ts = softmax over s of q_t . k_s / sqrt(d_key) + bias_ts
        "relu_squared"   p_ts = relu(q_t . k_s / n_t + bias_ts)^2
        "laplace"   p_ts = (1 + erf((q_t . k_s / n_t + bias_ts - sqrt(1/2)) sqrt(2 pi))) / 2
        y_t = u_t * silu(c_t + W_h (r_t * sum_s p_ts v_s)) + (1 - u_t) * x_t
        With a norm all but the last x_t is norm(x_t), w * x_t / sqrt(mean(x_t^2) + norm_eps) for
        "rms", and for "layer" the same of x_t less its mean, plus b.
        bias_ts = (R^t b_1) . (R^s b_2), R turning the pair of channels (2i, 2i+1) by
        base^(-2i/d_key) radians; with a table it is a number for each t - s. s runs over all steps
        up to t, or those of its chunk; n_t is how many these are. Chunks are the steps 0..C-1,
        C..2C-1, ... of a sequence, C = chunk, also in a stream.
        Initially alpha and delta are N(0, 0.2^2), beta 1 and -1 in turn along d_ema plus
        N(0, 0.02^2), eta and omega N(0, 1), b_1, b_2 and the table N(0, 0.02^2), mu and the other
        b 0;
        "scaled"     weights N(0, 1 / channels in), kappa 1
        "published"  weights and kappa N(0, 0.02^2)
        Parameters: average_proj has the rows of u, z, r and c in this order

    Args:
        d_ema: averages of a channel.
        d_key: channels of queries and keys, an even number.
        d_inner: channels of the values. Default: 2 d_model.
        chunk: attend inside chunks of this many steps. Default: to all steps.
        attention: "softmax", "relu_squared" or "laplace".
        norm: "none", or the layer's own, "rms" or "layer": then y is what the published block
            gives, in a stack with ``norm="none"`` and ``skip=False``.
        norm_eps: of that norm.
        base: the slowest turn of the bias is about 1 / base radians per step.
        table: instead a learned number for each of this many distances, from 0 on, the last for all
            longer ones. Default: none.
        init: "scaled" or "published", as above.

    Departures from the paper:
        As in the published program: omega and the silu of m; eta over sqrt(d_ema). Without its
        own norm that of the block comes before it, so that 1 - u keeps a normed input, to which
        the block adds the one before the norm. Dropout belongs to the block. The bias of W_h is
        b_c. The published table has numbers for later steps too, which no causal layer sees, and
        refuses longer sequences. The published start needs a wide model: of width 6, scores have a
        gradient of some 1e-13.

    Example:
        >>> y, state = Mega(d_model=4, chunk=16, d_key=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["ema"].shape, state["k"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4, 16]), torch.Size([2, 15, 8]))

    Reference:
        Ma et al., "Mega: Moving Average Equipped Gated Attention", ICLR 2023, arXiv:2209.10655.
        Key: ma2023mega.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("beta", "eta")
    single_precision: ClassVar[tuple[str, ...]] = ("alpha", "delta")

    family: ClassVar[str] = "attention"
    choices = Choices(
        transition="diagonal",
        gate="learned",
        memory="past",
        normaliser="softmax",
        steps="staged",
        output="gated",
    )
    widening: ClassVar[bool] = True
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS_BY_CHUNK
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("alpha", "delta")

    def __init__(
        self,
        d_model: int,
        *,
        d_ema: int = 16,
        d_key: int = 64,
        d_inner: int | None = None,
        chunk: int | None = None,
        attention: Literal["softmax", "relu_squared", "laplace"] = "softmax",
        norm: Literal["none", "rms", "layer"] = "none",
        norm_eps: float = 1e-6,
        base: float = 10_000.0,
        table: int | None = None,
        init: Literal["scaled", "published"] = "scaled",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_ema, self.d_key = d_model, d_ema, d_key
        self.d_inner = 2 * d_model if d_inner is None else d_inner
        self.chunk, self.attention, self.base, self.init = chunk, attention, base, init
        self.norm, self.norm_eps, self.table = norm, norm_eps, table
        check_in("Mega", "norm", norm, ("none", "rms", "layer"))
        check_positive_int("Mega", d_ema=d_ema, d_key=d_key, d_inner=self.d_inner)
        check_in("Mega", "attention", attention, _READS)
        check_in("Mega", "init", init, _INITS)
        if chunk is not None:  # which bounds cost and state
            check_positive_int("Mega", chunk=chunk)
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        check_sight("Mega", chunk, base)
        if table is not None:
            check_positive_int("Mega", table=table)
        if d_key % 2:
            raise ArgumentError(f"Mega: d_key must be even, got {d_key}.")
        to: Any = {"device": device, "dtype": dtype}
        empty = empty_parameters(device, dtype)
        self.alpha, self.delta = empty(d_model, d_ema), empty(d_model, d_ema)
        self.beta, self.eta, self.omega = (
            empty(d_model, d_ema),
            empty(d_model, d_ema),
            empty(d_model),
        )
        self.kappa, self.mu = empty(2, d_key), empty(2, d_key)
        self.b = empty(2, d_key) if table is None else None
        self.distances = None if table is None else empty(table)
        self.value_proj = Linear(d_model, self.d_inner, **to)
        self.average_proj = Linear(d_model, 2 * d_model + d_key + self.d_inner, **to)
        self.hidden_proj = Linear(self.d_inner, d_model, bias=False, **to)
        self.in_norm: Any = make_norm(norm, d_model, eps=norm_eps, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if not isinstance(self.in_norm, nn.Identity):
            self.in_norm.reset_parameters()
        for p in (self.alpha, self.delta):
            nn.init.normal_(p, std=0.2)
        for p in (self.eta, self.omega):
            nn.init.normal_(p)
        nn.init.normal_(self.beta, std=0.02)
        self.beta[:, ::2] += 1
        self.beta[:, 1::2] -= 1
        for bias in (self.b, self.distances):
            if bias is not None:
                nn.init.normal_(bias, std=0.02)
        linears = self.value_proj, self.average_proj, self.hidden_proj
        if self.init == "published":
            for weight in (self.kappa, *(linear.weight for linear in linears)):
                nn.init.normal_(weight, std=0.02)
        else:
            lecun_normal(*linears)
            nn.init.ones_(self.kappa)
        for bias in (self.mu, self.value_proj.bias, self.average_proj.bias):
            nn.init.zeros_(bias)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: the averages, keys and values, and the steps since a reset."""
        ema = real(d_model=self.d_model, d_ema=self.d_ema)
        return {
            "ema": ema,
            **cache_spec(self.chunk, {"d_key": self.d_key}, {"d_inner": self.d_inner}),
        }

    def averages(self) -> siso.System:
        """The moving averages of every channel, as systems of one input and one output."""
        alpha, delta, beta, eta = (
            p.double() for p in (self.alpha, self.delta, self.beta, self.eta)
        )
        gain = alpha.sigmoid()
        return siso.System(
            1 - gain * delta.sigmoid(), gain * beta, eta * self.d_ema**-0.5, wide(self.omega)
        )

    def _read(
        self, x: Tensor, state: dict[str, Any], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("Mega", state)
        x = wide(x.to(self.omega.dtype))
        normed = self._normed(x)  # (B, T, d_model)
        with without_autocast(x.device):
            average, ema = siso.scan(self.averages(), normed, state["ema"], reset)
        y, cache = self._gated(x, normed, average, state, reset)
        return y, {"ema": ema, **cache}

    def _step(self, x_t: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        check_cache("Mega", state)
        x_t = wide(x_t.to(self.omega.dtype))
        normed = self._normed(x_t)
        average, ema = siso.step(self.averages(), normed, state["ema"])
        y, cache = self._gated(x_t[:, None], normed[:, None], average[:, None], state, None)
        return y[:, 0], {"ema": ema, **cache}

    def _normed(self, x: Tensor) -> Tensor:
        """The input after the layer's own norm, at least float32."""
        if self.norm == "none":
            return x
        return wide(cast(Tensor, self.in_norm(x.to(self.omega.dtype))))

    def _gated(
        self,
        x: Tensor,
        normed: Tensor,
        average: Tensor,
        state: dict[str, Any],
        reset: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output, and the new keys and values, behind the moving averages."""
        position = positions(state["position"], x.shape[1], reset)
        average = F.silu(average)
        u, z, r, c = wide(self.average_proj(average.to(self.omega.dtype))).split(
            [self.d_model, self.d_key, self.d_inner, self.d_model], -1
        )
        vectors = wide(self.kappa) * F.silu(z).unsqueeze(-2) + wide(self.mu)  # (B, T, 2, d_key)
        q, k = vectors.unbind(-2)  # (B, T, d_key)
        v = F.silu(wide(self.value_proj(normed.to(self.omega.dtype))))  # (B, T, d_inner)
        k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        with without_autocast(x.device):
            read = self._attend(q, k, v, position)  # (B, T, d_inner)
        hidden = F.silu(c + wide(self.hidden_proj((F.silu(r) * read).to(self.omega.dtype))))
        y = torch.lerp(x, hidden, u.sigmoid())
        return y, cache_of(k, v, position, reset, self.chunk)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
        """Attention of each step over the entries it sees."""
        offset, sight = k.shape[1] - q.shape[1], position
        if self.chunk is not None:
            sight = position % self.chunk
        softmax = self.attention == "softmax"
        scale = self.d_key**-0.5 if softmax else 1 / (sight + 1)[..., None].to(q.dtype)
        q, far = q * scale, None
        if self.distances is not None:
            far = wide(self.distances)
        elif self.b is not None:
            q = with_relative(q, self.b[0], self.base, offset)
            k = with_relative(k, self.b[1], self.base)
        if softmax:  # which divides by the root of the channels, and knows heads
            q, k, v = ((q * q.shape[-1] ** 0.5)[:, :, None], k[:, :, None], v[:, :, None])
        o = attend(self.attention, q, k, v, sight, window=self.chunk, whole=False, far=far)
        return o[:, :, 0] if softmax else o
