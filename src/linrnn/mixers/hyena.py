"""Hyena, long implicit filters between gates."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.hyena import Filter, GatedFilters
from linrnn.mixers.laughing_hyena import LaughingHyena
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear
from linrnn.nn.long_conv import (
    GROWS,
    Kept,
    Kernel,
    long_spec,
    padded,
    reach,
    read,
    window_decays,
)
from linrnn.nn.modal import Modes
from linrnn.nn.parameters import empty_parameters, parameters_of


class Hyena(GatedFilters):
    r"""Hyena: gated long convolutions whose filters a small network generates.

    Equation:
        x^0, .., x^{N-1}, v = short(W x + b)       N = order; short: d_short taps a channel, a bias
        "code"    z = v; for n = N-1, .., 1: z = h^n (x^n * z);   y = W_o (x^0 * z) + b_o
        "paper"   z = v; for n = 0, .., N-1: z = x^n * h^n(z);    y = W_o z + b_o
        h(z)_t = bias * z_t + sum_{j < l_max} h_j z_{t-j}, the filters being
        h_j = (exp(-delta tau) + shift) * FFN([tau, cos(2 pi f j / l_max), -sin(2 pi f j / l_max)])
        tau = j / (l_max - 1), f = (d_position - 1) / 2 numbers evenly on [1e-4, the last of them],
        delta evenly on [log(100) / 1.5, log(100) / 0.3] over filters; FFN is linear, sine of
        freq times it, twice more linear and such a sine, and linear without bias. delta and f are
        constants. Initially freq is ``frequency``, bias standard normal; the rest is as in
        torch.nn.
        Parameters: in_proj has the rows of x^0 .. x^{N-1} and v; the last of ffn and bias have
        those of channel c and filter n at c times the number of filters + n, "code" counting
        filters from the first that is applied, h^{N-1}
        With ``n_heads``, of order 2, each head has one filter for all products of its channels:
        y = W_o [o^1; o^2; ..] + b_o,   o_j = sum_i x^0_i h(x^1_i * v_j)      i, j in the head

    Args:
        order: N; of ordering "code" at least 2.
        n_heads: heads of channels that share a filter (MultiHyena), a divisor of d_model; x^0, x^1
            and v are then queries, keys and values. Default: a filter for each channel, which is
            what as many heads are.
        ordering: "code", the published program: N - 1 filters, gates before them and one behind;
            or "paper": N filters, a gate behind each.
        l_max: how far a step sees, itself included, in steps: the length of the training
            sequences. It alone, not what is read, sets the filters.
        d_filter: width of the FFN.
        d_position: features of a position, an odd number of at least 3.
        d_short: taps of the short convolution.
        frequency: initial freq of the sines, 1 to 14.
        shift: of the window: its value far away.
        form: how a sequence is computed, with the same numbers: "conv" (one FFT of all; a huge step
            changes those before it by roundings of the largest output, one that is not finite makes
            them NaN) or "blocks" (32 taps one by one, and FFTs of blocks that lie before their
            outputs, so that nothing later changes them; four times slower).

    Departures from the paper:
        Positions are constants; the program may train them. A reset hides earlier inputs; they
        stay zeros in the state until they are out of reach. Heads are those of Massaroli et al.,
        "Laughing Hyena Distillery", 2023; their state has d_model / n_heads times as many channels.

    Example:
        >>> y, state = Hyena(d_model=4, l_max=100)(torch.randn(2, 90, 4))
        >>> y.shape, state["short"].shape, state["long"][0]["near"].shape
        (torch.Size([2, 90, 4]), torch.Size([2, 2, 12]), torch.Size([2, 90, 4]))

    Reference:
        Poli et al., "Hyena Hierarchy: Towards Larger Convolutional Language Models", ICML 2023,
        arXiv:2302.10866. Key: poli2023hyena.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "convolution"
    choices = Choices(transition="none", gate="none", memory="past", output="gated")
    forms: ClassVar[tuple[str, ...]] = ("conv", "blocks")
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK, **GROWS}

    def __init__(
        self,
        d_model: int,
        *,
        order: int = 2,
        n_heads: int | None = None,
        ordering: Literal["code", "paper"] = "code",
        l_max: int = 1024,
        d_filter: int = 64,
        d_position: int = 3,
        d_short: int = 3,
        frequency: float = 1.0,
        shift: float = 0.0,
        form: Literal["conv", "blocks"] = "conv",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.l_max = d_model, l_max
        self.d_filter, self.d_position = d_filter, d_position
        self.frequency, self.shift, self.form = frequency, shift, form
        check_in("Hyena", "form", form, self.forms)
        check_positive_int("Hyena", l_max=l_max, d_filter=d_filter, d_position=d_position)
        if d_position < 3 or d_position % 2 == 0:
            raise ArgumentError(
                f"Hyena: d_position must be odd and at least 3, got {d_position}. It counts tau "
                "and pairs of cosine and sine."
            )
        to: Any = {"device": device, "dtype": dtype}
        self._begin(order, ordering, d_short, n_heads, **to)
        responses = self.kernels_of_filter * self.filters
        widths = [d_position, d_filter, d_filter, d_filter, responses]
        self.ffn = nn.ModuleList(
            Linear(n, m, bias=i < 3, **to) for i, (n, m) in enumerate(pairwise(widths))
        )
        self.freq = empty_parameters(device, dtype)(d_filter)
        self.bias = empty_parameters(device, dtype)(responses)
        self.out_proj = Linear(d_model, d_model, **to)
        self._kept = Kept()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.short, *self.ffn, self.out_proj):
            part.reset_parameters()
        nn.init.constant_(self.freq, self.frequency)
        nn.init.normal_(self.bias)

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: of the short convolution, and of each filter in their order."""
        channels = self.kernels_of_filter * self.pairs
        long = [long_spec(channels, self.l_max) for _ in range(self.filters)]
        return {"short": self.short.state_spec(), "long": long}

    def kernels(self, taps: int | None = None) -> Tensor:
        """The filters, their bias in the first tap, (filters, d_model, l_max), at least float32.

        With ``n_heads`` they are (1, n_heads, l_max).

        Args:
            taps: how many, from the first.
        """
        count = self.l_max if taps is None else taps
        z, tau = self._positions(count)
        for layer in self.ffn[:-1]:
            z = torch.sin(wide(self.freq) * _wide_linear(layer, z))
        responses = (self.kernels_of_filter, -1)
        h = _wide_linear(self.ffn[-1], z).unflatten(1, responses)
        delta = window_decays(h[0].numel(), h).view(h.shape[1:])  # (responses, filters)
        h = h * (torch.exp(-tau[:, None, None] * delta) + self.shift)
        first = h[:1] + wide(self.bias).unflatten(0, responses)
        return torch.cat([first, h[1:]]).permute(2, 1, 0)  # (filters, responses, taps)

    def _positions(self, count: int) -> tuple[Tensor, Tensor]:
        """Features (count, d_position), and tau (count,)."""
        like, bands = wide(self.freq), (self.d_position - 1) // 2
        j = torch.arange(count, dtype=torch.float64, device=like.device)
        f = torch.linspace(1e-4, max(bands - 1, 1e-4), bands, dtype=j.dtype, device=j.device)
        angle, tau = 2 * pi / self.l_max * j[:, None] * f, j / max(self.l_max - 1, 1)
        z = torch.cat([tau[:, None], angle.cos(), -angle.sin()], 1)
        return z.to(like.dtype), tau.to(like.dtype)

    @torch.no_grad()
    def impulse_responses(self, length: int) -> Tensor:
        """See `Mixer.impulse_responses`."""
        return padded(self.kernels().double(), length)

    def distilled(self, modes: Iterable[Modes]) -> LaughingHyena:
        """See `Mixer.distilled`."""
        return LaughingHyena.around(self, modes)

    def long(
        self, state: Sequence[Any], time: int, reset: Tensor | None, dt: Tensor | None
    ) -> list[Filter]:
        """See `GatedFilters.long`."""
        kernels = self._filters(state[0], time)
        strict = self.form == "blocks"
        return [partial(read, "Hyena", kernel, reset=reset, strict=strict) for kernel in kernels]

    def _filters(self, state: dict[str, Any], time: int) -> list[Kernel]:
        """Kept whole while nobody differentiates, else as much of them as is read."""
        taps = reach(state, time, self.l_max) if torch.is_grad_enabled() else self.l_max
        sources = [*parameters_of(self.ffn), self.freq, self.bias]
        kernels: list[Kernel] = self._kept(
            sources, lambda: [self._kernel(taps) for taps in self.kernels(taps)]
        )
        return kernels

    def _kernel(self, taps: Tensor) -> Kernel:
        return Kernel(taps if self.pairs == 1 else taps.repeat_interleave(self.pairs, 0))


def _wide_linear(layer: nn.Module, z: Tensor) -> Tensor:
    """``layer(z)``, at least float32."""
    W, b = affine_of(layer, z)
    return F.linear(z, wide(W), None if b is None else wide(b))
