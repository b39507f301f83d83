"""The class attributes of a mixer: what is true of all its layers, for tools, tests and tables."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn.parameters import KeepsPrecision


class Traits(KeepsPrecision):
    """The declarations of a mixer: it states those whose default is not true of it."""

    family: ClassVar[str]
    """The kind of recurrence: diagonal, ssm, linear-attention, gated, oscillator, ..."""

    choices: ClassVar[Choices | None] = None
    """How it differs from other systems, in words that all share; None where nobody said it."""

    causal: ClassVar[bool] = True
    """No output depends on a later input."""

    forms: ClassVar[tuple[str, ...]] = ("scan",)
    """Values of ``form`` the constructor takes; all give the same numbers. The first is default."""

    form: str = "scan"
    """Which of ``forms`` computes; a constructor with this option sets it."""

    without_reset: ClassVar[tuple[str, ...]] = ()
    """Forms that cannot start anew inside a sequence: a reset mask is an error there."""

    declared: ClassVar[Mapping[str, str]] = {}
    """Properties of `linrnn.testing.MIXER_PROPERTIES` that this mixer lacks, each with its reason;
    as ``"property:form"`` where only that form lacks it."""

    overflows: ClassVar[str] = ""
    """Why an untrained layer overflows float32 within 65,536 steps; empty if it does not. The test
    of that many steps reads 2,048 of a sequential layer."""

    timed: ClassVar[bool] = False
    """Whether ``dt`` is taken: `_read` and `_step` then have it as last argument, None where the
    caller gave none, which is a time of 1 everywhere. It is at least float32."""

    without_dt: ClassVar[tuple[str, ...]] = ()
    """Forms of a mixer that is `timed` which need all steps alike: ``dt`` is an error there."""

    sequence_parallel: ClassVar[tuple[str, ...]] = ()
    """Forms that mix along time by `linrnn.ops.linear_scan` alone, and so can be split along time
    by `linrnn.ops.sequence_parallel`."""

    random_training: ClassVar[bool] = False
    """Whether training draws random numbers, from torch's global generator; evaluation never
    does, and the tests of numbers are those of evaluation then."""

    widening: ClassVar[bool] = False
    """Whether it projects to more channels, gates these and projects back: what a feed-forward
    network does for the others, so that a block of it is published without one."""

    norms_input: ClassVar[bool] = False
    """Whether it norms its input itself, before which its block then has no norm: where a layer
    reads something besides the residual stream, it must see that stream as it is."""

    like_lstm: ClassVar[bool] = False
    """Whether it stands for an LSTM: `linrnn.RNN` then takes and returns (h, c), also where the
    state is one vector."""

    in_laws: ClassVar[Mapping[str, Any]] = {}
    """Options that `linrnn.testing.check_mixer` gives a layer, where with those of the constructor
    the few steps that it reads would not come to what is special: segments shorter than these. Or
    where a graph of the same parts would be several times as long."""

    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "parallel"
    """How a long sequence is read: by a few parallel operations, one step after another because
    a step needs the result of the last, or with every step looking at all earlier ones."""

    recurrent_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters of the recurrence: trained with a smaller learning rate, without weight decay."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Former names, which still go wherever the name does, and are listed nowhere."""

    weight_parameters: ClassVar[tuple[str, ...] | None] = None
    """Which parameters of the class itself, not of its parts, are weights: these have weight decay,
    and biases, gains, skips and first states have none. None: those of two or more axes are. Parts
    with parameters declare theirs in the same way; see `linrnn.nn.has_decay`."""

    constant_state: ClassVar[tuple[str, ...]] = ()
    """Keys of a state dict through which no gradient flows, such as positions or a running
    maximum that cancels out of every result."""

    learned: ClassVar[LearnedStart | None] = None
    """The part that makes it begin from a learned state, where it has the option for that."""

    carries: ClassVar[tuple[str, ...]] = ()
    """Signals that a layer makes of each step for the later layers of a stack that carry the same:
    RWKV-7's first values. See `signal_spec`."""

    shares: ClassVar[tuple[str, ...]] = ()
    """Signals of the parameters that the layers of a stack have in common, which `shared_part` has:
    HGRN's bounds."""

    receives: tuple[str, ...] = ()
    """Which of both a stack hands this layer. The stack says so to a constructor with an argument
    of that name; a layer alone has none, and makes what it ``carries`` itself."""
