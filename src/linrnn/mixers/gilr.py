"""GILR, the gated impulse linear recurrence."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.gated import Gated, pooled, pooled_elu
from linrnn.nn.linear import Linear
from linrnn.nn.starts import refines
from linrnn.state_spec import Part, real


class GILR(Gated):
    r"""GILR: a moving average per channel with an input-dependent gate; a parallel scan.

    Equation:
        f_t = sigmoid(W_f x_t + b_f),  z_t = phi(W_z x_t + b_z)
        c_t = f_t * c_{t-1} + (1 - f_t) * z_t               c in R^{d_state}
        y_t = c_t, or W_out c_t + b_out where d_state is not d_model
        c is a weighted mean of the past, so with phi = tanh |c_t| <= 1 if |c_0| <= 1.
        W_z and W_f are the rows of one matrix, in this order. Initially Glorot-uniform each, with
        biases 0.

    Args:
        d_state: channels of c. Default: d_model.
        nonlinearity: phi, "tanh" or "elu".
        gates: how f starts and whether another gate refines it: see `linrnn.nn.starts`.
        t_max: longest initial memory, in steps; gates="chrono" needs it. Default: none.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        Its g and i are f and z here. It does not say how weights start.

    Example:
        >>> y, state = GILR(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length",
        ICLR 2018, arXiv:1709.04057. Key: martin2018parallelizing.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    choices = Choices(transition="diagonal", gate="input", memory="vector", normaliser="convex")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        nonlinearity: Literal["tanh", "elu"] = "tanh",
        gates: Literal["plain", "chrono", "uniform", "refine", "ur"] = "plain",
        t_max: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, gates, t_max, **to)
        self.nonlinearity = nonlinearity
        check_in("GILR", "nonlinearity", nonlinearity, ("tanh", "elu"))
        self.in_proj = Linear(d_model, (2 + refines(gates)) * self.d_state, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._glorot(self.in_proj, self.out_proj)
        self._start_biases(self.in_proj, 1, *[2] * refines(self.gates))
        self.learned.reset(self)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, c: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        z, f = self._gates(self.in_proj, x)  # each (B, T, d_state)
        cell = pooled if self.nonlinearity == "tanh" else pooled_elu
        y, last = self.learned.scan(self, cell, {"c": c}, reset, z=z, f=f)
        return self._project_out(y), last["c"]
