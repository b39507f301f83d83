"""Real-time recurrent learning."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError
from linrnn.learn._exact.influence import advanced, owing
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.windows import Window, Windowed
from linrnn.mixers import Mixer
from linrnn.state import detach
from linrnn.typing import State


class RTRL(Windowed):
    r"""Real-time recurrent learning: the exact gradient of any model, at a memory without a past.

    Every number of the state is carried with its derivative with respect to every parameter. That
    is exact for any stack of layers, any pooling, norms over the batch and dropout, however long a
    sequence is, and costs what it says: memory of a state times the parameters, for each row, and
    as many backward passes a window as there are numbers in the states of all rows. For small
    models, and to check other rules against.

    Equation::

        M_t = J_t M_{t-1} + dF/dtheta,   dL/dtheta = sum_t (dl_t/dh_t)^T M_t      M_0 = 0

    Args:
        window: steps between two updates of M, through which autograd goes as `bptt` does. 1 is
            the rule as published; more is as exact and faster, and keeps the activations of a
            window.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each. Derivatives that were made with older weights are kept then.

    Raises:
        ArgumentError: a window below 1, a model that does not read forward in time, or one whose
            state grows.

    Example:
        >>> from linrnn import learn
        >>> learn.build("rtrl", {"window": 8}).window
        8

    Reference:
        Williams and Zipser 1989, A learning algorithm for continually running fully recurrent
        neural networks.
    """

    exact: ClassVar[Mapping[str, Any]] = {"window": 4}

    def __init__(self, *, window: int = 1, update: Literal["batch", "window"] = "batch") -> None:
        super().__init__(window, update)
        self.influence: dict[str, Tensor] = {}

    def check(self, model: nn.Module) -> None:
        """Raise unless every layer reads forward in time and has a state of fixed size."""
        super().check(model)
        for name, layer in model.named_modules():
            if isinstance(layer, Mixer) and "constant_memory" in layer.declared:
                raise ArgumentError(
                    f"RTRL: every layer must have a state of fixed size, got {name} "
                    f"({type(layer).__name__}), whose state grows with what was read. Use tbptt."
                )

    def begin(self, model: nn.Module, rows: int, *, anew: bool) -> None:
        """Forget the rows that end, and those that are not in this batch."""
        parameters = dict(model.named_parameters())
        influence = {} if anew else self.influence
        for name, m in influence.items():
            if name not in parameters or m.shape[2:] != parameters[name].shape or len(m) < rows:
                raise ArgumentError(
                    f"RTRL: the derivatives must be of the model and of {rows} rows at least, got "
                    f"those of {name} and shape {tuple(m.shape)}. Is it the state of another run?"
                )
        self.influence = {name: m[:rows] for name, m in influence.items()}

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State]:
        """Answer with a state that goes with its derivatives, and compute those after it."""
        steps = slice(window.start, window.stop)

        def run(called: Callable[..., Any], state: State | None) -> State:
            return read(called, batch, state, steps)[1]

        with torch.random.fork_rng(devices=[]), without_autocast(batch.x.device):
            new = advanced(model, self.influence, previous_state, run)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        y, next_state = read(model, batch, owing(previous_state, named, self.influence), steps)
        self.influence = new
        return y, detach(next_state)

    def state_dict(self) -> dict[str, Tensor]:
        """The derivatives of every row and number of the state, by the name of the parameter."""
        return {f"influence/{name}": m for name, m in self.influence.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the derivatives that `state_dict` gave."""
        for key, m in state.items():
            if not key.startswith("influence/") or m.ndim < 2:
                raise ArgumentError(
                    "RTRL: the learner's state must be derivatives by parameters, got "
                    f"{key!r}. Is it that of another learner?"
                )
        self.influence = {key.removeprefix("influence/"): m for key, m in state.items()}
