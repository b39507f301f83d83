"""Back-propagation through time."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from linrnn.learn._base import Learner, Loop, Step
from linrnn.learn._batch import Batch, read
from linrnn.state import detach
from linrnn.typing import State


class BPTT(Learner):
    r"""Back-propagation through time: the whole gradient of each batch, in one pass.

    Exact for whatever autograd can differentiate. Memory grows with the length of a batch. Where
    the state is carried from batch to batch its gradient stops between them, which makes it
    truncated back-propagation with windows as long as a batch.

    Equation::

        g_t = dl_t/dh_t + J_{t+1}^T g_{t+1},   dL/dtheta = sum_t (dh_t/dtheta)^T g_t

    Example:
        >>> from linrnn import learn
        >>> learn.build("bptt").state_dict()
        {}

    Reference:
        Werbos 1990, Backpropagation through time: what it does and how to do it.
    """

    exact: ClassVar[Mapping[str, Any]] = {}

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """One pass forward, one backward."""
        y, after = read(model, batch, carried)
        loss = loop.loss(y, batch.target)
        loop.backward(loss)
        return Step(loss.detach(), y.detach(), detach(after))
