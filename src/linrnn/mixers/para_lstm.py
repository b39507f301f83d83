"""ParaLSTM, an LSTM of channels apart, which Newton's method reads in parallel."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.mixers._families.gated import Gated
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part, real


@cell(state="c h", constant="a_f a_o a_n p_f p_o")
def para_lstm(
    c: Any,
    h: Any,
    f: Any,
    o: Any,
    n: Any,
    a_f: Any,
    a_o: Any,
    a_n: Any,
    p_f: Any,
    p_o: Any,
) -> tuple[Any, Any]:
    """One step; the output gate sees the new c."""
    f = torch.sigmoid(f + a_f * h + p_f * c)
    c = torch.lerp(torch.tanh(n + a_n * h), c, f)
    h = torch.sigmoid(o + a_o * h + p_o * c) * torch.tanh(c)
    return h, (c, h)


class ParaLSTM(Gated):
    r"""ParaLSTM: an LSTM with diagonal recurrent weights and peepholes, parallel by Newton.

    Equation:
        f_t = sigmoid(B_f x_t + b_f + a_f * h_{t-1} + p_f * c_{t-1})      c, h in R^{d_state}
        n_t = tanh(B_n x_t + b_n + a_n * h_{t-1})
        c_t = f_t * c_{t-1} + (1 - f_t) * n_t
        o_t = sigmoid(B_o x_t + b_o + a_o * h_{t-1} + p_o * c_t)
        h_t = o_t * tanh(c_t)
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        |c_t| < 1 if |c_0| < 1. The Jacobian of a step is a block of 2 by 2 for every channel:
        inside of ``linrnn.ops.use_form("newton")`` all steps are computed at once. Initially a and
        p are normal of variance 4 / (5 d_state), B is uniform within sqrt(6 / (d_model +
        d_state)), b_o and b_n are 0, and b_f falls evenly from 0 to -1.

    Args:
        d_state: channels of c, and of h. Default: d_model.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        Extension beyond the survey. This is the cell: its projections are whole matrices, where
        the paper's are in blocks, and the short convolution, norm and gate of the paper's layer
        are not there. W_out is ours.

    Example:
        >>> y, state = ParaLSTM(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state["c"].shape, state["h"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]), torch.Size([2, 8]))

    Reference:
        Danieli et al., "ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large Language
        Models", 2025, arXiv:2510.21450. Key: danieli2025pararnn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("a", "p")

    choices = Choices(
        transition="local", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    like_lstm: ClassVar[bool] = True
    learned: ClassVar[LearnedStart] = LearnedStart("c", "h")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("a", "p")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        learn_initial: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: Any = {"device": device, "dtype": dtype}
        self._add_gates(d_model, d_state, learn_initial, **to)
        self.in_proj = Linear(d_model, 3 * self.d_state, **to)  # f, o, n
        self.a = nn.Parameter(torch.empty(3, self.d_state, **to))
        self.p = nn.Parameter(torch.empty(2, self.d_state, **to))  # of f, of o
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._start_channels(self.in_proj, self.a, self.p)
        self.learned.reset(self)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`."""
        return {"c": real(d_state=self.d_state), "h": real(d_state=self.d_state)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        arguments = dict(zip("fon", self._blocks(self.in_proj, x), strict=True))
        arguments |= zip(("a_f", "a_o", "a_n"), wide(self.a), strict=True)
        arguments |= zip(("p_f", "p_o"), wide(self.p), strict=True)
        start = {"c": state["c"], "h": state["h"]}
        y, last = self.learned.scan(self, para_lstm, start, reset, **arguments)
        return self._project_out(y), last
