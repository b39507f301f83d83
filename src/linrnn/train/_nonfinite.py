"""NaN and infinity in training: which tensor had the first, and what becomes of the step.

Nothing here runs while all numbers are finite. A bad loss or gradient is computed once more, the
same bits again, with a hook on every module.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.compute.finite import first_bad, in_words
from linrnn.compute.modes import transformed
from linrnn.errors import NonFiniteError
from linrnn.state import leaves
from linrnn.train._report import Reporter, Silent
from linrnn.typing import State

SKIPS = 10
"""Steps in a row that are left out under ``skip``; one more stops the run."""

ROLLBACKS = 3
"""Times the weights of one epoch's end are gone back to under ``rollback``; one more stops."""


class LeftOut(Exception):  # noqa: N818  not an error: what becomes of the step is decided later
    """Something in a step is not finite: what, its value, and where it was first seen."""

    def __init__(self, what: str, value: str, where: str | None) -> None:
        super().__init__(what)
        self.what, self.value, self.where = what, value, where


def bad_state(name: str, state: State) -> str | None:
    """Describe the first part of a state that is not finite, or None.

    Minus infinity may stand in a real one: the logarithm of no weight.
    """
    for i, h in enumerate(leaves(state)):
        bad = ~h.isfinite() if h.is_complex() else h.isnan() | (h == torch.inf)
        if bad.any():
            return in_words(f"part {i} of {name}", h, bad)
    return None


def bad_gradient(named: Sequence[tuple[str, Tensor]]) -> str:
    """Describe the fault of gradients whose norm is not finite."""
    bad = [(name, g) for name, g in named if not g.isfinite().all()]
    if bad:
        return f"{first_bad(bad[:1])}, as have {len(bad)} of {len(named)} gradients"
    name, largest = max(((n, g.abs().max().item()) for n, g in named), key=lambda pair: pair[1])
    return f"each is finite, but their norm overflows: {name} has values up to {largest:.3g}"


@contextmanager
def watch(model: nn.Module) -> Iterator[list[str]]:
    """The first bad tensor inside comes into the list: in the forward pass, else the backward."""
    faults: list[str] = []
    hooks = []
    for name, part in model.named_modules():
        label = name or "the model"
        hooks += [
            part.register_forward_pre_hook(_see_input(faults, label)),
            part.register_forward_hook(_see_output(faults, label)),
        ]
    try:
        yield faults
    finally:
        for hook in hooks:
            hook.remove()


class Guard:
    """Decides what becomes of a step whose numbers are not finite, and counts.

    Args:
        on_nan: ``stop``, ``skip`` or ``rollback``.
        reporter: told of every step that is left out.
        advice: returns the end of the message with which a run stops.
    """

    def __init__(
        self,
        on_nan: str = "stop",
        reporter: Reporter | None = None,
        advice: Callable[[], str] = str,
    ) -> None:
        self.on_nan, self.advice = on_nan, advice
        self.reporter = reporter or Silent()
        self.counts = {"skipped": 0, "in_a_row": 0, "rollbacks": 0, "since_epoch": 0}

    def leave_out(self, what: str, weights: str | None) -> None:
        """Count a step as left out.

        Args:
            what: was wrong with it.
            weights: is wrong with the weights before it, if something is.

        Raises:
            NonFiniteError: the run is to stop, or this did not help before.
        """
        counts = self.counts
        if self.on_nan == "stop":
            raise self.stop(what)
        if self.on_nan == "skip":
            if weights:
                raise self.stop(f"{what}; no step helps weights that are not finite")
            if counts["in_a_row"] >= SKIPS:
                raise self.stop(f"{what}; {SKIPS} steps before it were left out")
            counts["skipped"] += 1
            counts["in_a_row"] += 1
            self.reporter.noticed(f"{what}; the step is left out ({counts['skipped']} so far)")
            return
        if counts["since_epoch"] >= ROLLBACKS:
            raise self.stop(f"{what}; the run went back {ROLLBACKS} times in this epoch")
        counts["rollbacks"] += 1
        counts["since_epoch"] += 1
        self.reporter.noticed(f"{what}; the weights go back to those before this epoch")

    def stop(self, what: str) -> NonFiniteError:
        """The error a run stops with."""
        return NonFiniteError(f"training: {what}. {self.advice()}".rstrip())

    def good_step(self) -> None:
        """A step was done."""
        self.counts["in_a_row"] = 0

    def epoch_end(self) -> None:
        """An epoch was done and validated."""
        self.counts["since_epoch"] = 0


def _see_input(faults: list[str], label: str) -> Callable[..., None]:
    def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
        # a learner may read once more inside a transform, where no number can be looked at
        if not faults and args and isinstance(args[0], Tensor) and not transformed():
            faults.extend(filter(None, [first_bad([(f"the input of {label}", args[0])])]))

    return hook


def _see_output(faults: list[str], label: str) -> Callable[..., None]:
    """Notes the output, and in the backward pass the gradient of the loss with respect to it."""

    def see_gradient(gradient: Tensor | None) -> None:
        # None: a learner differentiates other outputs
        if not faults and gradient is not None and not transformed():
            name = f"the gradient with respect to the output of {label}"
            faults.extend(filter(None, [first_bad([(name, gradient)])]))

    def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        y, *states = output if isinstance(output, tuple) else (output,)
        if not isinstance(y, Tensor) or transformed():
            return
        if not faults:
            faults.extend(filter(None, [first_bad([(f"the output of {label}", y)])]))
        if not faults and states:
            faults.extend(filter(None, [bad_state(f"the state after {label}", states[0])]))
        if y.requires_grad:
            y.register_hook(see_gradient)

    return hook
