"""One layer of `linrnn.RNN` in one direction."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.backbone.pattern import Choice
from linrnn.mixers import Mixer, TorchRNN, load
from linrnn.nn import GLU
from linrnn.nn.linear import Linear
from linrnn.rnn._packing import Layout, Marks
from linrnn.typing import Signals, State


def _reads_any_width(choice: Choice) -> bool:
    """Whether it is one of PyTorch's, whose weights for the input have the input's width."""
    is_ours = isinstance(choice.mixer, Mixer) or not issubclass(load(choice.mixer), TorchRNN)
    return not is_ours and choice.options.get("d_state") is None


def biased(choice: Choice, bias: bool, directions: int) -> Choice:
    """The choice of a layer with the layer's bias, for that number of cells."""
    alone = choice.alone and directions == 1
    if isinstance(choice.mixer, Mixer) or not choice.takes("bias"):
        return replace(choice, alone=alone)
    return replace(choice, alone=alone, options={"bias": bias, **choice.options})


class Cell(nn.Module):
    """One layer in one direction: a mixer between maps from and to other widths."""

    def __init__(
        self,
        choice: Choice,
        input_size: int,
        hidden_size: int,
        proj_size: int,
        *,
        bias: bool,
        glu: bool | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        width = hidden_size
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.native = _reads_any_width(choice)
        self.in_proj: nn.Module = nn.Identity()
        self.out_proj: nn.Module = nn.Identity()
        projects = self.native and proj_size > 0 and choice.takes("proj_size")
        if self.native:
            sizes = {"d_state": width} | ({"proj_size": proj_size} if projects else {})
            choice = replace(choice, options={**choice.options, **sizes})
            mixer = choice.build(input_size, **factory)
            mixer.out_proj = nn.Identity()  # the states themselves, not back to the input's width
        else:
            mixer = choice.build(width, **factory)
            if input_size != width:
                self.in_proj = Linear(input_size, width, bias, **factory)
        self.mixer, self.width = mixer, proj_size if projects else width
        linear = type(mixer).eigenvalues is not Mixer.eigenvalues
        self.glu = GLU(self.width, **factory) if (linear if glu is None else glu) else None
        if proj_size and not projects:
            self.out_proj = Linear(width, proj_size, bias, **factory)

    def forward(
        self,
        x: Tensor,
        state: State | None,
        layout: Layout,
        marks: Marks,
        signals: Signals | None = None,
    ) -> tuple[Tensor, State, Signals]:
        v, state, outgoing = layout.read(self.mixer, self.in_proj(x), state, marks, signals)
        if self.native and not v.shape[1]:  # a mixer hands back the empty input
            v = v.new_empty(len(v), 0, self.width)
        v = v if self.glu is None else self.glu(F.gelu(v))
        return self.out_proj(v), state, outgoing


def draw(module: nn.Module) -> None:
    """Draw the parameters of a module, whose own ``reset_parameters`` has those of its parts too.

    A mixer draws some parts otherwise than they would draw themselves.
    """
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
        return
    for part in module.children():
        draw(part)
