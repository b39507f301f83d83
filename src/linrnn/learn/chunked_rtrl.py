"""Real-time recurrent learning, window by window."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from linrnn.learn._exact.traced import Traced


class ChunkedRTRL(Traced):
    r"""The adjoint inside a window, traces across windows: exact without a past.

    Back-propagation inside of each window, as `tbptt` does it, and for what was before a trace of
    each parameter of a recurrent layer: the derivative of the state of its channel. The gradient
    of a recurrent layer whose output reaches the loss through no other recurrence is that of the
    whole sequence, however short a window is. Everything below the last recurrent layer, and below
    any the encoder, learns through time as far as a window reaches, as in `tbptt`.

    The numbers of a layer's state must go on apart, each, or each complex one, from itself and from
    what is read. Where each parameter moves one channel, as of lru, s5, mingru, minlstm, sru, qrnn,
    gilr, ind_rnn and hgrn, memory is that of one window and of one trace for each row of a batch
    and each parameter (two for complex and two-part states, but for the weights of complex maps).
    Where parameters are shared there is a trace for each pair of a number of the state and a
    parameter that ever reaches it::

        s4d dss dlr                   of a coefficient and each channel that has it: few
        rg_lru rwkv4 gateloop         of a weight, and what a short convolution or shift keeps
        retnet linear_attention gla   d_value of a key's weight, d_key of a value's; of what is in
                                      front of a nonlinear map, as many as the state has numbers
        mamba                         as many as the state has numbers, of almost every parameter

    and a window takes as many backward passes as numbers share a parameter. Which parameter reaches
    which number is found by asking autograd; a layer that is other is refused by name, and so is
    one whose traces do not fit into memory.

    Equation::

        dL/dtheta += sum_t (dh_t/dtheta)^T g_t + g_s E        g: the adjoint inside the window
        E <- J E + dh/dtheta                                  J, dh/dtheta: of the window

    of which with coefficients a_t of a channel alone J is ``prod_t a_t`` and dh/dtheta is ``sum_t
    (prod_{r > t} a_r) dh_t/dtheta``.

    Args:
        window: steps of a window; the last of a sequence may be shorter.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each. Traces that were made with older weights are kept then.

    Raises:
        ArgumentError: a window below 1, or a layer that is other than said above or whose traces
            do not fit into memory.

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
