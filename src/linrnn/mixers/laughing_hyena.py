"""LaughingHyena, Hyena's gates around small recurrences instead of its long filters."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import check_in
from linrnn.mixers._contract.base import FFT_REACHES_BACK
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.hyena import Filter, GatedFilters
from linrnn.mixers.modal import Modal
from linrnn.nn.linear import Linear
from linrnn.nn.modal import Modes
from linrnn.state_spec import complex_


class LaughingHyena(GatedFilters):
    r"""LaughingHyena: Hyena with filters replaced by modal recurrences; constant-size state.

    Equation:
        x^0, .., x^{N-1}, v = short(W x + b)       N = order; short: d_short taps a channel, a bias
        "code"    z = v; for n = N-1, .., 1: z = h^n(x^n * z);   y = W_o (x^0 * z) + b_o
        "paper"   z = v; for n = 0, .., N-1: z = x^n * h^n(z);   y = W_o z + b_o
        h(z)_t = Re(sum_m R_m s_{t,m}) + D z_t, s_{t+1} = lam * s_t + z_t: each h is a Modal, in
        whose docstring are the initial values, and what times between steps do; short counts steps.
        Parameters: in_proj has the rows of x^0 .. x^{N-1} and v; modal holds the filters in the
        order they are applied, h^{N-1} first for "code"
        With ``n_heads``, of order 2, each head has one filter for all products of its channels:
        y = W_o [o^1; o^2; ..] + b_o,   o_j = sum_i x^0_i h(x^1_i * v_j)      i, j in the head

    Args:
        order: N; of ordering "code" at least 2.
        n_heads: heads of channels that share a filter (MultiHyena), a divisor of d_model; x^0, x^1
            and v are then queries, keys and values. Default: a filter for each channel.
        ordering: "code", the published program of Hyena: N - 1 filters, gates before them and one
            behind; or "paper": N filters, a gate behind each.
        d_state: modes of a filter.
        l_max: in steps, sets the initial filters alone: the length of the training sequences.
        d_short: taps of the short convolution.
        form: how a sequence is computed, with the same numbers: "scan" or "conv", as in S4D.

    Departures from the paper:
        There the filters are those of a trained Hyena, fitted, which `linrnn.distill` does. Their
        initial values are ours, for layers that are trained from the start.

    Example:
        >>> y, state = LaughingHyena(d_model=4, d_state=8)(torch.randn(2, 90, 4))
        >>> y.shape, state["short"].shape, state["long"][0].shape
        (torch.Size([2, 90, 4]), torch.Size([2, 2, 12]), torch.Size([2, 4, 8]))

    Reference:
        Massaroli et al., "Laughing Hyena Distillery: Extracting Compact Recurrences From
        Convolutions", NeurIPS 2023, arXiv:2310.18780. Key: massaroli2023laughing.
    """

    family: ClassVar[str] = "ssm"
    choices = Choices(
        transition="complex diagonal", gate="learned", memory="systems", output="gated"
    )
    forms: ClassVar[tuple[str, ...]] = ("scan", "conv")
    without_reset: ClassVar[tuple[str, ...]] = ("conv",)
    timed: ClassVar[bool] = True
    without_dt: ClassVar[tuple[str, ...]] = ("conv",)
    declared: ClassVar[Mapping[str, str]] = {"causal:conv": FFT_REACHES_BACK}

    def __init__(
        self,
        d_model: int,
        *,
        order: int = 2,
        n_heads: int | None = None,
        ordering: Literal["code", "paper"] = "code",
        d_state: int = 16,
        l_max: int = 1024,
        d_short: int = 3,
        form: Literal["scan", "conv"] = "scan",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.l_max, self.form = d_model, d_state, l_max, form
        check_in("LaughingHyena", "form", form, self.forms)
        to: Any = {"device": device, "dtype": dtype}
        self._begin(order, ordering, d_short, n_heads, **to)
        self.modal = nn.ModuleList(
            Modal(self.kernels_of_filter, d_state=d_state, l_max=l_max, form=form, **to)
            for _ in range(self.filters)
        )
        self.out_proj = Linear(d_model, d_model, **to)
        self.reset_parameters()

    @classmethod
    def around(cls, layer: GatedFilters, modes: Iterable[Modes]) -> "LaughingHyena":
        """The gates and maps of ``layer`` with other filters, their modes given in order."""
        filters, like = list(modes), layer._parameter()
        converted = cls(
            layer.d_model,
            order=layer.order,
            n_heads=layer.n_heads,
            ordering=layer.ordering,  # type: ignore[arg-type]
            d_state=filters[0].poles.shape[1],
            l_max=layer.l_max,
            d_short=layer.d_short,
            device=like.device,
            dtype=like.dtype,
        )
        for name in ("in_proj", "short", "out_proj"):
            converted.get_submodule(name).load_state_dict(layer.get_submodule(name).state_dict())
        for one, its in zip(converted.modal, filters, strict=True):
            one.put(its)  # type: ignore[operator]
        return converted

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (self.in_proj, self.short, *self.modal, self.out_proj):
            part.reset_parameters()

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: of the short convolution, and of each filter in their order."""
        long = [one.state_spec() for one in self.modal]  # type: ignore[operator]
        if self.n_heads is not None:
            H, M = self.n_heads, self.d_state
            long = [complex_(pairs=self.pairs, n_heads=H, modes=M) for _ in self.modal]
        return {"short": self.short.state_spec(), "long": long}

    def impulse_responses(self, length: int) -> Tensor:
        """See `Mixer.impulse_responses`."""
        return torch.cat([one.impulse_responses(length) for one in self.modal])  # type: ignore[operator]

    def distilled(self, modes: Iterable[Modes]) -> "LaughingHyena":
        """See `Mixer.distilled`."""
        return self.around(self, modes)

    def long(
        self, state: Sequence[Any], time: int, reset: Tensor | None, dt: Tensor | None
    ) -> list[Filter]:
        """See `GatedFilters.long`."""
        if self.n_heads is None:
            return [partial(one, reset=reset, dt=dt) for one in self.modal]
        each = self._of_pairs(reset=reset, dt=dt)
        return [partial(self._with_pairs, partial(one, **each)) for one in self.modal]

    def _of_pairs(self, **arguments: Tensor | None) -> dict[str, Tensor | None]:
        """Arguments (B, ...) for the pairs of every row."""
        return {
            name: None if x is None else x.repeat_interleave(self.pairs, 0)
            for name, x in arguments.items()
        }

    def _with_pairs(self, one: Filter, z: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Read (B, ..., H pairs) by a filter of H channels, to which pairs are rows."""
        by_pair = z.unflatten(-1, (-1, self.pairs)).movedim(-1, 1)  # (B, pairs, ..., H)
        y, last = one(by_pair.flatten(0, 1), h.flatten(0, 1))
        y = y.unflatten(0, (-1, self.pairs)).movedim(1, -1)  # (B, ..., H, pairs)
        return y.flatten(-2), last.unflatten(0, (-1, self.pairs))

    def _step(self, x_t: Tensor, state: dict[str, Any], dt: Tensor | None) -> tuple[Tensor, Any]:
        mixed, short = self.short.step(self._project_in(x_t), state["short"])
        steps: list[Filter] = [partial(one.step, dt=dt) for one in self.modal]  # type: ignore[operator, misc, arg-type]
        if self.n_heads is not None:
            each = self._of_pairs(dt=dt)
            singly = [partial(one.step, **each) for one in self.modal]  # type: ignore[operator, misc, arg-type]
            steps = [partial(self._with_pairs, one) for one in singly]
        z, long = self._gated(mixed, steps, state["long"])
        return self._project_out(z), {"short": short, "long": long}
