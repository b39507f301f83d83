"""QRNN, the quasi-recurrent network."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.gated import Gated, pooled, pooled_fo, pooled_ifo
from linrnn.nn import last_inputs, recall
from linrnn.nn.linear import Linear
from linrnn.nn.starts import refines
from linrnn.state_spec import Part, real

_CELLS: dict[str, Cell] = {"f": pooled, "fo": pooled_fo, "ifo": pooled_ifo}


class QRNN(Gated):
    r"""QRNN: gates from a short causal convolution, then an elementwise recurrence.

    Equation:
        z_t, f_t, o_t, i_t = tanh, sigmoid, sigmoid, sigmoid of sum_{j<window} W^j x_{t-j} + b
        f     c_t = f_t * c_{t-1} + (1 - f_t) * z_t,   h_t = c_t           c in R^{d_state}
        fo    c_t = f_t * c_{t-1} + (1 - f_t) * z_t,   h_t = o_t * c_t
        ifo   c_t = f_t * c_{t-1} + i_t * z_t,         h_t = o_t * c_t
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        With f and fo |c_t| <= 1 if |c_0| <= 1; with ifo it grows by at most 1 a step. Rows of the
        weight lie in the order z, f, o, i, columns from the oldest input to the newest. Starts as
        torch.nn.Linear.

    Args:
        d_state: channels of c. Default: d_model.
        window: inputs that gates see, of which the newest is the current.
        pooling: "f", "fo" or "ifo", as above.
        zoneout: in training a channel keeps what it has with this probability: f_t is 1.
        gates: how f starts, with its negative for i, and whether another gate refines it: see
            `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        The authors' later kernel has 1 - f instead of f. Weights start as there; the paper
        does not say how. Dense connections between layers belong to the stack.

    Example:
        >>> y, state = QRNN(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["c"].shape, state["past"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]), torch.Size([2, 1, 4]))

    Reference:
        Bradbury et al., "Quasi-Recurrent Neural Networks", ICLR 2017, arXiv:1611.01576.
        Key: bradbury2017quasi.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="diagonal", gate="input", memory="vector", normaliser="convex", output="gated"
    )

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        window: int = 2,
        pooling: Literal["f", "fo", "ifo"] = "fo",
        zoneout: float = 0.0,
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, gates, t_max, **to)
        self.window, self.pooling, self.zoneout = window, pooling, zoneout
        check_positive_int("QRNN", window=window)
        check_in("QRNN", "pooling", pooling, tuple(_CELLS))
        if not 0 <= zoneout < 1:
            raise ArgumentError(f"QRNN: zoneout must be in [0, 1), got {zoneout}.")
        rows = len(_CELLS[pooling].inputs) + refines(gates)
        self.in_proj = Linear(window * d_model, rows * self.d_state, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for linear in (self.in_proj, self.out_proj):
            if isinstance(linear, nn.Linear):
                linear.reset_parameters()
        against = [3] * (self.pooling == "ifo") + [-1] * refines(self.gates)
        self._start_biases(self.in_proj, 1, *against)
        self.learned.reset(self)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: c, and the inputs before the first, oldest first."""
        past = real(past=self.window - 1, d_model=self.d_model)
        return {"c": real(d_state=self.d_state), "past": past}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        past, cell = state["past"], _CELLS[self.pooling]
        recent = [recall(x, past, j, reset) for j in reversed(range(self.window))]
        gates = self._gates(self.in_proj, torch.cat(recent, -1))  # (B, T, d_state) each
        if self.training and self.zoneout:
            gates[1] = gates[1].masked_fill(torch.rand_like(gates[1]) < self.zoneout, torch.inf)
        inputs = dict(zip(cell.inputs, gates, strict=True))
        h, last = self.learned.scan(self, cell, {"c": state["c"]}, reset, **inputs)
        return self._project_out(h), last | {"past": last_inputs(x, past, reset)}
