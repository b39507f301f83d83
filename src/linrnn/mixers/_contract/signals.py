"""Signals between layers of a stack: those a layer carries on, and those that all share.

No state: of each step there is a signal, made anew. It is an argument and a result of a call, so
that checkpointing, compilers, export and recorded steps see nothing but a function.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers
from linrnn.errors import ArgumentError, check_shape
from linrnn.state_spec import Part
from linrnn.typing import Signals


@runtime_checkable  # as the shape checker of the test run needs it to be
class Signalling(Protocol):
    """The attributes by which a mixer declares its signals; see `linrnn.mixers.Mixer`."""

    @property
    def carries(self) -> tuple[str, ...]:
        """Those that it makes for later layers."""

    @property
    def shares(self) -> tuple[str, ...]:
        """Those of a part that layers have in common."""

    @property
    def receives(self) -> tuple[str, ...]:
        """Those that a stack hands it."""

    def signal_spec(self) -> Mapping[str, Part]:
        """Their sizes."""


def received(mixer: Signalling, call: str, signals: Signals | None, x: Tensor) -> tuple[Any, ...]:
    """The further arguments of `Mixer._read`: the signals a layer receives; none without any.

    Args:
        mixer: that is called.
        call: ``forward``, or ``step``, whose signals have no axis of time.
        signals: as the caller gave them, of which others are left out.
        x: the input, checked.

    Raises:
        ArgumentError: signals for a layer that knows none, or one that it receives is missing.
        DTypeError, ShapeError, DeviceError: one that does not fit.
    """
    where = f"{type(mixer).__name__}.{call}"
    if not mixer.carries and not mixer.shares:
        if signals is None:
            return ()
        raise ArgumentError(
            f"{where}: signals must be None, for this layer makes and reads none, got "
            f"{sorted(signals)}."
        )
    if not mixer.receives:
        return ({},)
    every = {} if signals is None else signals
    if missing := [name for name in mixer.receives if name not in every]:
        raise ArgumentError(
            f"{where}: signals must have {missing[0]!r}, for this layer is of a stack that hands "
            f"it on, got {sorted(every) or 'none'}. Call the stack, or make a layer without "
            "`receives`."
        )
    spec = mixer.signal_spec()
    for name in mixer.receives:
        label, z = f"signals[{name!r}]", every[name]
        check_numbers(where, {label: z}, real=True)
        check_device(where, "x", x.device, **{label: z})
        axes: dict[str, int | None] = {}
        if name in mixer.carries:
            axes = {"batch": x.shape[0], "time": x.shape[1]}
            if call == "step":
                del axes["time"]
        check_shape(where, label, z.shape, axes | dict(spec[name].axes))
    return ({name: every[name] for name in mixer.receives},)


def as_sequence(mixer: Signalling, signals: Signals) -> dict[str, Tensor]:
    """Signals of a step as those of a sequence of one; what is shared has no time."""
    return {n: z.unsqueeze(1) if n in mixer.carries else z for n, z in signals.items()}


def made_of_nothing(mixer: Signalling, x: Tensor) -> dict[str, Tensor]:
    """The signals that a layer makes of no step, x (batch, 0, d_model)."""
    spec = mixer.signal_spec()
    names = [name for name in mixer.carries if name not in mixer.receives]
    return {name: x.new_empty(*x.shape[:2], *spec[name].shape) for name in names}


def check_receives(where: str, receives: Sequence[str], names: Sequence[str]) -> None:
    """Raise `ArgumentError` unless these are signals of the class, which carries or shares them."""
    if unknown := [name for name in receives if name not in names]:
        raise ArgumentError(
            f"{where}: receives must be of {tuple(names)}, the signals of the layer, got "
            f"{unknown[0]!r}. A stack sets it."
        )
