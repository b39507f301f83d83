"""SnAp: sparse approximations of real-time recurrent learning."""

from typing import Literal

from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.learn._exact.owners import NotDiagonalError
from linrnn.learn._exact.sparse import Reach, advanced, owing, reach
from linrnn.learn._exact.traced import Traced, check_no_draws
from linrnn.learn._exact.traces import Entry, Heard, Traces
from linrnn.learn._parts.batch import Batch
from linrnn.learn._parts.last_step import LastStep
from linrnn.learn._parts.windows import Window
from linrnn.mixers import Mixer
from linrnn.ops import use_backend
from linrnn.typing import State


class SnAp(Traced):
    r"""SnAp-n: real-time recurrent learning that keeps what a parameter reaches in n steps.

    For each parameter of a recurrent layer, derivatives are kept of those numbers of the state that
    it moves within n steps; what comes to others is dropped, before a loss sees it. This is biased,
    unless n steps reach all that there is to be reached: with n = 1 it is exact for layers with
    channels apart whose state is one number a channel, real or complex; with n = 2 for a layer with
    one full matrix. It pays in between: for n = 1 of any layer, and where matrices are sparse or in
    blocks. Which parameter reaches what is found by asking autograd, of any layer whose state has a
    fixed size.

    Memory is one trace for each row of a batch, each parameter and each number that it reaches: p
    for n = 1 of a tanh_rnn or a gru, at most 2 p of an lstm, d_state p for n = 2 of both, which is
    that of `rtrl`. Time is that of as many backward passes through one step as numbers of the state
    share something that they depend on: d_state for a full matrix, one where channels are apart. As
    of `diagonal_rtrl`, errors go down a stack at the step at hand alone.

    Equation::

        E_t = P_n * (J_t E_{t-1} + dh_t/dtheta),   dL/dtheta = sum_t (dl_t/dh_t)^T E_t
        P_1 = [dh_t/dtheta is not 0],   P_n = P_{n-1} or [J_t is not 0] P_{n-1}

    What an answer reads of the state before and not of that after, as that of a layer that answers
    before it writes, has the credit ``(dl_t/dh_{t-1})^T E_{t-1}``.

    Args:
        n: steps within which a number is reached, at least 1.
        last_step: masked is the rule as published. whole lets the loss of a step see all that this
            step passes on, ``J_t E_{t-1} + dh_t/dtheta`` before P drops a part of it: less is lost,
            at no more memory.
        parts: apart is the rule as published. together counts the numbers of a channel as one,
            those of all parts of the state of one size, so that what moves the output of a unit of
            an lstm reaches its cell: n = 1 is exact for all layers with channels apart then.
        update: batch sums the gradients of all steps for one step of the optimiser; step takes
            one after each. Traces that were made with older weights are kept then.

    Raises:
        ArgumentError: n below 1, or a layer whose state grows or that draws random numbers in
            training.

    Example:
        >>> from linrnn import learn
        >>> learn.build("snap", {"n": 2}).n
        2

    Reference:
        Menick et al. 2021, Practical real time recurrent learning with a sparse approximation,
        arXiv:2006.07232.
    """

    def __init__(
        self,
        *,
        n: int = 1,
        last_step: Literal["masked", "whole"] = "masked",
        parts: Literal["apart", "together"] = "apart",
        update: Literal["batch", "step"] = "batch",
    ) -> None:
        super().__init__(1, "window" if update == "step" else "batch")
        check_positive_int("SnAp", n=n)
        check_in("SnAp", "last_step", last_step, ("masked", "whole"))
        check_in("SnAp", "parts", parts, ("apart", "together"))
        self.n, self.last_step, self.parts = n, last_step, parts

    def find(self, name: str, layer: Mixer) -> Reach:
        """Find what each parameter of a layer reaches."""
        check_no_draws("SnAp", name, layer)
        try:
            return reach(layer, self.n, together=self.parts == "together")
        except NotDiagonalError as error:
            raise ArgumentError(
                f"SnAp: every layer must have a state of fixed size, got {name} "
                f"({type(layer).__name__}), {error}. Use tbptt."
            ) from None

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State]:
        """Answer with a state that goes with its traces, and let the traces go on."""
        if self.last_step == "whole":
            return super().read_window(model, batch, window, previous_state)
        # composed of PyTorch's operators, a step shows autograd the state that its answer reads
        with use_backend("reference"):
            return super().read_window(model, batch, window, previous_state)

    def owing(self, layer: Mixer, sparsity: Reach, traces: Traces, state: State) -> Entry:
        """A state that depends on the parameters as far as they reach."""
        last = LastStep() if self.last_step == "masked" else None
        return Entry(owing(layer, sparsity, traces, state, last), last=last)

    def advance(self, layer: Mixer, sparsity: Reach, traces: Traces, heard: Heard) -> Traces:
        """The traces after a step."""
        return advanced(layer, sparsity, traces, heard)
