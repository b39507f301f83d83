"""ParaGRU, a GRU of channels apart, which Newton's method reads in parallel."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.precision import wide
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.gated import Gated
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part, real


@cell(state="h", constant="a_z a_r a_n")
def para_gru(h: Any, z: Any, r: Any, n: Any, a_z: Any, a_r: Any, a_n: Any) -> tuple[Any, Any]:
    """One step; z is the weight of what is new."""
    z, r = torch.sigmoid(z + a_z * h), torch.sigmoid(r + a_r * h)
    h = torch.lerp(h, torch.tanh(n + a_n * (r * h)), z)
    return h, h


class ParaGRU(Gated):
    r"""ParaGRU: a GRU with diagonal recurrent weights, computed in parallel by Newton's method.

    Equation:
        z_t = sigmoid(B_z x_t + b_z + a_z * h_{t-1})                h in R^{d_state}
        r_t = sigmoid(B_r x_t + b_r + a_r * h_{t-1})
        n_t = tanh(B_n x_t + b_n + a_n * (r_t * h_{t-1}))
        h_t = (1 - z_t) * h_{t-1} + z_t * n_t
        y_t = h_t, or W_out h_t + b_out where d_state is not d_model
        |h_t| < 1 if |h_0| < 1. The Jacobian of a step is diagonal: inside of
        ``linrnn.ops.use_form("newton")`` all steps are computed at once. Initially a is normal of
        variance 4 / (5 d_state), B uniform within sqrt(6 / (d_model + d_state)), b_r and b_n are 0,
        and b_z falls evenly from 0 to -1.

    Args:
        d_state: channels of h. Default: d_model.
        learn_initial: learn the state that a sequence begins from.

    Departures from the paper:
        Extension beyond the survey. This is the cell: its projections are whole matrices, where
        the paper's are in blocks, and the short convolution, norm and gate of the paper's layer
        are not there. W_out is ours.

    Example:
        >>> y, state = ParaGRU(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Danieli et al., "ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large Language
        Models", 2025, arXiv:2510.21450. Key: danieli2025pararnn.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("a",)

    choices = Choices(
        transition="diagonal", gate="state", memory="vector", normaliser="convex", steps="nonlinear"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("a",)

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
        self.in_proj = Linear(d_model, 3 * self.d_state, **to)  # z, r, n
        self.a = nn.Parameter(torch.empty(3, self.d_state, **to))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self._start_channels(self.in_proj, self.a)
        self.learned.reset(self)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        arguments = dict(zip("zrn", self._blocks(self.in_proj, x), strict=True))
        arguments |= zip(("a_z", "a_r", "a_n"), wide(self.a), strict=True)
        y, last = self.learned.scan(self, para_gru, {"c": h}, reset, **arguments)
        return self._project_out(y), last["c"]
