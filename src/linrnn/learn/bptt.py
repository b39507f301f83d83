"""Back-propagation through time."""

from collections.abc import Mapping
from math import isqrt
from typing import Any, ClassVar, cast

from torch import nn

from linrnn.errors import ArgumentError
from linrnn.learn._exact.traced import layers
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.recompute import Segments
from linrnn.learn._parts.windows import check_windows
from linrnn.state import detach, leaves
from linrnn.typing import State


class BPTT(Learner):
    r"""Back-propagation through time: the whole gradient of each batch, in one pass.

    Exact for whatever autograd can differentiate. Memory grows with the length of a batch. Where
    the state is carried from batch to batch its gradient stops between them, which makes it
    truncated back-propagation with windows as long as a batch.

    With ``recompute`` time is read in segments. What is kept of each is the state that it begins
    from; its activations are computed once more when the gradient comes to it. So memory is that of
    one segment, of the states between, and of the answers, for one forward pass more. The gradient
    is the same but for rounding, in any model that reads forward; statistics of a batch norm are
    those of a segment, and dropout is drawn for each. For a cell you define,
    `linrnn.ops.cell_scan` has ``checkpoint``, which does so for its states alone.

    Equation::

        g_t = dl_t/dh_t + J_{t+1}^T g_{t+1},   dL/dtheta = sum_t (dh_t/dtheta)^T g_t

    Args:
        recompute: steps of a segment; 0 takes the root of the length, which is least for states
            and activations together. Default: nothing is computed again.
        reverse: keep no states between segments either, but compute them from the last one,
            ``h_{t-1} = (h_t - b_t) / a_t``, for one forward pass more. This multiplies rounding
            errors by 1 / |a|, so a state is kept where they would come to 1e-4 of it: of float32
            after about 7.4 / -ln|a| steps, 70 for 0.9 and 7,400 for 0.999; and before a reset. For
            layers that mix along time by `linrnn.ops.linear_scan` alone: lru, s5 and slru.

    Raises:
        ArgumentError: a segment below 0, or one of a model that does not read forward in time; or
            ``reverse`` of one whose states do not follow from later ones.

    Example:
        >>> from linrnn import learn
        >>> learn.build("bptt", {"recompute": 64}).recompute
        64

    Reference:
        Werbos 1990, Backpropagation through time: what it does and how to do it; Chen et al. 2016,
        Training deep nets with sublinear memory cost, arXiv:1604.06174.
    """

    exact: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *, recompute: int | None = None, reverse: bool = False) -> None:
        if recompute is not None and recompute < 0:
            raise ArgumentError(
                f"BPTT: recompute must be at least 0, got {recompute}. 0 is the root of the length."
            )
        if reverse and recompute is None:
            raise ArgumentError(
                "BPTT: recompute must be a number of steps with reverse, got None. 0 is the root "
                "of the length."
            )
        self.recompute, self.reverse = recompute, reverse

    def check(self, model: nn.Module) -> None:
        """Raise where a model that reads backward would have to be cut into segments."""
        if self.recompute is not None:
            check_windows("BPTT", model, "bptt without recompute")
        if self.reverse:
            _check_reversible(model)

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """One pass forward, one backward."""
        if self.recompute is None:
            y, next_state = read(model, batch, carried)
        else:
            time = batch.x.shape[1]
            steps = self.recompute or max(1, isqrt(time))
            segments = Segments(model, batch, carried, steps, self.reverse)
            y, next_state = segments.answers(), cast(State, segments.after)
        loss = loop.loss(y, batch.target)
        loop.backward(loss)
        return Step(loss.detach(), y.detach(), detach(next_state))


def _check_reversible(model: nn.Module) -> None:
    mixers = layers(model)
    for name, layer in mixers:
        if layer.form not in layer.sequence_parallel:
            raise ArgumentError(
                "BPTT: for reverse every layer must mix along time by linear_scan alone, got "
                f"{name} ({type(layer).__name__}). Use recompute without reverse, or lru, s5 or "
                "slru."
            )
    state = cast(Any, model).init_state(1)
    if len(leaves(state)) != sum(len(leaves(layer.init_state(1))) for _, layer in mixers):
        raise ArgumentError(
            "BPTT: for reverse the state must be that of the recurrent layers, got one with other "
            "parts. Use pool='none', and no convolution in blocks."
        )
