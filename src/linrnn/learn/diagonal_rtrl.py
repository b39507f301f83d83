"""Real-time recurrent learning of layers with channels apart."""

from typing import Literal

from linrnn.learn._exact.stepwise import Stepwise


class DiagonalRTRL(Stepwise):
    r"""Real-time recurrent learning of diagonal recurrences: a step is learned from as it comes.

    Nothing of the past is kept but a trace for each row of a batch and each parameter of a
    recurrent layer, or, where parameters are shared, each pair of a number of the state and a
    parameter, so that memory and time a step do not depend on the length. The gradient is
    exact for the parameters of a recurrent layer whose output reaches the loss through no other
    recurrence, and for what follows it. In a stack it is approximate below the last recurrent
    layer: errors go down through the layers at the step at hand alone, and the encoder learns from
    that step. `chunked_rtrl` is the same with more than one step at once, and faster.

    Layers are those of `chunked_rtrl`; another is refused by name.

    Equation::

        E_t = a_t E_{t-1} + dh_t/dtheta,   dL/dtheta = sum_t dl_t/dh_t E_t

    Args:
        update: batch sums the gradients of all steps for one step of the optimiser; step takes
            one after each. Traces that were made with older weights are kept then.

    Raises:
        ArgumentError: a layer whose channels are not apart, or whose traces do not fit into memory.

    Example:
        >>> from linrnn import learn
        >>> learn.build("diagonal_rtrl", {"update": "step"}).window
        1

    Reference:
        Zucchet et al. 2023, Online learning of long-range dependencies, arXiv:2305.15947; Irie,
        Gopalakrishnan and Schmidhuber 2023, Exploring the promise and limits of real-time
        recurrent learning, arXiv:2305.19044.
    """

    def __init__(self, *, update: Literal["batch", "step"] = "batch") -> None:
        super().__init__("window" if update == "step" else "batch")
