"""Base of the layers of columns: recurrent units of one number, which see no other."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.cells import cell
from linrnn.compute.parts import parts
from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part, real


@cell(state="h c", constant="r_i r_f r_g r_o")
def columns(
    h: Any, c: Any, i: Any, f: Any, g: Any, o: Any, r_i: Any, r_f: Any, r_g: Any, r_o: Any
) -> tuple[Any, Any]:
    """One step of LSTMs that have one number each."""
    i, f = torch.sigmoid(i + r_i * h), torch.sigmoid(f + r_f * h)
    g, o = torch.tanh(g + r_g * h), torch.sigmoid(o + r_o * h)
    c = f * c + i * g
    h = o * torch.tanh(c)
    return h, (h, c)


class Columns(Mixer):
    """LSTMs of one number each, side by side: y are their ``d_state`` outputs h.

    Args:
        d_model: channels of what they read.
        d_state: how many they are.
        learn_initial: learn the state that a sequence begins from.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "gated"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    learned: ClassVar[LearnedStart] = LearnedStart("h", "c")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("r",)

    def __init__(
        self, d_model: int, d_state: int, *, learn_initial: bool = False, **to: Any
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_state
        check_positive_int(type(self).__name__, d_state=d_state)
        self.learned.add(self, learn_initial, d_state, **to)
        self.in_proj = Linear(d_model, 4 * d_state, **to)
        self.r = nn.Parameter(torch.empty(4, d_state, **to))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.uniform_(self.in_proj.weight, -(self.d_model**-0.5), self.d_model**-0.5)
        nn.init.uniform_(self.r, -1, 1)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.ones_(self.in_proj.bias[self.d_state : 2 * self.d_state])
        self.learned.reset(self)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`."""
        return {"h": real(d_state=self.d_state), "c": real(d_state=self.d_state)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        projected = self.in_proj(x.to(self.in_proj.weight.dtype))
        arguments = dict(zip("ifgo", parts(projected, 4), strict=True))
        arguments |= zip(("r_i", "r_f", "r_g", "r_o"), wide(self.r), strict=True)
        start = {"h": state["h"], "c": state["c"]}
        return self.learned.scan(self, columns, start, reset, **arguments)


class Stage(Columns):
    """Columns that are a part of a layer."""
