"""Attention whose features can be drawn anew, from random directions for example."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from linrnn.errors import check_positive_int
from linrnn.mixers._families.kernel_attention import KernelAttention
from linrnn.nn.directions import RandomDirections
from linrnn.state_spec import Part, integer


class DrawnFeatureAttention(KernelAttention):
    """Features may change; a memory that was written with others is begun anew.

    An author says with `_draws` how often they have changed.
    """

    constant_state: ClassVar[tuple[str, ...]] = ("draw",)

    def _draws(self) -> Tensor:
        """An integer that is another one for other features."""
        raise NotImplementedError

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`; ``draw`` says of which draw of the features the rest is."""
        return {**super().state_spec(), "draw": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        draw, now = state["draw"], self._draws()
        valid = draw == now
        state = {
            name: torch.where(valid.view(-1, *[1] * len(part.axes)), state[name], part.start)
            for name, part in super().state_spec().items()
        }
        y, state = super()._read(x, state, reset)
        return y, {**state, "draw": torch.zeros_like(draw) + now}


class RandomFeatureAttention(DrawnFeatureAttention):
    """Features of random directions, which are a buffer.

    An author calls `_add_directions` before the parameters are drawn.
    """

    directions: RandomDirections
    updates: Tensor
    """Steps of the optimiser since the directions were last drawn."""

    def _add_directions(
        self, n_features: int, redraw_every: int | None, *, shared: bool = False, **options: Any
    ) -> None:
        """``n_features`` directions for every head, or ``shared`` by all.

        Args:
            n_features: directions.
            redraw_every: steps of the optimiser, or None for never.
            shared: by all heads.
            options: of `RandomDirections`.
        """
        name = type(self).__name__
        check_positive_int(name, n_features=n_features)
        if redraw_every is not None:
            check_positive_int(name, redraw_every=redraw_every)
        self.n_features, self.redraw_every = n_features, redraw_every
        heads = 1 if shared else self.n_heads
        self.directions = RandomDirections(n_features, self.d_key, heads, **options)
        self.register_buffer("updates", torch.zeros_like(self.directions.draws))

    def reset_parameters(self) -> None:
        """Draw every parameter and the directions anew from torch's global generator."""
        super().reset_parameters()
        self.directions.reset_parameters()
        self.updates = torch.zeros_like(self.updates)

    def redraw(self) -> None:
        """Draw the directions anew. Whatever state there is begins anew at the next call."""
        self.directions.redraw()
        self.updates = torch.zeros_like(self.updates)

    def after_update(self) -> None:
        """See `Mixer.after_update`: draw anew, every ``redraw_every`` steps."""
        if self.redraw_every is None:
            return
        self.updates = self.updates + 1
        if int(self.updates) >= self.redraw_every:
            self.redraw()

    def _draws(self) -> Tensor:
        return self.directions.draws
