"""A foreign model, called as a learner calls ours."""

import inspect
from typing import Any

from torch import Tensor, nn

from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, ArgumentTypeError
from linrnn.mixers import Mixer


def as_called(model: nn.Module) -> nn.Module:
    """A module called as ``y, state = model(x, state, lengths=...)``: the model, or a wrapper.

    The wrapper has no parameters and does not register the model as a submodule, so that the names
    of parameters stay as they are.
    """
    ours = isinstance(model, (SequenceModel, Mixer)) or hasattr(model, "init_state")
    return model if ours else _Called(model)


class _Called(nn.Module):
    """A wrapper of a model that has no state between batches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple PyTorch does not find it
        parameters = inspect.signature(model.forward).parameters.values()
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = {
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }

    def forward(
        self, x: Tensor, state: Any = None, **arguments: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Answer as the model does, without a state."""
        (model,) = self._model
        where = type(model).__name__
        for name in arguments:
            if not self._takes_any and name not in self._names:
                raise ArgumentError(
                    f"{where}.forward: it must take {name} where batches have such, got "
                    f"({', '.join(sorted(self._names))}). Add an argument named {name}, or leave "
                    f"it out of the batch with prepare_batch."
                )
        y = model(x, **arguments)
        if isinstance(y, (tuple, list)) and y:
            y = y[0]  # as of nn.GRU: (output, state)
        y = getattr(y, "logits", y)
        if not isinstance(y, Tensor):
            raise ArgumentTypeError(
                f"{where}.forward: it must return a tensor, a tuple that begins with one, or an "
                f"object with logits, got a {type(y).__name__}. Wrap the model in a module that "
                "does."
            )
        return y, {}
