"""The base class of learners, which compute gradients; the loop calls one once a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.learn._parts.batch import Batch
from linrnn.learn._parts.loop import Loop as Loop
from linrnn.learn._parts.loop import Step as Step
from linrnn.typing import State


class Learner(ABC):
    """A way to find the gradient of a loss with respect to the parameters of a recurrent model.

    A subclass lives in its own file in ``linrnn/learn`` and is named by it. The arguments of
    its constructor, keywords with defaults, are its options: on the command line
    ``--learner.NAME``. It implements `step`; the loop does the rest: order of the data, precision,
    numbers that are not finite, clipping, the optimiser, checkpoints.

    What it remembers from step to step (traces, running means) is in `state_dict`, is part of
    every checkpoint, and goes back with the weights where a step is left out. So a step puts new
    tensors instead of old ones and changes none in place. What belongs to the rows of a
    batch begins anew where no state is carried into a step. Random numbers come from PyTorch's
    generator, which the loop seeds for each step.
    """

    aliases: ClassVar[tuple[str, ...]] = ()
    """Former names, which still go wherever the name does, and are listed nowhere."""

    exact: ClassVar[Mapping[str, Any] | None] = None
    """Options with which the gradient is that of the whole for any sequence of up to 64 steps;
    None: there are none. The contract tests compare it with autograd's."""

    descends: ClassVar[bool] = True
    """Whether it leaves gradients for the optimiser. One that does not sets weights itself, in
    `after_update`."""

    def check(self, model: nn.Module) -> None:  # noqa: B027  the default needs nothing
        """Raise unless the model has what this learner needs; called before the first step.

        Raises:
            ArgumentError: names the layer that lacks it, and what it lacks.
        """

    def after_update(self, model: nn.Module) -> None:  # noqa: B027  most leave the weights alone
        """Called by the loop after each step of the optimiser that is not left out."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Add the gradients of one batch to ``.grad``.

        Args:
            model: in training mode; its parameters have no gradients yet.
            batch: inputs and targets, with the lengths of padded rows, the steps at which a new
                sequence begins and the times between steps where there are such.
            carried: state of each row before the batch, without a history; None where rows begin.
            loop: loss, backward and update.
        """

    def stream(
        self,
        model: Any,
        steps: Iterable[tuple[Any, Any]],
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        **options: Any,
    ) -> Iterator[Tensor]:
        """Answer to one pair of input and target after the other, for ever, and learn from each.

        Args:
            model: a `linrnn.SequenceModel` in evaluation mode.
            steps: steps or chunks and their targets, as `LearningSession.feed` takes them; to one
                whose target is None it answers without learning from it.
            loss, optimizer: as of `LearningSession`.
            **options: others of `LearningSession`.

        Example:
            >>> from linrnn import SequenceModel, learn
            >>> model = SequenceModel(1, 1, d_model=4, n_layers=1, norm="layer", pool="none").eval()
            >>> adam, mse = torch.optim.Adam(model.parameters()), torch.nn.functional.mse_loss
            >>> pairs = (([0.1 * (t % 3)], [0.1 * (t % 5)]) for t in range(4))
            >>> rule = learn.build("diagonal_rtrl")
            >>> [y.shape[0] for y in rule.stream(model, pairs, loss=mse, optimizer=adam)]
            [1, 1, 1, 1]
        """
        from linrnn.learn._parts.session import LearningSession

        session = LearningSession(model, self, loss, optimizer, **options)
        for x, target in steps:
            yield session.feed(x, target)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that this learner remembers, by name. Default: none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ArgumentError: it has other names or shapes than such a state; nothing is changed.
        """
        if state:
            raise ArgumentError(
                f"{type(self).__name__}: the learner's state must be empty, got {min(state)!r}. "
                "Is it that of another learner?"
            )
