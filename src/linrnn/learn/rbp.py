"""Recurrent back-propagation: the gradient at a fixed point."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import (
    ArgumentError,
    NonFiniteError,
    check_in,
    check_not_negative,
    check_positive,
    check_positive_int,
)
from linrnn.learn._exact.influence import flat
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.fixed_point import Solver, lipschitz_penalty, solve
from linrnn.learn._parts.held import apart, settle, with_flat
from linrnn.learn._parts.windows import check_windows
from linrnn.mixers import Mixer
from linrnn.nn import Pool
from linrnn.state import detach
from linrnn.typing import State


class RBP(Learner):
    r"""Recurrent back-propagation: the gradient where a held input lets the state settle.

    A sequence is read forward, without a history, and its last input held until the state moves no
    more. There the gradient is that of a fixed point, which does not depend on the way to it, so
    that memory does not grow with any number of steps. It belongs to tasks in which the input of a
    row comes to rest and the answer is asked at its end: the model answers once a sequence, from
    its last step.

    Equation::

        h = F(h, x, theta),   z = J^T z + dl/dh,   dL/dtheta = dl/dtheta + (dF/dtheta)^T z

    with F a step of the whole model, J = dF/dh, and l the loss of the answer to one more step. The
    penalty on the columns of J is ``lipschitz sum_j max(0, s_j - bound)^2``, averaged over rows:
    ``signed`` takes ``s = J^T 1``, one product, which bounds J where no number of it is negative;
    ``absolute`` sums magnitudes, so that a state whose sums are below 1 is sure to settle, at the
    cost of as many products as there are numbers in a state.

    Args:
        hold: steps at most that the last input is held.
        settled: change of the state in a step, as a part of it, at which it is held no longer.
        solver: ``neumann`` sums the first terms, and is back-propagation through that many held
            steps and one; ``rbp`` iterates, from random numbers; ``cg`` takes conjugate gradients,
            of the squared condition, also where the others diverge; ``direct`` solves for all
            numbers of the states of all rows at once, for small models.
        terms: of the sum; steps of the iteration.
        lipschitz: weight of the penalty.
        bound: of the sum of a column, beyond which it costs.
        columns: how the columns are summed.

    Raises:
        ArgumentError: a number outside its range, or a model that is not as above, draws random
            numbers, or has a state that grows.
        NonFiniteError: while it trains, a state that does not settle, or a solver that diverges.

    Departures from the paper:
        Any model instead of one layer. Bound and weight do not move during
        training, and the ridge of the conjugate gradients is the rounding of the dtype, not 1e-5.

    Example:
        >>> from linrnn import learn
        >>> learn.build("rbp", {"solver": "cg", "terms": 50}).hold
        200

    Reference:
        Liao et al. 2018, Reviving and improving recurrent back-propagation, arXiv:1803.06396;
        Linsley et al. 2020, Stable and expressive recurrent vision models, arXiv:2005.11362.
    """

    def __init__(
        self,
        *,
        hold: int = 200,
        settled: float = 1e-6,
        solver: Solver = "neumann",
        terms: int = 20,
        lipschitz: float = 0.0,
        bound: float = 0.9,
        columns: Literal["signed", "absolute"] = "signed",
    ) -> None:
        check_positive_int("RBP", hold=hold, terms=terms)
        check_positive("RBP", settled=settled, bound=bound)
        check_not_negative("RBP", lipschitz=lipschitz)
        check_in("RBP", "solver", solver, get_args(Solver))
        check_in("RBP", "columns", columns, ("signed", "absolute"))
        self.hold, self.settled, self.solver, self.terms = hold, settled, solver, terms
        self.lipschitz, self.bound, self.columns = lipschitz, bound, columns

    def check(self, model: nn.Module) -> None:
        """Raise unless a held input can let the state settle, and the answer is that of the end."""
        check_windows("RBP", model)
        for name, part in model.named_modules():
            if isinstance(part, Pool) and part.kind != "last":
                raise ArgumentError(
                    "RBP: a model must answer once a sequence, from its last step, got pool "
                    f"{part.kind!r}. Use --model.pool last and a task that asks once a sequence."
                )
            if isinstance(part, Mixer) and "constant_memory" in part.declared:
                raise ArgumentError(
                    f"RBP: every layer must have a state that can settle, got {name} "
                    f"({type(part).__name__}), whose state grows with what was read. Use bptt."
                )
            random = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
            if random or (isinstance(part, Mixer) and part.random_training):
                raise ArgumentError(
                    "RBP: a model must draw no random numbers, or no state settles, got "
                    f"{name} ({type(part).__name__}). Use --model.dropout 0."
                )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Read forward, hold the last input, and learn where the state has come to."""
        reading, held_input = apart(batch)
        with without_autocast(batch.x.device):
            state = settle(model, reading, held_input, carried, self.hold, self.settled)
            h = flat(state).requires_grad_()
            y, next_state = read(model, held_input, with_flat(state, h))
            if y.ndim > 2:
                raise ArgumentError(
                    "RBP: a model must answer once a sequence, got an answer to each step."
                )
            loss = loop.loss(y, batch.target)
            total = loss
            if loss.isfinite() and h.shape[1]:
                total = loss + self._owed(loss, flat(next_state), h)
            loop.backward(total)
        return Step(loss.detach(), y.detach(), detach(next_state))

    def _owed(self, loss: Tensor, next_state: Tensor, h: Tensor) -> Tensor:
        """A scalar of no value, whose gradient is what earlier steps add to it, and the penalty."""
        (b,) = torch.autograd.grad(loss, h, retain_graph=True, materialize_grads=True)
        z, left = solve(self.solver, next_state, h, b, self.terms)
        if not left <= 1:
            raise NonFiniteError(
                f"RBP: the solver {self.solver} must come closer to the gradient, got {left:.3g} "
                f"times the distance that it began with after {self.terms} terms, for the step "
                "multiplies some changes by more than 1. Use --learner.solver cg, or a penalty."
            )
        passed = (z * next_state).sum()
        total = passed - passed.detach()
        if self.lipschitz:
            penalty = lipschitz_penalty(next_state, h, self.bound, self.columns)
            total = total + self.lipschitz * penalty
        return total
