"""eLSTM, an LSTM whose gates see the state channel by channel."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.gated import Gated
from linrnn.nn.linear import Linear
from linrnn.nn.starts import refined, refines
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, real


@cell(state="c", constant="w_z w_f")
def elstm(c: Any, z: Any, f: Any, w_z: Any, w_f: Any) -> tuple[Any, Any]:
    """One step; candidate and gate see the state before."""
    c = torch.lerp(torch.tanh(z + w_z * c), c, torch.sigmoid(f + w_f * c))
    return c, c


@cell(state="c", constant="w_z w_f w_s")
def elstm_refined(c: Any, z: Any, f: Any, s: Any, w_z: Any, w_f: Any, w_s: Any) -> tuple[Any, Any]:
    """`elstm` with a gate that refines the other, and sees the state before too."""
    f = torch.sigmoid(refined(f + w_f * c, s + w_s * c))
    c = torch.lerp(torch.tanh(z + w_z * c), c, f)
    return c, c


class ELSTM(Gated):
    r"""eLSTM (quasi-LSTM): an elementwise LSTM with cheap, exact real-time gradients.

    Equation:
        z_t = tanh(Z x_t + w_z * c_{t-1} + b_z)
        f_t = sigmoid(F x_t + w_f * c_{t-1} + b_f)
        c_t = f_t * c_{t-1} + (1 - f_t) * z_t              c in R^{d_state}
        with a refine gate s_t = sigmoid(S x_t + w_s * c_{t-1} + b_s), in the last rows,
        2 s_t f_t + (1 - 2 s_t) f_t^2 replaces f_t
        o_t = sigmoid(O x_t + W_o c_t + b_o)               sees c_t, and no later step sees it
        h_t = o_t * c_t, or c_t without an output gate
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        |c_t| < 1 if |c_0| < 1. The Jacobian of a step is diagonal, without s it is
        f_t + (1 - f_t)(1 - z_t^2) w_z + (c_{t-1} - z_t) f_t (1 - f_t) w_f, so a trace for each
        parameter is all that the learner ``diagonal_rtrl`` keeps. Initially Z, F, O, S are uniform
        within d_model^(-1/2), w and W_o within d_state^(-1/2), biases 0.

    Args:
        d_state: channels of c. Default: d_model.
        output_gate: the gate o.
        gates: how f starts and whether s refines it: see `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        Biases, their start and that of the weights are ours, as is W_out.

    Example:
        >>> y, state = ELSTM(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Irie, Gopalakrishnan and Schmidhuber, "Exploring the Promise and Limits of Real-Time
        Recurrent Learning", 2023, arXiv:2305.19044. Key: irie2023exploring.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("W_o",)

    choices = Choices(
        transition="diagonal",
        gate="state",
        memory="vector",
        normaliser="convex",
        steps="nonlinear",
        output="gated",
    )

    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w",)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        output_gate: bool = True,
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, gates, t_max, **to)
        self.output_gate = output_gate
        rows = 2 + output_gate + refines(gates)
        self.in_proj = Linear(d_model, rows * self.d_state, **to)
        self.w = nn.Parameter(torch.empty(2 + refines(gates), self.d_state, **to))
        self.W_o = None
        if output_gate:
            self.W_o = nn.Parameter(torch.empty(self.d_state, self.d_state, **to))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.uniform_(self.in_proj.weight, -(self.d_model**-0.5), self.d_model**-0.5)
        for weight in (self.w, self.W_o):
            if weight is not None:
                nn.init.uniform_(weight, -(self.d_state**-0.5), self.d_state**-0.5)
        nn.init.zeros_(self.in_proj.bias)
        self._start_biases(self.in_proj, 1, *[-1] * refines(self.gates))
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()
        self.learned.reset(self)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, c: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        z, f, *o = self._blocks(self.in_proj, x)
        inputs = {"z": z, "f": f, **dict(zip(("w_z", "w_f", "w_s"), wide(self.w), strict=False))}
        cell = elstm
        if refines(self.gates):
            cell, inputs["s"] = elstm_refined, o.pop()
        h, last = self.learned.scan(self, cell, {"c": c}, reset, **inputs)
        if self.W_o is not None:
            projected = half_linear(h.to(self.W_o.dtype), self.W_o)
            h = torch.sigmoid(o[0] + projected) * h
        return self._project_out(h), last["c"]
