"""LS-LSTM, the linear-surrogate LSTM."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.mixers._families.gated import Gated, pooled, pooled_fo, pooled_ifo
from linrnn.nn.linear import Linear
from linrnn.nn.starts import refines
from linrnn.state_spec import Part, real


class LSLSTM(Gated):
    r"""Linear-surrogate LSTM: gates read a linear recurrence, not the state; two parallel scans.

    Equation:
        s_t = g_t * s_{t-1} + (1 - g_t) * tanh(V x_t + b_v),  g_t = sigmoid(U x_t + b_u)   (GILR)
        i_t, f_t, o_t = sigmoid(W [s_t; x_t] + b),  z_t = tanh(W_z [s_t; x_t] + b_z)
        c_t = f_t * c_{t-1} + i_t * z_t,  h_t = o_t * c_t       s, c, h in R^{d_state}
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        The gates see s_t and not s_{t-1}. |c_t| grows by at most 1 a step. Rows lie in the order
        (V, U) and (z, f, o, i). Initially Glorot-uniform each, with biases 0.

    Args:
        d_state: channels of s and of c. Default: d_model.
        gates: how f starts, with its negative for i and U's bias like f's, and whether another
            gate refines it, which takes i = 1 - f: see `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        None known: h_t = o_t * c_t without a tanh is its equation. It does not say how weights
        start.

    Example:
        >>> y, state = LSLSTM(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["s"].shape, state["c"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]), torch.Size([2, 8]))

    Reference:
        Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length",
        ICLR 2018, arXiv:1709.04057. Key: martin2018parallelizing.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(
        transition="diagonal", gate="state", memory="vector", steps="staged", output="gated"
    )

    learned: ClassVar[LearnedStart] = LearnedStart("s", "c")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, gates, t_max, **to)
        self.surrogate = Linear(d_model, 2 * self.d_state, **to)
        self.in_proj = Linear(d_model + self.d_state, 4 * self.d_state, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._glorot(self.surrogate, self.in_proj, self.out_proj)
        self._start_biases(self.surrogate, 1)
        self._start_biases(self.in_proj, 1, 3)
        self.learned.reset(self)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`."""
        return {"s": real(d_state=self.d_state), "c": real(d_state=self.d_state)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        v, u = self._blocks(self.surrogate, x)
        s, first = self.learned.scan(self, pooled, {"s": state["s"]}, reset, z=v, f=u)
        joined = torch.cat([s, x.to(s.dtype)], -1)  # (B, T, width)
        names = "zfo" if refines(self.gates) else "zfoi"
        inputs = dict(zip(names, self._gates(self.in_proj, joined), strict=True))
        cell = pooled_fo if refines(self.gates) else pooled_ifo
        h, second = self.learned.scan(self, cell, {"c": state["c"]}, reset, **inputs)
        return self._project_out(h), first | second
