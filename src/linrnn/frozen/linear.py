"""One answer to a sequence of a fixed number of steps: a linear map of all of its numbers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.backbone import Model
from linrnn.errors import ArgumentError, ShapeError
from linrnn.nn.lengths import as_lengths
from linrnn.nn.pool import Pool
from linrnn.typing import Float, Lengths, State, Time, Times


class LinearModel(Model):
    r"""A linear map of the numbers of a sequence, as of a logistic regression.

    Equation:
        y = b + sum_t W_t (x_t - m_t)

    over the steps that were read, of at most as many as it was fitted to. A step that was not read
    and a value that is NaN count as their mean ``m_t``, so there is an answer after each step.

    Args:
        weight: (d_output, steps * d_input) of the read-out, float64; the numbers of the first step
            come first.
        bias: (d_output,), the answer to the means.
        centre: (steps, d_input), the means ``m_t``, float64.

    Raises:
        ShapeError: sizes that do not fit one another.

    Example:
        >>> model = LinearModel(torch.ones(1, 3).double(), torch.zeros(1), torch.ones(3, 1))
        >>> y, state = model(torch.tensor([[[1.0], [4.0]]]))
        >>> model.step(torch.tensor([[3.0]]), state)[0].tolist()
        [[5.0]]
    """

    centre: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, centre: Tensor) -> None:
        super().__init__()
        if centre.ndim != 2 or weight.shape != (len(bias), centre.numel()):
            raise ShapeError(
                "LinearModel: weight must have shape (d_output, steps * d_input), bias (d_output,) "
                f"and centre (steps, d_input), got {tuple(weight.shape)}, {tuple(bias.shape)} and "
                f"{tuple(centre.shape)}."
            )
        self.steps, self.d_input = centre.shape
        self.d_model, self.d_output, self.documents = self.d_input, len(bias), 1
        self.encoder, self.pool = nn.Identity(), Pool("last")
        self.register_buffer("centre", centre.double())
        self.head = nn.Linear(centre.numel(), self.d_output, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(weight)
            self.head.bias.copy_(bias)

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor]) -> "LinearModel":
        """A model of stored weights.

        Raises:
            ShapeError: they are of something else.
        """
        parts = [weights.get(name) for name in ("head.weight", "head.bias", "centre")]
        sizes = [0 if part is None else part.ndim for part in parts]
        weight, bias, centre = parts
        if weight is None or bias is None or centre is None or sizes != [2, 1, 2]:
            raise ShapeError("LinearModel: weights must be those of its head, got others.")
        return cls(weight, bias, centre)

    @property
    def timed(self) -> bool:
        """Steps are alike."""
        return False

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Nothing read yet: the sum, and the number of steps that were read."""
        zero = self.centre.new_zeros(batch_size, self.d_output, device=device)
        return {"sum": zero, "read": zero.new_zeros(batch_size)}

    def forward(
        self,
        x: Float[Tensor, "batch time d_input"],
        state: State | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Lengths | None = None,
        dt: Times | None = None,
    ) -> tuple[Float[Tensor, "batch d_output"], dict[str, Tensor]]:
        """Read sequences, or go on with them; ``dt`` is not read.

        Raises:
            ArgumentError: ``reset`` is given.
            ShapeError: more steps than the model was fitted to.
        """
        if reset is not None:
            raise ArgumentError(
                "LinearModel: reset must be None, got a value. Begin with a new state."
            )
        entering: dict[str, Tensor] = self.init_state(len(x)) if state is None else dict(state)
        begun = entering["read"].long()
        if lengths is None:
            ends = begun + x.shape[1]
        else:
            ends = begun + as_lengths("LinearModel", lengths).to(x.device)
        self._check_ends(ends)
        places = begun[:, None] + torch.arange(x.shape[1], device=x.device)  # (batch, time)
        # what is past the end falls into one more place, which is left out again
        places = torch.where(places < ends[:, None], places, self.steps)
        means = torch.cat([self.centre, torch.zeros_like(self.centre[:1])])
        parts = (x.double() - means[places]).nan_to_num(nan=0.0)
        dense = parts.new_zeros(len(x), self.steps + 1, self.d_input)
        dense.scatter_(1, places[..., None].expand_as(parts), parts)
        total = entering["sum"] + dense[:, : self.steps].flatten(1) @ self.head.weight.T
        return total + self.head.bias, {"sum": total, "read": ends.to(total.dtype)}

    def step(
        self, x_t: Float[Tensor, "batch d_input"], state: Any, *, dt: Time | None = None
    ) -> tuple[Float[Tensor, "batch d_output"], dict[str, Tensor]]:
        """Read one step: the answer takes the means for those to come.

        A compiled or exported step cannot raise the error of a step too many: its answer is NaN.
        """
        place = state["read"].long()
        if not torch.compiler.is_compiling():
            self._check_ends(place + 1)
        inside = place < self.steps
        place = place.clamp(max=self.steps - 1)
        part = (x_t.double() - self.centre[place]).nan_to_num(nan=0.0)  # (batch, d_input)
        weight = self.head.weight.T.unflatten(0, (self.steps, self.d_input))[place]
        total = state["sum"] + (part[:, :, None] * weight).sum(1)  # (batch, d_output)
        total = torch.where(inside[:, None], total, torch.nan)
        return total + self.head.bias, {"sum": total, "read": state["read"] + 1}

    def _check_ends(self, ends: Tensor) -> None:
        if len(ends) and (longest := int(ends.max())) > self.steps:
            raise ShapeError(
                f"LinearModel: a sequence must have at most the {self.steps} steps that the model "
                f"was fitted to, got {longest}. Begin a new one with a new state."
            )
