"""SGConv, a structured global convolution."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.base import FFT_REACHES_BACK, Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers.modal import Modal, stand_in
from linrnn.nn.linear import Linear
from linrnn.nn.long_conv import GROWS, Kept, Kernel, long_spec, padded, read
from linrnn.nn.modal import Modes
from linrnn.nn.parameters import empty_parameters


class SGConv(Mixer):
    r"""SGConv: one global convolution per channel, with multi-scale, decaying kernels.

    Equation:
        y_t = sum_{j < l_max} K_j x_{t-j} + D x_t       each channel alone
        K = concat over i < S of decay^i stretch_i(w_i) / Z, with a decay for each channel
        stretch_i makes d_kernel taps d_kernel 2^max(i-1, 0) ones by linear interpolation, so K has
        d_kernel 2^{S-1} >= l_max taps with S the least such number; those from l_max on are cut
        off. Z is the norm of a channel's K, uncut, at the start, and stays as it is: a buffer.
        Initially w and D are standard normal.
        Parameters: w (S, d_model, d_kernel), D (d_model,); norm (d_model, 1) is Z

    Args:
        d_kernel: taps of each part.
        l_max: how far a step sees, itself included, in steps: the length of the training
            sequences. Longer ones can be read.
        decay: of the weight from one part to the next.
        decay_last: that of the last channel, if it is another: the inverses of those between are
            spread evenly, as "decay_min" and "decay_max" of the public code are, 1/decay and
            1/decay_last. Default: decay.
        project: add a linear layer with bias from the convolution to y.
        form: how a sequence is computed, with the same numbers: "conv" (one FFT of all; a huge step
            changes those before it by roundings of the largest output, one that is not finite makes
            them NaN) or "blocks" (32 taps one by one, and FFTs of blocks that lie before their
            outputs, so that nothing later changes them; four times slower).

    Departures from the paper:
        The layer of the paper is this convolution followed by GELU and a linear layer. GELU
        belongs to the block around a mixer; ``project`` adds the linear layer. A reset hides
        earlier inputs; they stay zeros in the state until they are out of reach.

    Example:
        >>> y, state = SGConv(d_model=4, d_kernel=8, l_max=100)(torch.randn(2, 90, 4))
        >>> y.shape, state["near"].shape
        (torch.Size([2, 90, 4]), torch.Size([2, 90, 4]))

    Reference:
        Li, Cai, Zhang, Chen and Dey, "What Makes Convolutional Models Great on Long Sequence
        Modeling?", ICLR 2023, arXiv:2210.09298. Key: li2023makes.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "convolution"
    choices = Choices(transition="none", gate="none", memory="past")
    forms: ClassVar[tuple[str, ...]] = ("conv", "blocks")
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK, **GROWS}
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w",)
    norm: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        d_kernel: int = 64,
        l_max: int = 1024,
        decay: float = 0.5,
        decay_last: float | None = None,
        project: bool = False,
        form: Literal["conv", "blocks"] = "conv",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_kernel, self.l_max = d_model, d_kernel, l_max
        self.decay, self.decay_last = decay, decay if decay_last is None else decay_last
        self.project, self.form = project, form
        check_in("SGConv", "form", form, self.forms)
        check_positive_int("SGConv", d_kernel=d_kernel, l_max=l_max)
        for name in ("decay", "decay_last"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ArgumentError(f"SGConv: {name} must be above 0 and at most 1, got {value}.")
        parts = 1 + (-(-l_max // d_kernel) - 1).bit_length()
        empty = empty_parameters(device, dtype)
        self.w, self.D = empty(parts, d_model, d_kernel), empty(d_model)
        self.register_buffer("norm", torch.empty(d_model, 1, device=device, dtype=dtype))
        self.out = Linear(d_model, d_model, device=device, dtype=dtype) if project else None
        self._kept = Kept()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator, and measure the kernel."""
        nn.init.normal_(self.w)
        nn.init.normal_(self.D)
        self.norm.copy_(self._unscaled().norm(dim=1, keepdim=True))
        if self.out is not None:
            self.out.reset_parameters()

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: the inputs before, of `linrnn.ops.conv.online_conv.State`."""
        return long_spec(self.d_model, self.l_max)

    def kernel(self) -> Tensor:
        """K with D in its first tap, (d_model, l_max), at least float32."""
        taps = (self._unscaled() / wide(self.norm))[:, : self.l_max]  # (d_model, l_max)
        return torch.cat([taps[:, :1] + wide(self.D)[:, None], taps[:, 1:]], 1)

    @torch.no_grad()
    def impulse_responses(self, length: int) -> Tensor:
        """See `Mixer.impulse_responses`."""
        return padded(self.kernel().double(), length)[None]

    def distilled(self, modes: Iterable[Modes]) -> Modal:
        """See `Mixer.distilled`."""
        return stand_in(self, *modes)

    def _unscaled(self) -> Tensor:
        w = wide(self.w)
        ends = 1 / self.decay, 1 / self.decay_last
        # a row for each channel
        decay = 1 / torch.linspace(*ends, self.d_model, dtype=w.dtype, device=w.device)[:, None]
        parts = [
            decay**i * _stretched(part, 1 << max(i - 1, 0)) for i, part in enumerate(w.unbind())
        ]
        return torch.cat(parts, 1)

    def _read(self, x: Tensor, state: dict[str, Any], reset: Tensor | None) -> tuple[Tensor, Any]:
        with without_autocast(x.device):
            kernel = self._kept([self.w, self.D, self.norm], lambda: Kernel(self.kernel()))
            strict, x = self.form == "blocks", x.to(kernel.taps.dtype)
            y, state = read("SGConv", kernel, x, state, reset, strict=strict)
        return y if self.out is None else self.out(y.to(self.out.weight.dtype)), state


def _stretched(w: Tensor, times: int) -> Tensor:
    """``w`` (C, d) as ``times`` as many taps, (C, d times), on straight lines between its own."""
    last = w.shape[1] - 1
    place = torch.arange(w.shape[1] * times, dtype=torch.float64, device=w.device)
    place = ((place + 0.5) / times - 0.5).clamp(0, last)
    below = place.floor().long()
    return torch.lerp(w[:, below], w[:, (below + 1).clamp(max=last)], (place - below).to(w.dtype))
