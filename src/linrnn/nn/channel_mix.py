"""RWKV's channel mixing: a gated squared-ReLU network that sees the current and previous step."""

from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import autocast_dtype
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import accumulator_dtype
from linrnn.ops.conv.past import last_inputs
from linrnn.ops.conv.token_mix import token_mix
from linrnn.state_spec import Part, initial, real

INITS = ("orthogonal", "published")


class ChannelMix(nn.Module):
    r"""RWKV channel mixing: the feed-forward half of an RWKV block.

    Equation::

        x^k_t = mu_k * x_t + (1 - mu_k) * x_{t-1},    x^r_t likewise with mu_r
        y_t = sigmoid(W_r x^r_t) * (W_v relu(W_k x^k_t)^2)

    without the first factor where ``receptance`` is False, as in RWKV-7.

    Args:
        d_model: channels in and out.
        d_inner: hidden width. Default: ``4 * d_model``.
        receptance: multiply by a separate gate, as RWKV-4, 5 and 6 do.
        init: how ``W_v`` and ``W_r`` start, see below.
        layer, n_layers: place in the stack, counted from 0; the initial ``mu`` depend on it.
        device, dtype: of the parameters, as in torch.nn.

    Initially ``mu[i] = (i / d_model) ** rho`` with ``rho = 1 - layer / n_layers``, or without a
    receptance ``(1 - layer / n_layers) ** 4``, and all maps are orthogonal. With
    ``init="published"`` ``W_v`` and ``W_r`` are zero: a residual block starts as the identity, and
    only ``W_v`` has a gradient in the first step. With ``init="trainer"``, as in the program that
    trains RWKV-7, ``W_k`` has gain 1 besides, whatever its shape.

    Raises:
        ArgumentError: a size below 1, or a layer that is not in the stack.
        UnknownNameError: an unknown init.

    Example:
        >>> mix = ChannelMix(4)
        >>> y, past = mix(torch.randn(2, 10, 4), mix.init_state(2))
        >>> y.shape, past.shape
        (torch.Size([2, 10, 4]), torch.Size([2, 1, 4]))

    Reference:
        Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, arXiv:2305.13048; of
        RWKV-7, 2025, arXiv:2503.14456.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int | None = None,
        receptance: bool = True,
        init: Literal["orthogonal", "published", "trainer"] = "orthogonal",
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.d_inner = 4 * d_model if d_inner is None else d_inner
        self.init, self.layer, self.n_layers = init, layer, n_layers
        check_positive_int("ChannelMix", d_model=d_model, d_inner=self.d_inner)
        check_in("ChannelMix", "init", init, (*INITS, "trainer"))
        check_layer("ChannelMix", layer, n_layers)
        empty = empty_parameters(device, dtype)
        self.mu_k = empty(d_model)
        self.mu_r = empty(d_model) if receptance else None
        linear: Any = {"bias": False, "device": device, "dtype": dtype}
        self.key = Linear(d_model, self.d_inner, **linear)
        self.receptance = Linear(d_model, d_model, **linear) if receptance else None
        self.value = Linear(self.d_inner, d_model, **linear)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        remaining = 1 - self.layer / self.n_layers
        mu = initial_mix(self.d_model, remaining if self.mu_r is not None else remaining**4)
        self.mu_k.copy_(mu)
        if self.mu_r is not None:
            self.mu_r.copy_(mu)
        orthogonal(self.key.weight, 1.0 if self.init == "trainer" else None)
        for linear in (self.value, self.receptance):
            if linear is None:
                continue
            if self.init == "orthogonal":
                orthogonal(linear.weight)
            else:
                nn.init.zeros_(linear.weight)

    def state_spec(self) -> Part:
        """The input before the first; at least float32."""
        return real(past=1, d_model=self.d_model)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Zeros: no input before the first."""
        past: Tensor = initial(
            "ChannelMix", self.state_spec(), batch_size, self.mu_k, device, dtype
        )
        return past

    def forward(
        self, x: Tensor, past: Tensor, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read (batch, time, d_model): ``(y, past)`` with the new previous input.

        ``reset``, boolean (batch, time), is True where a new sequence starts.
        """
        mus: list[Tensor] = [mu for mu in (self.mu_k, self.mu_r) if mu is not None]
        dtype = autocast_dtype(self.key.weight)
        x_k, *x_r = token_mix(x, past, 1 - torch.stack(mus), reset=reset, dtype=dtype)
        y = self.value(F.relu(self.key(x_k)).square())
        if self.receptance is not None:
            y = self.receptance(*x_r).sigmoid() * y
        return y.to(x.dtype), last_inputs(x, past, reset)

    def step(self, x_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Read one step (batch, d_model)."""
        done = recorded_step(self, cast(Any, self._step), x_t, past)
        return self._step(x_t, past) if done is None else cast(tuple[Tensor, Tensor], done)

    def _step(self, x_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        y, past = self(x_t[:, None], past)  # (batch, 1, d_model)
        return y[:, 0], past


def initial_mix(d_model: int, power: float) -> Tensor:
    """``(i / d_model) ** power``: the first channels look back most, later layers less."""
    return (torch.arange(d_model, dtype=torch.float64) / d_model) ** power


def initial_decay(d_state: int, first: float, span: float, depth: float) -> Tensor:
    """``first + span (i / (d_state - 1)) ** (0.7 + 1.3 depth)``: the published ``time_decay``."""
    return first + span * fractions(d_state) ** (0.7 + 1.3 * depth)


def fractions(n: int) -> Tensor:
    """0 to 1 in n numbers; of one, 0."""
    return torch.arange(n, dtype=torch.float64) / max(n - 1, 1)


def zigzag(n: int) -> Tensor:
    """0, 1, -1, 0, 1, -1, ...: what sets neighbouring channels of ``time_first`` apart."""
    return (torch.arange(n, dtype=torch.float64) + 1) % 3 - 1


def orthogonal(weight: Tensor, gain: float | None = None) -> None:
    """Fill with a random orthogonal matrix; the default gain keeps the size of a wider output."""
    gain = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5 if gain is None else gain
    # half precision has no QR decomposition
    matrix = weight.new_empty(weight.shape, dtype=accumulator_dtype(weight.dtype))
    weight.copy_(nn.init.orthogonal_(matrix, gain))


@torch.no_grad()
def start_ends(embedding: Tensor, head: Tensor) -> None:
    """Draw embeddings and a head as RWKV's training program does, with norms between them.

    Embeddings are uniform within 1e-4, the head is orthogonal with gain 1/2, times the root of how
    many outputs there are for each channel where these are more.

    Args:
        embedding: (d_input, d_model), or of a linear map (d_model, d_input).
        head: (d_output, d_model).
    """
    nn.init.uniform_(embedding, -1e-4, 1e-4)
    orthogonal(head, 0.5 * max(1.0, head.shape[0] / head.shape[1]) ** 0.5)


def check_layer(where: str, layer: int, n_layers: int) -> None:
    """Raise `ArgumentError` unless ``layer`` is the index of one of ``n_layers`` layers."""
    check_positive_int(where, n_layers=n_layers)
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < n_layers:
        raise ArgumentError(
            f"{where}: layer must be an integer from 0 to n_layers-1={n_layers - 1}, "
            f"got {layer!r}. Pass n_layers= as well."
        )
