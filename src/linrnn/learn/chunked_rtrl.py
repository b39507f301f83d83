"""Real-time recurrent learning, window by window."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from linrnn.learn._exact.traced import Traced


class ChunkedRTRL(Traced):
    r"""The adjoint inside a window, traces across windows: exact without a past.

    Back-propagation inside of each window, as `tbptt` does it, and for what was before a trace of
    each parameter of a recurrent layer: the derivative of the state of its channel. The gradient
    of a recurrent layer whose output reaches the loss through no other recurrence is that of the
    whole sequence, however short a window is. Memory is that of one window, and of one trace for
    each row of a batch and each parameter (two for complex and two-part states, but for the
    weights of complex maps).

    What stands below the last recurrent layer, and below any the encoder, learns through time as
    far as a window reaches, as in `tbptt`. A layer must have channels apart, and parameters that
    move one channel of its state each: lru, s5, mingru, minlstm, sru, qrnn, gilr, ind_rnn, hgrn and
    the like. Which parameter moves which channel is found by asking autograd, and a layer that is
    other is refused by name.

    Equation::

        dL/dtheta += sum_t (dh_t/dtheta)^T g_t + g_s E        g: the adjoint inside the window
        E <- (prod_t a_t) E + sum_t (prod_{r > t} a_r) dh_t/dtheta

    Args:
        window: steps of a window; the last of a sequence may be shorter.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each. Traces that were made with older weights are kept then.

    Raises:
        ArgumentError: a window below 1, or a layer that is other than said above.

    Example:
        >>> from linrnn import learn
        >>> learn.build("chunked_rtrl", {"window": 16}).window
        16

    Reference:
        Williams and Zipser 1989, A learning algorithm for continually running fully recurrent
        neural networks; Zucchet et al. 2023, arXiv:2305.15947, for diagonal layers.
    """

    exact: ClassVar[Mapping[str, Any]] = {"window": 64}

    def __init__(self, *, window: int = 64, update: Literal["batch", "window"] = "batch") -> None:
        super().__init__(window, update)
