"""The memory of an agent's policy: a stack of mixers whose state is one row of numbers."""

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.backbone import SequenceModel
from linrnn.backbone.pattern import MixerLike
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.nn.parameters import parameters_of
from linrnn.rnn import RNN
from linrnn.state import leaves, map_state, rebuilt
from linrnn.typing import Bool, Float, State


class Memory(nn.Module):
    """``(x, state, start) -> (y, state)`` with any mixer; the state is a row for each sequence.

    The row has the state of every layer, bit for bit, as numbers of float32: real parts are as they
    are, a complex number is two, and a counter or a number of float64 the two that have its bits.
    Buffers of float32 hold it unchanged, and a row of zeros begins anew.

    Args:
        where: who asks, for messages.
        mixer, mixer_options: as of `linrnn.SequenceModel`.
        input_size, output_size: channels in, and channels of the layers and out.
        n_layers: layers.
        residual: `linrnn.SequenceModel` with layer norms, whose layers are blocks with skips; else
            `linrnn.RNN`, which has neither.

    Raises:
        ArgumentError: the state grows with what was read.
        UnknownNameError: an unknown mixer, or option of it.
    """

    def __init__(
        self,
        where: str,
        mixer: MixerLike,
        input_size: int,
        output_size: int,
        n_layers: int = 1,
        *,
        mixer_options: Mapping[str, Any] | None = None,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        options: Any = {"mixer": mixer, "mixer_options": mixer_options}
        self.layers: SequenceModel | Layers
        if residual:
            options |= {"d_model": output_size, "n_layers": n_layers, "norm": "layer"}
            self.layers = SequenceModel(input_size, output_size, pool="none", **options)
        else:
            self.layers = Layers(input_size, output_size, n_layers, **options)
        self._states: dict[torch.dtype, State] = {}
        if any(0 in h.shape for h in leaves(self._like())):
            raise ArgumentError(
                f"{where}: mixer must have a state of constant size, since rollouts are stored "
                f"step by step, got {mixer!r}. Choose another, or give attention a `window`."
            )

    @property
    def numbers(self) -> int:
        """Numbers of float32 in a row of the state."""
        return sum(map(_numbers, leaves(self._like())))

    def forward(
        self,
        x: Float[Tensor, "batch time input_size"],
        state: Float[Tensor, "batch numbers"],
        start: Bool[Tensor, "batch time"],
    ) -> tuple[Float[Tensor, "batch time output_size"], Float[Tensor, "batch numbers"]]:
        """Read sequences, beginning anew where ``start`` says that an episode begins."""
        before = self.unpack(state.masked_fill(start[:, :1], 0))
        if x.shape[1] == 1:
            y, after = self.layers.step(x[:, 0], before)
            return y[:, None], self.pack(after)
        # an episode that begins with the sequence is in `before`: most sequences have no other
        inside = start[:, 1:].any()
        reset = F.pad(start[:, 1:], (1, 0)) if inside else None
        y, after = self.layers(x, before, reset=reset)
        return y, self.pack(after)

    def pack(self, state: State) -> Float[Tensor, "batch numbers"]:
        """The bits of a state as rows of float32, without a history."""
        rows = []
        for h, like in zip(leaves(state), leaves(self._like()), strict=True):
            h = h.detach().to(like.dtype).resolve_conj()
            h = h.flatten(1) if h.ndim > 1 else h[:, None]
            rows.append(h.contiguous().view(torch.float32))
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def unpack(self, rows: Float[Tensor, "batch numbers"]) -> State:
        """The inverse of `pack`."""
        like = self._like()
        parts = leaves(like)
        pieces = rows.split([*map(_numbers, parts)], 1)
        return rebuilt(like, map(_seen_as, pieces, parts))

    def _like(self) -> State:
        """A state of one row, made once for each dtype of the parameters."""
        dtype = parameters_of(self)[0].dtype
        if dtype not in self._states:
            self._states[dtype] = map_state(Tensor.cpu, self.layers.init_state(1))
        return self._states[dtype]


def _numbers(h: Tensor) -> int:
    """Numbers of float32 with the bits of a tensor."""
    return h.numel() * h.element_size() // 4


def _seen_as(piece: Tensor, like: Tensor) -> Tensor:
    """Rows of float32 as a part of a state."""
    if like.dtype != torch.float32:  # longer numbers begin at multiples of their length
        piece = piece.clone(memory_format=torch.contiguous_format).view(like.dtype)
    return piece[:, 0] if like.ndim == 1 else piece.unflatten(1, like.shape[1:])


class Layers(nn.Module):
    """The layers of a `linrnn.RNN`, with the states of its mixers instead of ``hx``."""

    def __init__(self, input_size: int, output_size: int, n_layers: int, **options: Any) -> None:
        super().__init__()
        self.rnn = RNN(
            input_size=input_size,
            hidden_size=output_size,
            num_layers=n_layers,
            batch_first=True,
            **options,
        )

    def init_state(self, batch_size: int) -> list[State]:
        """Before the first step, of every layer."""
        return [mixer.init_state(batch_size) for mixer in self.mixers]

    @property
    def mixers(self) -> list[Mixer]:
        """First to last."""
        return [cast(Any, cell).mixer for cell in self.rnn.cells]

    def forward(
        self, x: Tensor, state: State, reset: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Read sequences (batch, time, channels)."""
        last = x.new_zeros(len(x), self.rnn.hidden_size)
        hidden = self.rnn.hidden
        hx = hidden.join([last] * hidden.layers, cast(list[Any], state))
        y, hx = self.rnn(x, hx, reset=reset)
        return cast(Tensor, y), hidden.split(hx)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one step (batch, channels)."""
        if any(mixer.receives for mixer in self.mixers):  # from one another
            y, state = self(x_t[:, None], state)
            return y[:, 0], state
        recorded = recorded_step(self, self._step_by_operators, x_t, state)
        return self._step_by_operators(x_t, state) if recorded is None else recorded

    def _step_by_operators(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        new = []
        for part, before in zip(self.rnn.cells, cast(list[State], state), strict=True):
            cell = cast(Any, part)
            x_t, after = cell.mixer.step(cell.in_proj(x_t), before)
            x_t = cell.out_proj(x_t if cell.glu is None else cell.glu(F.gelu(x_t)))
            new.append(after)
        return x_t, new
