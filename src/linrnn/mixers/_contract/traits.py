"""Class attributes of a mixer that tools, tests and tables read."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn.parameters import KeepsPrecision


class Traits(KeepsPrecision):
    """Class attributes of a mixer; a class sets those that differ from the defaults."""

    family: ClassVar[str]
    """The kind of recurrence: diagonal, ssm, linear-attention, gated, oscillator, ..."""

    choices: ClassVar[Choices | None] = None
    """The design, in the vocabulary of `Choices`; None if a class outside the package has none."""

    causal: ClassVar[bool] = True
    """No output depends on a later input."""

    forms: ClassVar[tuple[str, ...]] = ("scan",)
    """Values of the constructor's ``form``; all give the same numbers. The first is the default."""

    form: str = "scan"
    """The form in use; a constructor with this option sets it."""

    without_reset: ClassVar[tuple[str, ...]] = ()
    """Forms that cannot start a new sequence at a reset: with them a reset mask is an error."""

    declared: ClassVar[Mapping[str, str]] = {}
    """Properties of `linrnn.testing.MIXER_PROPERTIES` that this mixer lacks, each with its reason.
    The key is ``"property:form"`` if only one form lacks it."""

    overflows: ClassVar[str] = ""
    """Why an untrained layer overflows float32 within 65,536 steps; empty if it does not. For a
    sequential layer the test reads 2,048 steps."""

    timed: ClassVar[bool] = False
    """Whether the layer reads the times between steps. Then `_read` and `_step` have a last
    argument ``dt``, at least float32; None means a time of 1 everywhere."""

    without_dt: ClassVar[tuple[str, ...]] = ()
    """Forms of a `timed` mixer that need equal steps: with them ``dt`` is an error."""

    sequence_parallel: ClassVar[tuple[str, ...]] = ()
    """Forms that mix along time by `linrnn.ops.linear_scan` alone, and so can be split along time
    by `linrnn.ops.sequence_parallel`."""

    random_training: ClassVar[bool] = False
    """Whether training draws random numbers from torch's global generator. Evaluation must not; the
    tests then compare numbers in evaluation mode."""

    widening: ClassVar[bool] = False
    """Whether it projects to more channels, gates these and projects back, as a feed-forward
    network does. Published blocks of such a mixer have no feed-forward network beside it."""

    norms_input: ClassVar[bool] = False
    """Whether the layer normalises its input itself; its block then has no norm before it. A layer
    that reads signals of other layers may need the residual stream without a norm."""

    like_lstm: ClassVar[bool] = False
    """Whether `linrnn.RNN` takes and returns (h, c) as an LSTM does, even if the state is one
    vector."""

    in_laws: ClassVar[Mapping[str, Any]] = {}
    """Constructor options for the contract tests, if those with defaults would test too little or
    take too long. The tests read few steps, so a mixer of segments sets a short segment here."""

    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "parallel"
    """How a long sequence is computed: by a few parallel operations, step after step, or with every
    step reading all earlier ones."""

    recurrent_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters of the recurrence: trained with a smaller learning rate, without weight decay."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Former names. They are accepted wherever the name is, and listed nowhere."""

    weight_parameters: ClassVar[tuple[str, ...] | None] = None
    """Parameters of the class itself, not of its parts, to which weight decay applies; it does not
    apply to biases, gains, skips and initial states. None means those with two or more axes. Parts
    with parameters have the same attribute; see `linrnn.nn.has_decay`."""

    constant_state: ClassVar[tuple[str, ...]] = ()
    """Keys of a dictionary state without gradients, such as positions, or a running maximum that
    cancels in every result."""

    learned: ClassVar[LearnedStart | None] = None
    """The part with the learned initial state, if the mixer has that option."""

    carries: ClassVar[tuple[str, ...]] = ()
    """Signals that the first such layer of a stack makes at each step for later ones, such as the
    values of RWKV-7's first layer. See `signal_spec`."""

    shares: ClassVar[tuple[str, ...]] = ()
    """Signals from parameters that the layers of a stack share in `shared_part`, such as HGRN's
    lower bounds."""

    receives: tuple[str, ...] = ()
    """The signals that the stack passes to this layer, set by the constructor's argument of that
    name. A layer alone receives none, and makes those that it ``carries`` itself."""
