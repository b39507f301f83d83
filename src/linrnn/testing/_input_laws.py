"""The law of bad input: each is one clear error of this library, and no wrong number."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    LinrnnError,
    ShapeError,
    UnknownArgumentError,
    show,
)
from linrnn.mixers import Mixer
from linrnn.state import map_state
from linrnn.testing._mixer_runs import (
    BATCH,
    TIME,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    signal,
)
from linrnn.testing._tolerance import BrokenPropertyError, check_true

Attempt = tuple[str, type[LinrnnError], Callable[[], object]]
"""A bad call in words, its error, and the call."""


def check_make(where: str, make: object) -> None:
    """Raise `ArgumentTypeError` unless layers can be made by calling it.

    Args:
        where: the function it was given to.
        make: a class of mixers, or a function.
    """
    is_class = isinstance(make, type) and issubclass(make, Mixer)
    is_function = callable(make) and not isinstance(make, type | nn.Module)
    if not is_class and not is_function:
        fix = f" Say linrnn.mixers.load({make!r})." if isinstance(make, str) else ""
        raise ArgumentTypeError(
            f"{where}: make must be a class derived from linrnn.mixers.Mixer, or a function that "
            f"makes a layer of it, got {show(make)}.{fix}"
        )


def bad_input(make: MakeMixer) -> None:
    """A wrong width, dtype, device, state or option is one clear error and not a wrong number."""
    for what, expected, attempt in (*calls(make), *constructions(make)):
        try:
            attempt()
        except expected as error:
            words = str(error)
            check_true(f"{what}: message {error} has no value", "got" in words or "named" in words)
        except Exception as error:
            raise BrokenPropertyError(
                f"{what}: must raise {expected.__name__}, got {error!r}"
            ) from error
        else:
            raise BrokenPropertyError(f"{what}: must raise {expected.__name__}, raised nothing")


def calls(make: MakeMixer) -> list[Attempt]:
    """Calls of a layer that do not fit it."""
    mixer = build(make)
    x, state = signal(BATCH, TIME, WIDTH), map_state(Tensor.detach, busy_state(mixer))
    two_rows = map_state(lambda h: h[:2], state)
    elsewhere = x.to("meta")
    return [
        ("a wrong width", ShapeError, lambda: mixer(signal(BATCH, TIME, WIDTH + 1))),
        ("no batch axis", ShapeError, lambda: mixer(x[0])),
        ("a step with a time axis", ShapeError, lambda: mixer.step(x, state)),
        ("integers", DTypeError, lambda: mixer(x.long())),
        ("another device", DeviceError, lambda: mixer(elsewhere)),
        ("another device, step", DeviceError, lambda: mixer.step(elsewhere[:, 0], state)),
        ("a state of another batch", ShapeError, lambda: mixer(x, two_rows)),
        ("a state of another batch, step", ShapeError, lambda: mixer.step(x[:, 0], two_rows)),
        ("a state that is no tensor", DTypeError, lambda: mixer(x, "state")),
        ("d_model=0", ArgumentError, lambda: make(d_model=0)),
    ]


def constructions(make: MakeMixer) -> Iterator[Attempt]:
    """Arguments that no constructor of a layer takes.

    Those of a function that makes layers are its own; of the class it makes only names are tried.
    """
    cls = type(build(make))
    yield "no such option", UnknownArgumentError, partial(cls, d_model=WIDTH, no_such_option=1)
    if make is not cls:
        return
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.annotation is bool:
            yield f"{name}='no'", ArgumentError, partial(cls, d_model=WIDTH, **{name: "no"})
    yield "integers as dtype", DTypeError, partial(cls, d_model=WIDTH, dtype=torch.int32)
    yield "a dtype in text", DTypeError, partial(cls, d_model=WIDTH, dtype="float32")
    yield "no device", DeviceError, partial(cls, d_model=WIDTH, device="nowhere")
