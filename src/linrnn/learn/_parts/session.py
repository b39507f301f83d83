"""A model in the middle of a stream from which it goes on learning."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from linrnn import state as states
from linrnn._process.turns import Turns, drawing, in_turn
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import first_bad, misfit
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    check_at_most,
    check_kind,
    check_not_negative,
    check_positive_int,
    check_shape,
    show,
)
from linrnn.learn._parts.batch import Batch
from linrnn.learn._parts.loop import Loop, Step
from linrnn.streaming.input import (
    as_input,
    as_tensor,
    as_times,
    check_finite,
    check_streamable,
    pools,
)
from linrnn.typing import State

_MOST_CLIP = 1 << 63
Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss of an output and its target, as a `Loop` has it."""


@runtime_checkable
class Learns(Protocol):
    """The methods that a session needs of a `Learner`, whose `stream` makes one."""

    def check(self, model: nn.Module) -> None:
        """As of `Learner`."""

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """As of `Learner`."""
        ...

    def after_update(self, model: nn.Module) -> None:
        """As of `Learner`."""

    def state_dict(self) -> dict[str, Tensor]:
        """As of `Learner`."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As of `Learner`."""


class LearningSession:
    """One endless stream: a model that answers to each chunk, and then learns from it.

    What `linrnn.streaming.Session` is for a model that stays as it is. A chunk is read in pieces of
    at most ``every`` steps. The answers to a piece are those of the weights before it; then the
    learner's gradient of the piece moves them. Kept are the weights, what the optimiser and the
    learner remember and one state, so that memory and the cost of a step do not depend on what was
    read before. The model stays in evaluation mode: there is no dropout, and running statistics of
    a norm over the batch are those it came with. How a stream is cut into chunks decides where the
    weights move.

    What is not finite, of an input, an answer, a loss, a gradient or the state, raises, and the
    stream, weights and all, is where it was before the call. A call of more than one piece, or with
    a learner that moves the weights inside a piece, copies the weights and the optimiser's means
    for that.

    It may be used from several threads: each call happens as a whole, before or after every other.
    Sessions of a process take turns at learning, for the random numbers that learners draw come
    from one generator. A model learns in one session alone.

    Args:
        model: a causal `linrnn.SequenceModel` in evaluation mode with a state of fixed size.
        learner: finds the gradients; its windows are at most as long as a piece.
        loss: of an answer and its target: a scalar, the mean over what is asked in them.
        optimizer: of the model's parameters.
        every: most steps between two steps of the optimiser.
        clip: largest norm of the gradient; 0 does not clip.
        seed: of the random numbers that a learner draws.

    Attributes:
        frozen: the weights stay as they are. All else goes on, traces of the past too, so that
            learning may be taken up again at any step.
        state: after all that was read; None before anything was.
        steps: that were read.
        pieces: that were learned from.

    Raises:
        ArgumentError: the model cannot be streamed, or not be trained by this learner.

    Example:
        >>> from linrnn import learn
        >>> model = SequenceModel(1, 1, d_model=8, n_layers=1, norm="layer", pool="none").eval()
        >>> adam = torch.optim.Adam(model.parameters(), 1e-2)
        >>> rule = learn.build("diagonal_rtrl")
        >>> stream = LearningSession(model, rule, nn.functional.mse_loss, adam)
        >>> stream.feed([[0.5], [0.25]], [[0.25], [0.125]]).shape
        torch.Size([2, 1])
        >>> stream.feed([0.125]).shape  # a step to which there is no target
        torch.Size([1])
    """

    def __init__(
        self,
        model: SequenceModel,
        learner: Learns,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 64,
        clip: float = 1.0,
        seed: int = 0,
    ) -> None:
        where = type(self).__name__
        check_positive_int(where, every=every)
        check_streamable(where, model, growing=False)
        check_not_negative(where, clip=clip)
        check_at_most(where, _MOST_CLIP, clip=math.ceil(clip))
        if not isinstance(learner, Learns):
            raise ArgumentTypeError(f"{where}: learner must be a Learner, got {show(learner)}.")
        check_kind(where, "optimizer", optimizer, torch.optim.Optimizer)
        if not callable(loss):
            raise ArgumentTypeError(
                f"{where}: loss must be a function of an answer and its target, got {show(loss)}."
            )
        if isinstance(seed, bool) or not isinstance(seed, int) or not abs(seed) < 2**62:
            raise ArgumentError(f"{where}: seed must be an integer of 62 bits, got {show(seed)}.")
        learner.check(model)
        self.model, self.learner, self.loss, self.optimizer = model, learner, loss, optimizer
        self.every, self.clip, self.seed = every, clip, seed
        self.frozen = False
        self.state: State | None = None
        self.steps = self.pieces = 0
        self._before: tuple[list[Tensor], dict[str, Any]] | None = None
        self._turn = Turns()

    @in_turn
    def feed(self, x: Any, target: Any = None, dt: Any = None) -> Tensor:
        """Answer to a step or a chunk, and learn from it.

        Args:
            x: as of `linrnn.streaming.Session.feed`.
            target: of each step, or of a model that pools over time one, that of the last step; an
                array or a tensor. None: nothing is asked, and the weights stay as they are.
            dt: as of `linrnn.streaming.Session.feed`.

        Returns:
            As of `linrnn.streaming.Session.feed`.

        Raises:
            ShapeError, DTypeError, ArgumentError: input or a target that does not fit.
            NonFiniteError: see above.
        """
        where = f"{type(self).__name__}.feed"
        x, single = as_input(where, self.model, x, finite=True)
        dt = as_times(where, self.model, dt, len(x), single)
        goal = None if target is None else self._goal(where, target, len(x), single)
        with self._all_or_nothing():
            answers = list(self._read(x, goal, dt))
        y = answers[-1][0] if pools(self.model) else torch.cat(answers, 1)[0]
        return y[0] if single and not pools(self.model) else y

    def _goal(self, where: str, target: Any, steps: int, single: bool) -> Tensor:
        """A target for each step, or one for all, on the device of the model and of its dtype."""
        weight = self.model.head.weight
        goal = as_tensor(where, target, "target").to(weight.device)
        goal = goal.to(weight.dtype) if goal.is_floating_point() else goal
        if bad := first_bad([("it", goal)]):
            raise ArgumentError(f"{where}: target must be finite, got one where {bad}.")
        goal = goal[None] if single or pools(self.model) else goal
        if steps and not goal.numel():
            check_shape(where, "target", goal.shape, {"time": steps}, "Pass numbers.")
            raise ArgumentError(f"{where}: target must hold numbers, got none.")
        if not goal.ndim or len(goal) != (1 if pools(self.model) else steps):
            axes: dict[str, int | None] = {"time": steps}
            check_shape(where, "target", goal.shape[:1], axes, "Pass one target for each step.")
        return goal

    def _read(self, x: Tensor, target: Tensor | None, dt: Tensor | None) -> Iterator[Tensor]:
        """Answers (1, ...) to one piece after the other, each of which is learned from."""
        pooled = pools(self.model)
        for start in range(0, len(x), self.every):
            stop = min(start + self.every, len(x))
            last = stop == len(x)
            piece_target = target if pooled and last else None
            if target is not None and not pooled:
                piece_target = target[start:stop]
            times = None if dt is None else dt[None, start:stop]
            yield self._learn(x[None, start:stop], piece_target, times, last)

    def _learn(self, x: Tensor, target: Tensor | None, dt: Tensor | None, last: bool) -> Tensor:
        batch, loop = Batch(x, x, None, None, dt), Loop(self.loss, update=self._move)
        if target is None:  # what the learner keeps goes on, with a gradient of zero
            zero_target = x.new_zeros(
                (1,) if pools(self.model) else x.shape[:2], dtype=torch.float32
            )
            batch, loop = batch._replace(target=zero_target), Loop(lambda y, _: 0 * y.sum())
        else:
            batch_target = target if pools(self.model) else target[None]
            batch = batch._replace(target=batch_target)
        step = self._step(batch, loop)
        check_finite(type(self).__name__, step.y, step.state)
        if not step.loss.isfinite():
            raise NonFiniteError(
                f"{type(self).__name__}: the loss must be finite, got {step.loss.item()}. Leave "
                "such targets out, or scale them as in training; the stream is where it was before."
            )
        if target is None:
            self.model.zero_grad(set_to_none=True)
        else:
            self._move(more=not last)
        self.state = step.state
        self.steps += x.shape[1]
        self.pieces += 1
        return step.y

    def _step(self, batch: Batch, loop: Loop) -> Step:
        """Learn from a piece: the same wherever the stream was taken up."""
        with drawing(self.seed + self.pieces), torch.enable_grad():
            return self.learner.step(self.model, batch, self.state, loop)

    def _move(self, *, more: bool = True) -> None:
        """A step of the optimiser; ``more``: something may come after it that has to undo it."""
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        if not norm.isfinite():
            raise NonFiniteError(
                f"{type(self).__name__}: the gradient must be finite, got a norm of "
                f"{norm.item()}. Leave such input out, or scale it as in training; the stream is "
                "where it was before."
            )
        if grads and not self.frozen:
            if more and self._before is None:
                weights = [p.detach().clone() for p in self.model.parameters()]
                self._before = weights, copy.deepcopy(self.optimizer.state_dict())
            limit = self.clip or float("inf")
            nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Whatever ends what is done inside leaves everything as it was."""
        snapshot = self.state, self.steps, self.pieces
        learner = self.learner.state_dict()
        self.model.zero_grad(set_to_none=True)
        try:
            yield
        except BaseException:
            self.state, self.steps, self.pieces = snapshot
            self.learner.load_state_dict(learner)
            self.model.zero_grad(set_to_none=True)
            if self._before is not None:
                weights, optimizer = self._before
                with torch.no_grad():
                    for p, value in zip(self.model.parameters(), weights, strict=True):
                        p.copy_(value)
                self.optimizer.load_state_dict(optimizer)
            raise
        finally:
            self._before = None

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """All of it, as tensors and plain values by name: weights, optimiser, learner, state."""
        return {
            "model": {n: x.detach().clone() for n, x in self.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "learner": dict(self.learner.state_dict()),
            "state": None if self.state is None else states.flatten(self.state),
            "steps": self.steps,
            "pieces": self.pieces,
        }

    @in_turn
    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was asked; the settings of the optimiser stay as they are.

        Raises:
            ArgumentError: it is of another model or learner; nothing is changed.
        """
        where = f"{type(self).__name__}.load_state_dict"
        check_kind(where, "found", found, Mapping)
        required = {"model", "optimizer", "learner", "state", "steps", "pieces"}
        if lacking := required - found.keys():
            raise ArgumentError(f"{where}: found must have {', '.join(sorted(lacking))}.")
        if wrong := misfit(found["model"], self.model.state_dict()):
            raise ArgumentError(f"{where}: the weights must be of this model, got {wrong}.")
        if wrong := first_bad(found["model"].items()):
            raise ArgumentError(f"{where}: the weights must be finite, got {wrong}.")
        weight = self.model.head.weight
        state = None
        if found["state"] is not None:
            fresh = self.model.init_state(1)
            states.check_flat(Path(where), found["state"], states.flatten(fresh))
            state = states.to(states.unflatten(found["state"], fresh), device=weight.device)
        self.learner.load_state_dict({n: h.to(weight.device) for n, h in found["learner"].items()})
        self.model.load_state_dict(found["model"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({**found["optimizer"], "param_groups": groups})
        self.state, self.steps, self.pieces = state, found["steps"], found["pieces"]
