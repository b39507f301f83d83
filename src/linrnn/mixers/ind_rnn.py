"""IndRNN, the independently recurrent network."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.mixers._families.gated import Gated
from linrnn.nn.channel_mix import check_layer
from linrnn.nn.linear import Linear
from linrnn.nn.starts import check_gates, start_gates
from linrnn.state_spec import Part, real


def _cell(phi: Any, name: str) -> Cell:
    def step(h: Any, x: Any, u: Any) -> tuple[Any, Any]:
        h = phi(x + u * h)
        return h, h

    return Cell(step, state="h", constant="u", name=name)


CELLS = {
    "relu": _cell(torch.relu, "ind_rnn"),
    "tanh": _cell(torch.tanh, "ind_rnn_tanh"),
    "identity": _cell(lambda x: x, "ind_rnn_identity"),
}


class IndRNN(Gated):
    r"""IndRNN: each channel's state feeds back only to itself, by one learned weight.

    Equation:
        h_t = phi(W x_t + b + u * h_{t-1})                  h, u in R^{d_state}
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        What a step passes back to another T steps before is at most |u|^T, so with t_max, the
        length of the sequences, |u| <= gamma^(1 / t_max), initially and after every step of the
        optimiser. Without, nothing bounds u, and above 1 the ReLU's state grows exponentially.
        Initially W is He-normal, b = 0, u is uniform on [0, gamma^(1 / t_max)]; in the last layer,
        which is to remember, on [epsilon^(1 / t_max), gamma^(1 / t_max)]. Without t_max on [0, 1].
        With start="chrono" u = 1 - 1/T, of memories T that are uniform on [2, t_max] steps.

    Args:
        d_state: channels of h. Default: d_model.
        nonlinearity: phi, "relu", "tanh" or "identity".
        t_max: longest sequence, or dependency, in steps. Default: unbounded.
        gamma: largest gain over t_max steps, at least 1.
        epsilon: least initial gain over t_max steps in the last layer, in (0, 1].
        start: of u, "published" or "chrono", which needs t_max; as the gates of other layers, see
            `linrnn.nn.starts`. There is no gate to refine.
        learn_initial: learn the state that a sequence begins from.
        layer, n_layers: place in the stack, counted from 0.

    Departures from the paper:
        Batch norm belongs to the block around; the authors' networks have it between W x and the
        recurrence. A layer without a stack is a last layer.

    Example:
        >>> y, state = IndRNN(d_model=4, d_state=8, t_max=100)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Li et al., "Independently Recurrent Neural Network (IndRNN): Building A Longer and Deeper
        RNN", CVPR 2018, arXiv:1803.04831. Key: li2018independently.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("u",)

    family: ClassVar[str] = "gated"
    choices = Choices(transition="diagonal", gate="learned", memory="vector", steps="nonlinear")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("u",)
    learned: ClassVar[LearnedStart] = LearnedStart("h")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        nonlinearity: Literal["relu", "tanh", "identity"] = "relu",
        t_max: int | None = None,
        gamma: float = 2.0,
        epsilon: float = 0.5,
        start: Literal["published", "chrono"] = "published",
        learn_initial: bool = False,
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, **to)
        self.nonlinearity, self.t_max, self.gamma, self.epsilon = (
            nonlinearity,
            t_max,
            gamma,
            epsilon,
        )
        self.layer, self.n_layers, self.start = layer, n_layers, start
        check_in("IndRNN", "nonlinearity", nonlinearity, tuple(CELLS))
        check_layer("IndRNN", layer, n_layers)
        check_in("IndRNN", "start", start, ("published", "chrono"))
        if start == "chrono":
            check_gates("IndRNN", start, t_max)
        if t_max is not None:
            check_positive_int("IndRNN", t_max=t_max)
        if not (1 <= gamma < float("inf") and 0 < epsilon <= 1):
            raise ArgumentError(
                "IndRNN: gamma must be at least 1 and epsilon in (0, 1], got "
                f"gamma={gamma}, epsilon={epsilon}."
            )
        self.in_proj = Linear(d_model, self.d_state, **to)
        self.u = nn.Parameter(torch.empty(self.d_state, **to))
        self.reset_parameters()

    def _to_last(self, gain: float) -> float:
        """The |u| with this gain over ``t_max`` steps; without ``t_max`` 1, the limit."""
        return 1.0 if self.t_max is None else gain ** (1 / self.t_max)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.kaiming_normal_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        remembers = self.t_max is not None and self.layer == self.n_layers - 1
        low = self._to_last(self.epsilon) if remembers else 0.0
        nn.init.uniform_(self.u, low, self._to_last(self.gamma))
        if self.start == "chrono":
            start_gates("chrono", self.t_max, self.u)
            self.u.sigmoid_()
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()
        self.learned.reset(self)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """See `Mixer.bounds`: |u| is at most gamma^(1 / t_max)."""
        if self.t_max is None:
            return {}
        largest = self._to_last(self.gamma)
        return {"u": (-largest, largest)}

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.in_proj(x.to(self.in_proj.weight.dtype))  # (B, T, d_state)
        cell = CELLS[self.nonlinearity]
        y, last = self.learned.scan(self, cell, {"h": h}, reset, x=x, u=wide(self.u))
        return self._project_out(y), last["h"]
