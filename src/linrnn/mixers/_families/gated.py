"""Base of layers whose gates see only the input: a projection, and a channel-wise cell."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.parts import parts
from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn.linear import Linear
from linrnn.nn.starts import check_gates, refined, refines, start_gates


@cell(state="c")
def pooled(c: Any, z: Any, f: Any) -> tuple[Any, Any]:
    """The mean of what was and what comes, of logit f: f-pooling, and GILR."""
    c = torch.lerp(torch.tanh(z), c, torch.sigmoid(f))
    return c, c


@cell(state="c")
def pooled_elu(c: Any, z: Any, f: Any) -> tuple[Any, Any]:
    """`pooled` of another nonlinearity."""
    c = torch.lerp(F.elu(z), c, torch.sigmoid(f))
    return c, c


@cell(state="c")
def pooled_fo(c: Any, z: Any, f: Any, o: Any) -> tuple[Any, Any]:
    """`pooled`, seen through an output gate."""
    c = torch.lerp(torch.tanh(z), c, torch.sigmoid(f))
    return torch.sigmoid(o) * c, c


@cell(state="c")
def pooled_ifo(c: Any, z: Any, f: Any, o: Any, i: Any) -> tuple[Any, Any]:
    """The two weights are gates of their own."""
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * c, c


class Gated(Mixer):
    """Gates of the input around a state of channels apart, and the way back to d_model.

    A subclass calls `_add_gates`, then makes its projections, and starts their biases by
    `_start_biases`.
    """

    family: ClassVar[str] = "gated"
    learned: ClassVar[LearnedStart] = LearnedStart("c")

    def _add_gates(
        self,
        d_model: int,
        d_state: int | None,
        learn_initial: bool,
        gates: str = "plain",
        t_max: int | None = None,
        **to: Any,
    ) -> None:
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        check_positive_int(type(self).__name__, d_state=self.d_state)
        check_gates(type(self).__name__, gates, t_max)
        self.gates, self.t_max = gates, t_max
        self.learned.add(self, learn_initial, self.d_state, **to)
        self.out_proj: nn.Module = nn.Identity()
        if self.d_state != d_model:
            self.out_proj = Linear(self.d_state, d_model, **to)

    def _glorot(self, *linears: nn.Module) -> None:
        """Glorot-uniform, each block of d_state rows for itself, and biases of 0."""
        for linear in linears:
            if isinstance(linear, nn.Linear):
                inner = linear is not self.out_proj
                for rows in linear.weight.split(self.d_state) if inner else [linear.weight]:
                    nn.init.xavier_uniform_(rows)
                nn.init.zeros_(linear.bias)

    def _start_channels(self, linear: nn.Linear, *vectors: Tensor) -> None:
        """The start of ParaRNN: of a projection to gate, gate and candidate, and vectors."""
        bound = (6 / (self.d_model + self.d_state)) ** 0.5
        nn.init.uniform_(linear.weight, -bound, bound)
        nn.init.zeros_(linear.bias)
        linear.bias[: self.d_state] = -torch.linspace(0, 1, self.d_state)
        for vector in vectors:
            nn.init.normal_(vector, std=(0.8 / self.d_state) ** 0.5)
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()

    def _start_biases(self, linear: nn.Linear, forget: int, *against: int) -> None:
        """Set the biases of a projection to blocks of d_state, counted from 0, by ``gates``."""
        blocks = linear.bias.split(self.d_state)
        start_gates(self.gates, self.t_max, blocks[forget], *(blocks[i] for i in against))

    def _blocks(self, linear: nn.Linear, x: Tensor) -> list[Tensor]:
        """The blocks of d_state of a projection."""
        projected = linear(x.to(linear.weight.dtype))
        return parts(projected, linear.out_features // self.d_state)

    def _gates(self, linear: nn.Linear, x: Tensor, forget: int = 1) -> list[Tensor]:
        """`_blocks`, of which the last refines the forget gate where there is a refine gate."""
        blocks = self._blocks(linear, x)
        if refines(self.gates):
            refine = wide(blocks.pop())
            blocks[forget] = refined(wide(blocks[forget]), refine)
        return blocks

    def _project_out(self, y: Tensor) -> Tensor:
        out = self.out_proj
        return out(y.to(out.weight.dtype)) if isinstance(out, nn.Linear) else y
