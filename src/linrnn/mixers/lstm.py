"""Long short-term memory."""

from math import isfinite
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.mixers._families.dense import TorchRNN
from linrnn.nn.parameters import empty_parameters
from linrnn.nn.starts import refines, starts
from linrnn.state_spec import Part, real


class LSTM(TorchRNN):
    r"""Long short-term memory (LSTM), equal to torch.nn.LSTM.

    Equation:
        i_t = sigmoid(W_i x_t + b_i + U_i h_{t-1} + d_i)
        f_t = sigmoid(W_f x_t + b_f + U_f h_{t-1} + d_f)
        g_t = tanh(W_g x_t + b_g + U_g h_{t-1} + d_g)
        o_t = sigmoid(W_o x_t + b_o + U_o h_{t-1} + d_o)
        c_t = f_t * c_{t-1} + i_t * g_t                    c in R^{d_state}
        h_t = o_t * tanh(c_t)                              h in R^{d_state}
        y_t = h_t, or W_out h_t + b_out where h has not d_model channels
        With proj_size h_t = R (o_t * tanh(c_t)), h in R^{proj_size}.
        With peepholes i and f also see p_i * c_{t-1} and p_f * c_{t-1}, and o sees p_o * c_t. Of
        coupled gates i = 1 - f, and f has parameters.
        |h_t| < 1; |c_t| grows by at most 1 a step. The gates see h_{t-1}, so time cannot be
        parallelised. Initially every parameter is uniform within d_state^(-1/2).

    Args:
        d_state: channels of h and of c. Default: d_model.
        bias: the vectors b and d.
        proj_size: channels of h where they are fewer than d_state, see above; 0: as many.
        peepholes: the vectors p.
        coupled: one gate for what is kept and what is written: then |c_t| < 1 if |c_0| < 1.
        forget_bias: initial b_f + d_f, the same for all channels; 1 is the usual choice, and with
            large values memory lasts about exp(forget_bias) steps. Default: as drawn, near 0.
        gates: how f starts, with its negative for i, and whether a gate refines it. This gate
            takes the rows of i, and with k_t = 2 i_t f_t + (1 - 2 i_t) f_t^2 the state is
            c_t = k_t * c_{t-1} + (1 - k_t) * g_t. See `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.
        n_heads: U has this many diagonal blocks, a divisor of d_state, as in FlashRNN (Poeppel et
            al., 2024, arXiv:2412.07752); W is dense. ``weight_hh_l0`` has the columns of a head.

    Departures from the paper:
        The forget gate came later (Gers et al., 2000), as did peepholes (Gers et al., 2002), the
        projection (Sak et al., 2014, arXiv:1402.1128) and coupled gates (Greff et al., 2017,
        arXiv:1503.04069). Parameters have the names and the gate
        order (i, f, g, o) of torch.nn.LSTM, so its state_dict loads; coupled gates leave i out.

    Example:
        >>> layer = LSTM(d_model=4)
        >>> _ = layer.load_state_dict(torch.nn.LSTM(4, 4).state_dict())
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y.shape, state["c"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997.
        Key: hochreiter1997long.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = (
        *("weight_ih_l0", "weight_hh_l0"),
        *("weight_hr_l0", "weight_ch_l0"),
    )

    choices = Choices(
        transition="dense", gate="state", memory="vector", steps="nonlinear", output="gated"
    )

    learned: ClassVar[LearnedStart] = LearnedStart("h", "c")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        bias: bool = True,
        proj_size: int = 0,
        peepholes: bool = False,
        coupled: bool = False,
        forget_bias: float | None = None,
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        n_heads: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        kind = "lstm" + "_coupled" * coupled + "_peephole" * peepholes
        if refines(gates):
            if coupled or peepholes:
                raise ArgumentError(
                    f"LSTM: coupled and peepholes must be False for gates={gates!r}, got "
                    f"coupled={coupled}, peepholes={peepholes}."
                )
            kind = "lstm_refined"
        if proj_size:
            _check_projection(proj_size, d_state or d_model, learn_initial, n_heads)
            kind += "_projected"
        start = gates, t_max, learn_initial, device, dtype
        blocks = "fgo" if coupled else "ifgo"
        super().__init__(
            d_model,
            d_state,
            bias,
            *start,
            kind=kind,
            blocks=blocks,
            keeps="f",
            against="i",
            proj_size=proj_size,
            n_heads=n_heads,
        )
        self.peepholes, self.coupled, self.forget_bias = peepholes, coupled, forget_bias
        self.proj_size, empty = proj_size, empty_parameters(device, dtype)
        self.weight_hr_l0 = empty(proj_size, self.d_state) if proj_size else None
        self.weight_ch_l0 = empty(3 - coupled, self.d_state) if peepholes else None
        if forget_bias is not None and not isfinite(forget_bias):
            raise ArgumentError(f"LSTM: forget_bias must be finite, got {forget_bias}.")
        if forget_bias is not None and not bias:
            raise ArgumentError(
                f"LSTM: forget_bias must be None without bias, got {forget_bias}. Use bias=True."
            )
        if forget_bias is not None and starts(gates):
            raise ArgumentError(
                f"LSTM: forget_bias must be None for gates={gates!r}, got {forget_bias}."
            )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        if self.forget_bias is None or self.bias_ih_l0 is None or self.bias_hh_l0 is None:
            return
        first = self._keeps * self.d_state
        forget = slice(first, first + self.d_state)
        nn.init.constant_(self.bias_ih_l0[forget], self.forget_bias)
        nn.init.zeros_(self.bias_hh_l0[forget])  # only their sum acts

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`."""
        h = real(proj_size=self.proj_size) if self.proj_size else real(d_state=self.d_state)
        return {"h": h, "c": real(d_state=self.d_state)}

    def _weights(self) -> list[Tensor]:
        last = [] if self.weight_hr_l0 is None else [wide(self.weight_hr_l0)]
        return [*super()._weights(), *last]

    def _constants(self) -> list[Tensor]:
        return [] if self.weight_ch_l0 is None else [*wide(self.weight_ch_l0)]

    def _parts(self, state: dict[str, Tensor]) -> list[Tensor]:
        return [state["h"], state["c"]]

    def _whole(self, parts: list[Tensor]) -> dict[str, Tensor]:
        return {"h": parts[0], "c": parts[1]}


def _check_projection(proj_size: int, d_state: int, learn_initial: bool, n_heads: int) -> None:
    if not 0 < proj_size < d_state:
        raise ArgumentError(
            f"LSTM: proj_size must be in 0..{d_state - 1}, below d_state, got {proj_size}."
        )
    if learn_initial:
        raise ArgumentError(
            f"LSTM: proj_size must be 0 with learn_initial, whose parts have one size, got "
            f"{proj_size}."
        )
    if n_heads != 1:
        raise ArgumentError(
            f"LSTM: proj_size must be 0 with n_heads={n_heads}, which a projection would mix, got "
            f"{proj_size}."
        )
