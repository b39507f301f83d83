"""Restores the state before a step, so that the step can be left out or computed once more."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from linrnn.learn import Learner


@runtime_checkable  # as the shape checker of the test run needs it to be
class Stepping(Protocol):
    """The part of a `TrainingModule` that `Start` reads and restores."""

    model: Any
    learner: Learner
    guard: Any
    carried: Any

    def optimizer_in_use(self) -> torch.optim.Optimizer:
        """The optimiser whose step may be taken back."""


class Start:
    """The state before a step, to which a step that is left out returns.

    Args:
        module: before the step.
        batch: of the step.
    """

    def __init__(self, module: Stepping, batch: Sequence[Tensor]) -> None:
        self.batch, self.carried = batch, module.carried
        self.learner = module.learner.state_dict()
        self.random = torch.random.get_rng_state()
        self.skips = module.guard.on_nan == "skip"
        # the running statistics of a norm have moved before a bad loss is seen
        named_buffers = module.model.named_buffers() if self.skips else ()
        self.buffers = {name: buffer.clone() for name, buffer in named_buffers}
        self.weights: list[Tensor] | None = None
        self.optimizer: dict[str, Any] = {}

    def keep_weights(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy weights and optimiser before the optimiser's first step inside the batch."""
        if self.weights is None:
            self.weights = [p.detach().clone() for p in model.parameters()] if self.skips else []
            self.optimizer = copy.deepcopy(optimizer.state_dict()) if self.skips else {}

    def restore(self, module: Stepping) -> None:
        """Put everything back, where steps are skipped."""
        module.learner.load_state_dict(self.learner)
        with torch.no_grad():
            for name, buffer in module.model.named_buffers():
                buffer.copy_(self.buffers[name])
            for parameter, value in zip(
                module.model.parameters(), self.weights or (), strict=False
            ):
                parameter.copy_(value)
        if self.optimizer:
            module.optimizer_in_use().load_state_dict(self.optimizer)

    @contextmanager
    def again(self, learner: Learner) -> Iterator[None]:
        """Inside, random numbers are those of the start; the learner is, and stays, as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(self.random)
            learner.load_state_dict(self.learner)
            yield
