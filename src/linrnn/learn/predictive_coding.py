"""Predictive coding through time."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.learn._exact.owners import real_parts, with_real_parts
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.pieces import Pieces, Values
from linrnn.learn._parts.windows import Answers, Window, check_windows
from linrnn.state import detach
from linrnn.typing import State


class PredictiveCoding(Learner):
    r"""Predictive coding: states are moved from their predictions to what explains the answers.

    Each state between two pieces of time has a prediction, what the model makes of the state
    before it, and an error, how far it was moved from there. Errors are found by the same small
    step again and again, which asks each piece alone for a product with its Jacobian; then the
    weights learn to predict the moved states. Once the errors have settled, they are what
    back-propagation passes on, with the opposite sign, and so is the gradient; with fewer and
    smaller steps less of it arrives the further back a state lies. For any stack whose steps can
    be differentiated.

    Equation::

        e_t <- e_t - rate (e_t - J_{t+1}^T e_{t+1} + dl_{t+1}/dh_t)    n times, from the end
        dL/dtheta = sum_t (dl_t/dtheta - (dF/dtheta)^T e_t)

    with J, dl and dF at the predictions where these are fixed, so that n steps reach the part
    1 - (1 - rate)^n of what is passed on. Where they follow, all states at once go down the free
    energy ``L + sum_t |h_t - F(h_{t-1})|^2 / (2 batch)``, whose minimum is not quite
    back-propagation.

    Args:
        window: steps between two states that are moved, through which autograd goes as `bptt`
            does. More is faster, and passes more on where inference is cut short.
        iterations: the number of steps n.
        rate: of a step, at most 1.
        predictions: fixed, as read forward, or moving with the states.

    Raises:
        ArgumentError: a window or number below 1, a rate outside (0, 1], or a model that does not
            read forward in time.

    Departures from the paper:
        Any loss instead of the squared error. The layers of one step are a single prediction,
        through which autograd goes. Steps of the optimiser are the loop's.

    Example:
        >>> from linrnn import learn
        >>> learn.build("predictive_coding", {"iterations": 20, "rate": 0.1}).iterations
        20

    Reference:
        Millidge, Tschantz and Buckley 2022, Predictive coding approximates backprop along
        arbitrary computation graphs, arXiv:2006.04182.
    """

    exact: ClassVar[Mapping[str, Any]] = {"window": 4}

    def __init__(
        self,
        *,
        window: int = 1,
        iterations: int = 1,
        rate: float = 1.0,
        predictions: Literal["fixed", "moving"] = "fixed",
    ) -> None:
        where = "PredictiveCoding"
        check_positive_int(where, window=window, iterations=iterations)
        check_positive(where, rate=rate)
        check_in(where, "predictions", predictions, ("fixed", "moving"))
        if rate > 1:
            raise ArgumentError(f"{where}: rate must be at most 1, got {rate}.")
        self.window, self.iterations, self.rate = window, iterations, rate
        self.predictions = predictions

    def check(self, model: nn.Module) -> None:
        """Raise unless every layer reads forward in time, and one document at a time."""
        check_windows("PredictiveCoding", model)

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Read forward, let the errors settle, and learn from them."""
        if self.predictions == "moving":
            with without_autocast(batch.x.device):
                return self._moving(Pieces(model, batch, carried, self.window, loop.loss), loop)
        return self._fixed(model, batch, carried, loop)

    def _fixed(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        pieces, step = self._read(model, batch, carried, loop)
        owed: list[Tensor] = []
        errors: list[Tensor] = []  # of the state that the piece at hand ends with
        with without_autocast(batch.x.device):
            for piece in reversed(pieces):
                total = piece.owed(errors, step.loss)
                errors = self._settled(total, piece.before)
                owed.append(total)
            loop.backward(torch.stack(owed).sum())
        return step

    def _read(
        self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop
    ) -> tuple[list["_Piece"], Step]:
        """Each piece with a separate history, and the result of all."""
        time, state = batch.x.shape[1], carried
        answers: Answers | None = None
        pieces: list[_Piece] = []
        for start in range(0, max(time, 1), self.window):
            window = Window(start, start, min(start + self.window, time), 0)
            previous_tensors: list[Tensor] = []
            if pieces:
                previous_tensors = [h.requires_grad_() for h in real_parts(cast(State, state))]
                state = with_real_parts(cast(State, state), previous_tensors)
            y, next_state = read(model, batch, state, slice(start, window.stop))
            answers = answers or Answers(batch, per_step=y.ndim > 2)
            outputs, target = answers.add(window, y)
            weight = answers.weight(window)
            loss = loop.loss(outputs, target) * weight if weight else None
            pieces.append(_Piece(previous_tensors, loss, real_parts(next_state)))
            state = detach(next_state)
        assert answers is not None
        losses = [piece.loss.detach() for piece in pieces if piece.loss is not None]
        return pieces, Step(torch.stack(losses).sum(), answers.whole(), cast(State, state))

    def _settled(self, total: Tensor, previous_tensors: list[Tensor]) -> list[Tensor]:
        """The errors of a state, after all steps towards what explains the piece behind it."""
        if not previous_tensors or not total.requires_grad:
            return [torch.zeros_like(h) for h in previous_tensors]
        passed = torch.autograd.grad(
            total, previous_tensors, retain_graph=True, materialize_grads=True
        )
        errors = [torch.zeros_like(h) for h in previous_tensors]
        for _ in range(self.iterations):
            errors = [e - self.rate * (e + g) for e, g in zip(errors, passed, strict=True)]
        return errors

    def _moving(self, pieces: Pieces, loop: Loop) -> Step:
        values, rows = pieces.values(), len(pieces.batch.x)
        for _ in range(self.iterations if values else 0):
            flat = [h for parts in values for h in parts]
            energy = free_energy(pieces, values)
            grads = iter(torch.autograd.grad(rows * energy, flat, materialize_grads=True))
            values = [
                [(h - self.rate * next(grads)).detach().requires_grad_() for h in parts]
                for parts in values
            ]
        loop.backward(free_energy(pieces, values))
        return Step(pieces.first.loss, pieces.first.answers, pieces.first.state)


class _Piece(NamedTuple):
    before: list[Tensor]
    """The real parts of the state that it begins with, each a leaf; empty for the first."""
    loss: Tensor | None
    """Loss of its steps, as a part of the whole."""
    after: list[Tensor]

    def owed(self, errors: list[Tensor], like: Tensor) -> Tensor:
        """The scalar whose gradient is what the piece learns, and passes on."""
        terms = [] if self.loss is None else [self.loss]
        for e, h in zip(errors, self.after, strict=True) if errors else ():
            terms += [-(e * h).sum().to(like.dtype)] if h.requires_grad else []
        return torch.stack(terms).sum() if terms else torch.zeros_like(like)


def free_energy(pieces: Pieces, values: Values) -> Tensor:
    """The loss, and half the squared distance of each state from its prediction, a row."""
    heard = pieces.read(values)
    squares = [r.square().sum() for parts in pieces.gaps(values, heard) for r in parts]
    return heard.loss + (torch.stack(squares).sum() / (2 * len(pieces.batch.x)) if squares else 0)
