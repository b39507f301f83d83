"""Gated recurrent unit."""

from typing import ClassVar, Literal

import torch

from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.dense import TorchRNN
from linrnn.nn.starts import refines


class GRU(TorchRNN):
    r"""Gated recurrent unit (GRU), equal to torch.nn.GRU.

    Equation:
        r_t = sigmoid(W_r x_t + b_r + U_r h_{t-1} + c_r)
        z_t = sigmoid(W_z x_t + b_z + U_z h_{t-1} + c_z)
        n_t = tanh(W_n x_t + b_n + r_t * (U_n h_{t-1} + c_n))
        h_t = (1 - z_t) * n_t + z_t * h_{t-1}              h in R^{d_state}
        or, with reset_gate="before", n_t = tanh(W_n x_t + b_n + U_n (r_t * h_{t-1}) + c_n)
        with a refine gate s_t = sigmoid(W_s x_t + b_s + U_s h_{t-1} + c_s), in the last rows,
        k_t = 2 s_t z_t + (1 - 2 s_t) z_t^2 replaces z_t
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        |h_t| <= 1 if |h_0| <= 1. The gates see h_{t-1}, so time cannot be parallelised.
        Initially every parameter is uniform within d_state^(-1/2).

    Args:
        d_state: channels of h. Default: d_model.
        bias: the vectors b and c.
        reset_gate: r multiplies the product U_n h + c_n ("after"), as in torch.nn.GRU and cuDNN, or
            h ("before"), as in the published paper.
        gates: how z starts, with its negative for s, and whether s refines it: see
            `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.
        n_heads: U has this many diagonal blocks, a divisor of d_state, as in FlashRNN (Poeppel et
            al., 2024, arXiv:2412.07752); W is dense. ``weight_hh_l0`` has the columns of a head.

    Departures from the paper:
        The default of ``reset_gate``. Parameters have the names and the gate order (r, z, n) of
        torch.nn.GRU, so its state_dict loads.

    Example:
        >>> layer = GRU(d_model=4)
        >>> _ = layer.load_state_dict(torch.nn.GRU(4, 4).state_dict())
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
        Machine Translation", EMNLP 2014, arXiv:1406.1078. Key: cho2014learning.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("weight_ih_l0", "weight_hh_l0")

    choices = Choices(
        transition="dense", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        bias: bool = True,
        reset_gate: Literal["after", "before"] = "after",
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        n_heads: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_in("GRU", "reset_gate", reset_gate, ("after", "before"))
        start = gates, t_max, learn_initial, device, dtype
        kind = "gru" if reset_gate == "after" else "gru_before"
        refine = "s" if refines(gates) else ""
        super().__init__(
            d_model,
            d_state,
            bias,
            *start,
            kind=kind + "_refined" * bool(refine),
            blocks="rzn" + refine,
            keeps="z",
            against=refine,
            n_heads=n_heads,
        )
        self.reset_gate = reset_gate
        self.reset_parameters()
