"""Targets of layers: their outputs, moved by the error of the answer, fed straight back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer, added_losses
from linrnn.state import detach
from linrnn.typing import State

_PREFIX = "feedback"


class Feedback:
    """Weights from the error of an answer to the target of each layer's output.

    Args:
        where: the learner, for messages.
        beta: how far a target lies from an output.
        rate: how far weights go at once; 0 leaves them as they were drawn.

    Attributes:
        weights: of each layer by name, (d_model, d_output).
    """

    def __init__(self, where: str, beta: float, rate: float) -> None:
        self._where, self.beta, self.rate = where, beta, rate
        self.weights: dict[str, Tensor] = {}
        self._found: dict[str, Tensor] = {}

    def taught(self, y: Tensor, outputs: Mapping[str, Tensor]) -> Tensor:
        """Answers (batch, time, d_output) whose gradient goes to the outputs by these weights."""
        for name, z in outputs.items():
            shape = (z.shape[-1], y.shape[-1])
            if name not in self.weights:
                noise = torch.randn(shape, dtype=z.dtype, device=z.device)
                self.weights[name] = shape[0] ** -0.5 * noise
            if self.weights[name].shape != shape:
                raise ArgumentError(
                    f"{self._where}: feedback must be of the model, {shape} for {name}, got "
                    f"{tuple(self.weights[name].shape)}. Is it the state of another run?"
                )
        taught: Tensor = _Taught.apply(self, list(outputs), y, *outputs.values())
        return taught

    def note(self, name: str, z: Tensor, g: Tensor) -> None:
        """Note what a weight from an output to the answer would learn, for when it is `settle`d."""
        d = torch.einsum("bti,bto->io", z, g.to(z.dtype))
        self._found[name] = d if name not in self._found else self._found[name] + d

    def settle(self) -> None:
        """Let the weights learn what was noted down."""
        for name, d in self._found.items():
            self.weights[name] = self.weights[name] - self.rate * d
        self._found = {}

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, by the names of layers."""
        self.settle()
        return {f"{_PREFIX}/{name}": w for name, w in self.weights.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave."""
        for key, w in state.items():
            if not key.startswith(f"{_PREFIX}/") or w.ndim != 2:
                raise ArgumentError(
                    f"{self._where}: the learner's state must be feedback to layers, got {key!r}. "
                    "Is it that of another learner?"
                )
        self.weights = {n.removeprefix(f"{_PREFIX}/"): w for n, w in state.items()}
        self._found = {}


class _Taught(torch.autograd.Function):
    """Answers as they are; their error goes to themselves, and by feedback to layers."""

    @staticmethod
    def forward(
        ctx: Any, feedback: Feedback, names: Sequence[str], y: Tensor, *outputs: Tensor
    ) -> Tensor:
        ctx.feedback, ctx.names, ctx.outputs = feedback, names, [z.detach() for z in outputs]
        return y.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        feedback, grads = ctx.feedback, []
        for name, z in zip(ctx.names, ctx.outputs, strict=True):
            w = feedback.weights[name]
            grads.append(feedback.beta * (g.to(w.dtype) @ w.mT).to(z.dtype))
            feedback.note(name, z, g)
        return None, None, g, *grads


def by_steps(layer: Mixer, x: Tensor, state: State, more: Mapping[str, Tensor]) -> Tensor:
    """Outputs (batch, time, d_model) that depend on parameters at their own step alone."""
    outputs = []
    with added_losses():  # the pass of the model has them already
        for t in range(x.shape[1]):
            options = {n: v[:, t : t + 1] for n, v in more.items()}
            y, state = layer(x[:, t : t + 1], detach(state), **options)
            outputs.append(y)
    return torch.cat(outputs, 1)
