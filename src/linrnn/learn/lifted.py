"""Lifted learning: states are variables, and the recurrence a constraint on them."""

from typing import Literal, get_args

from torch import nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import check_in, check_positive, check_positive_int
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch
from linrnn.learn._parts.lifted import Problem
from linrnn.learn._parts.pieces import Pieces
from linrnn.learn._parts.windows import check_windows
from linrnn.typing import State

Method = Literal["penalty", "admm", "blocks", "local"]


class Lifted(Learner):
    r"""Lifted learning: the states of a batch become variables that a penalty ties to the model.

    With ``r_t = h_t - F(h_{t-1})``, how far a state is from what the model makes of the one before
    it, the states are found that make loss and violations small together, and then the weights get
    the gradient at these states: of each piece of time alone, so nothing is multiplied along time.
    What is passed back are the multipliers, ``-rho r`` or ``mu``, which at the solution are what
    back-propagation passes back. The states of a batch begin as they are read forward.

    Equation::

        penalty, blocks    L + rho/2 |r|^2
        admm               L + mu . r + rho/2 |r|^2,    mu <- mu + rho r    between rounds
        local              L + mu . r + rho |r|^2,      mu <- mu + rate r   at each step

    with products and squares summed over time and averaged over rows.

    Args:
        window: steps of a piece, between two states that are variables.
        method: ``penalty`` minimises over all states at once; its gradient differs from that of
            back-propagation as 1/rho does. ``admm`` does that in rounds with multipliers and comes
            to back-propagation with any rho. ``blocks`` takes every second state in turn, so that
            each asks its two neighbours alone. ``local`` goes down in the states and up in the
            multipliers, both by the same small step.
        penalty: rho.
        iterations: steps in the states: of L-BFGS, in each round and block; of ``local``, in all.
        rounds: of ``admm`` and ``blocks``.
        rate: of a step of ``local``.
        update: batch takes one step of the optimiser for a batch; round one after each round of
            ``admm`` and ``blocks``, which then minimise over states and weights in turn.

    Raises:
        ArgumentError: a number that is not positive, or a model that does not read forward in time.

    Departures from the paper:
        Layers of any kind instead of a linear map and a rectifier, so that states are found by
        L-BFGS and not in closed form, and weights are moved by the optimiser of the run. Local
        propagation holds r itself at zero: with its dead zones the multipliers went on swinging,
        and with ``|r|`` they diverged.

    Example:
        >>> from linrnn import learn
        >>> learn.build("lifted", {"method": "admm", "rounds": 10}).penalty
        1.0

    Reference:
        Carreira-Perpinan and Wang 2014, Distributed optimization of deeply nested systems,
        arXiv:1212.5921; Taylor et al. 2016, Training neural networks without gradients: a scalable
        ADMM approach, arXiv:1605.02026; Marra et al. 2020, Local propagation in constraint-based
        neural networks, arXiv:2002.07720.
    """

    def __init__(
        self,
        *,
        window: int = 16,
        method: Method = "penalty",
        penalty: float = 1.0,
        iterations: int = 20,
        rounds: int = 4,
        rate: float = 0.1,
        update: Literal["batch", "round"] = "batch",
    ) -> None:
        check_positive_int("Lifted", window=window, iterations=iterations, rounds=rounds)
        check_positive("Lifted", penalty=penalty, rate=rate)
        check_in("Lifted", "method", method, get_args(Method))
        check_in("Lifted", "update", update, ("batch", "round"))
        self.window, self.method, self.penalty = window, method, penalty
        self.iterations, self.rounds, self.rate = iterations, rounds, rate
        self.update = update

    def check(self, model: nn.Module) -> None:
        """Raise unless every layer reads forward in time, and one document at a time."""
        check_windows("Lifted", model)

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Read forward, solve for the states, and learn at these."""
        with without_autocast(batch.x.device):
            pieces = Pieces(model, batch, carried, self.window, loop.loss)
            problem = Problem(pieces, self.penalty)
            if pieces.first.loss.isfinite():
                self.solve(problem, loop)
            loop.backward(problem.objective(self.method == "local"))
        return Step(pieces.first.loss, pieces.first.answers, pieces.first.state)

    def solve(self, problem: Problem, loop: Loop) -> None:
        """Move states and multipliers of a problem by the method."""
        if self.method == "local":
            for _ in range(self.iterations):
                problem.saddle_step(self.rate)
            return
        step = 2 if self.method == "blocks" else 1
        for turn in range(1 if self.method == "penalty" else self.rounds):
            if turn and self.update == "round":
                loop.backward(problem.objective())
                loop.update()
            if turn and self.method == "admm":
                problem.raise_multipliers()
            for first in range(step):
                problem.minimise(slice(first, None, step), self.iterations)
