"""Signals between layers of a stack: those a layer carries on, and those that all share.

No state: of each step there is a signal, made anew. It is an argument and a result of a call, so
that checkpointing, compilers, export and recorded steps see nothing but a function.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from linrnn.compute.arguments import check_device, check_numbers
from linrnn.errors import ArgumentError, ShapeError, check_shape
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
            if call == "step" or grows(spec[name]):
                del axes["time"]
        check_shape(where, label, z.shape, axes | dict(spec[name].axes))
        _check_entries(where, label, z, spec[name], 1 if call == "step" else x.shape[1])
    return ({name: every[name] for name in mixer.receives},)


def grows(part: Part) -> bool:
    """Whether a signal is of all steps so far, and not of each: one of its axes has no size."""
    return None in part.axes.values()


def of_steps(mixer: Signalling) -> set[str]:
    """Those of the signals a mixer ``carries`` that have an axis of time."""
    spec = mixer.signal_spec() if mixer.carries else {}
    return {name for name in mixer.carries if not grows(spec[name])}


def as_sequence(mixer: Signalling, signals: Signals) -> dict[str, Tensor]:
    """Signals of a step as those of a sequence of one; what is shared, or grows, has no time."""
    timed = of_steps(mixer)
    return {n: z.unsqueeze(1) if n in timed else z for n, z in signals.items()}


def as_step(mixer: Signalling, signals: Signals) -> dict[str, Tensor]:
    """The inverse of `as_sequence`."""
    timed = of_steps(mixer)
    return {n: z.squeeze(1) if n in timed else z for n, z in signals.items()}


def made_of_nothing(mixer: Signalling, x: Tensor) -> dict[str, Tensor]:
    """The signals that a layer makes of no step, x (batch, 0, d_model)."""
    spec, timed = mixer.signal_spec(), of_steps(mixer)
    names = [name for name in mixer.carries if name not in mixer.receives]
    return {name: x.new_empty(*x.shape[: 1 + (name in timed)], *spec[name].shape) for name in names}


def _check_entries(where: str, label: str, z: Tensor, part: Part, time: int) -> None:
    """Raise `ShapeError` where a growing part has another number of entries than are read."""
    sizes = zip(part.axes.items(), z.shape[-len(part.axes) :], strict=True)
    for (axis, size), entries in sizes if grows(part) else ():
        if size is None and entries < time:
            raise ShapeError(
                f"{where}: {label} must have at least {time} {axis}, those of the steps that are "
                f"read, got {entries}. Pass what the first layer made of the same steps."
            )


def check_receives(where: str, receives: Sequence[str], names: Sequence[str]) -> None:
    """Raise `ArgumentError` unless these are signals of the class, which carries or shares them."""
    if unknown := [name for name in receives if name not in names]:
        raise ArgumentError(
            f"{where}: receives must be of {tuple(names)}, the signals of the layer, got "
            f"{unknown[0]!r}. A stack sets it."
        )
