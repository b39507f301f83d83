"""Checks of streams: which models can be streamed, their inputs, and their outputs."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from linrnn import state as states
from linrnn.backbone import Model
from linrnn.compute.finite import all_finite, first_bad
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    NonFiniteError,
    check_kind,
    check_shape,
    show,
)
from linrnn.mixers import Mixer, bounding_option, check_timed
from linrnn.typing import State

Streamable: TypeAlias = Model | Mixer
"""Models that can be streamed: causal, with ``forward``, ``step`` and ``init_state``."""


_NEEDED = ("causal", "declared", "init_state", "step")


def check_finite(where: str, y: Tensor, state: State) -> None:
    """Raise `NonFiniteError` unless outputs, and the state after them, are finite.

    Args:
        where: who asks, for the message.
        y: outputs.
        state: after them.
    """
    if all_finite([y, *states.leaves(state)]):
        return
    bad = first_bad([("an output", y)]) or f"a state whose {states.bad_part(state)}"
    raise NonFiniteError(
        f"{where}: the model's outputs and state must be finite, got {bad}. Leave such input out, "
        "or scale it as in training; the stream is where it was before."
    )


def check_state(where: str, state: State) -> None:
    """Raise `ArgumentError` unless a state to begin with is finite."""
    if bad := states.bad_part(state):
        raise ArgumentError(
            f"{where}: state must be finite, or every output would be NaN, got {bad}. Begin with "
            "another, or say allow_nonfinite=True."
        )


def check_state_of(where: str, model: Streamable, state: State, *, growing: bool = False) -> None:
    """Raise `ArgumentError` unless a state is one of this model, of one row.

    Args:
        where: who asks, for the message.
        model: whose it is to be.
        state: of any type.
        growing: whether its size may be another than that of a fresh one.
    """
    fresh = model.init_state(1)
    if not is_tree_of(fresh, state):
        raise ArgumentTypeError(
            f"{where}: state must be a tree of tensors as {type(model).__name__}.init_state gives "
            f"it, got {show(state)}. Pass what such a model returned."
        )
    if not growing:
        states.concat([fresh, state])  # says what is wrong with a state of another model
    if states.batch_size(state) not in (0, 1):
        raise ArgumentError(
            f"{where}: state must be of one row, got {states.batch_size(state)}. "
            "Pick one with linrnn.state.select(state, row)."
        )


def is_tree_of(first: Any, second: Any) -> bool:
    """Whether two trees have the same branches, and plain tensors of the same kind as leaves."""
    if isinstance(first, Tensor):
        is_tensor = isinstance(second, Tensor) and is_strided(second)
        return is_tensor and second.ndim == first.ndim and second.is_complex() == first.is_complex()
    if isinstance(first, dict):
        same = isinstance(second, dict) and first.keys() == second.keys()
        return same and all(is_tree_of(first[key], second[key]) for key in first)
    same = isinstance(second, (list, tuple)) and len(first) == len(second)
    return same and all(map(is_tree_of, first, second))


def is_strided(x: Tensor) -> bool:
    """Whether it is numbers in memory, one beside the other."""
    return not (x.is_meta or x.is_quantized) and x.layout is torch.strided


def check_path(where: str, path: object) -> None:
    """Raise `ArgumentTypeError` unless it is a path."""
    check_kind(where, "path", path, str, Path)


def as_tokens(where: str, model: Streamable, tokens: Any) -> Tensor:
    """Token ids of the model's vocabulary, (time,), on its device.

    Raises:
        DTypeError, ShapeError, ArgumentError: anything else, with its place.
    """
    ids = as_tensor(where, tokens, "tokens")
    check_tokens(where, model, ids)
    return ids.reshape(-1).to(next(model.parameters()).device, torch.long)


def as_input(where: str, model: Streamable, x: Any, *, finite: bool = False) -> tuple[Tensor, bool]:
    """A step or chunk of one stream as (time, ...) on the model's device, and whether it is a step.

    Raises:
        ShapeError, DTypeError: the wrong number of axes or channels, or not integers for tokens.
        ArgumentError: a token outside the vocabulary, with its place; with ``finite``
            also a number that the dtype of the model does not hold.
    """
    weight = next(model.parameters())
    x = as_tensor(where, x)
    if vocabulary(model) is not None:
        check_tokens(where, model, x)
        x = x.to(weight.device, torch.long)
        return (x[None], True) if x.ndim == 0 else (x, False)
    width = model.d_input if isinstance(model, Model) else model.d_model
    axes: dict[str, int | None] = {"time": None, "channels": width}
    if x.ndim == 1:
        del axes["time"]
    check_shape(where, "x", x.shape, axes, "Pass one step (channels,) or a chunk (time, channels).")
    if x.is_complex():
        raise DTypeError(f"{where}: x must be real, got {x.dtype}.")
    uncast, x = x, x.to(weight.device, weight.dtype)
    if finite and not all_finite([x]):
        place = tuple((~x.isfinite()).nonzero()[0].tolist())
        raise ArgumentError(
            f"{where}: x must be finite numbers that {x.dtype} holds, got {uncast[place].item()} "
            f"at {place}. Scale the input as in training."
        )
    return (x[None], True) if x.ndim == 1 else (x, False)


def mixers_of(model: Streamable) -> list[Mixer]:
    """The mixers of a model."""
    return list(model.mixers) if isinstance(model, Model) else [model]


def reads_times(model: Streamable) -> bool:
    """Whether a layer knows the time between steps."""
    return model.timed


def vocabulary(model: Streamable) -> int | None:
    """How many tokens a model reads, or None where its input is real numbers."""
    tokens = isinstance(model, Model) and isinstance(model.encoder, nn.Embedding)
    return model.d_input if tokens and isinstance(model, Model) else None


def pools(model: Streamable) -> bool:
    """Whether a model gives one output for a whole sequence."""
    return isinstance(model, Model) and model.pool.kind != "none"


def check_tokens(where: str, model: Streamable, x: Tensor) -> None:
    """Raise unless ``x`` is one token or a row of tokens of the model's vocabulary."""
    size = vocabulary(model)
    check_token_type(where, x)
    if x.ndim > 1:
        check_shape(where, "x", x.shape, {"time": None}, "Pass one token or a row of them.")
    ids = x.long()  # compared in eight bits, 256 would wrap to 0
    bad = ((ids < 0) | (ids >= (size or 0))).nonzero()
    if len(bad):
        place = int(bad[0, 0]) if x.ndim else 0
        token = int(x.flatten()[place])
        raise ArgumentError(
            f"{where}: tokens must be between 0 and {(size or 0) - 1}, got {token} at position "
            f"{place}. Is it the tokenizer of another model?"
        )


def check_token_type(where: str, x: Tensor) -> None:
    """Raise `DTypeError` unless ``x`` holds integers, or nothing."""
    if x.numel() and (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool):
        raise DTypeError(f"{where}: x must be integer token ids, got {x.dtype}.")


def check_streamable(
    where: str, model: Streamable, *, growing: bool, optional: bool = False
) -> None:
    """Raise `ArgumentError` unless a model can be read step by step, at constant memory.

    What is no model of ours, a `linrnn.RNN` either, is an `ArgumentTypeError`.

    Args:
        where: who asks, for the message.
        model: the mixer or model.
        growing: whether a state that grows with what was read is allowed.
        optional: whether that is an option of the caller, named ``growing``.
    """
    if not isinstance(model, Model) and not all(hasattr(model, x) for x in _NEEDED):
        raise ArgumentTypeError(
            f"{where}: model must be a linrnn.SequenceModel or a mixer, got a "
            f"{type(model).__name__}. For linrnn.RNN and PyTorch layers, carry the state yourself: "
            "y, state = model(x, state)."
        )
    for mixer in mixers_of(model):
        name = type(mixer).__name__
        if not mixer.causal:
            raise ArgumentError(
                f"{where}: model must read forward alone, got {name}, whose first output needs the "
                "last input. Train one without bidirectional."
            )
        if not growing and "constant_memory" in mixer.declared:
            option = bounding_option(mixer)
            fix = "Choose another" if option is None else f"Give it a {option}"
            fix += ", or pass growing=True." if optional else "."
            raise ArgumentError(
                f"{where}: model must have a state of fixed size, got {name}: "
                f"{mixer.declared['constant_memory']}. {fix}"
            )
    if model.training and any(_differs_in_training(m) for m in model.modules()):
        raise ArgumentError(
            f"{where}: model must be in evaluation mode, got training mode. Call model.eval()."
        )


def _differs_in_training(module: nn.Module) -> bool:
    if isinstance(module, nn.Dropout):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def as_times(where: str, model: Streamable, dt: Any, steps: int, single: bool) -> Tensor | None:
    """The times of a step or chunk of one stream as (time,) on the model's device, or None.

    Raises:
        ArgumentError: the model knows no time.
        ShapeError, DTypeError: not a real number for each step.
    """
    if dt is None:
        return None
    check_timed(where, dt, [model])
    times, weight = as_tensor(where, dt, "dt"), next(model.parameters())
    axes: dict[str, int | None] = {} if single else {"time": steps}
    check_shape(where, "dt", times.shape, axes, "Pass one number for each step.")
    if times.is_complex() or times.dtype == torch.bool:
        raise DTypeError(f"{where}: dt must be real, got {times.dtype}.")
    return times.to(weight.device, torch.promote_types(weight.dtype, torch.float32)).view(-1)


def as_tensor(where: str, x: Any, name: str = "x") -> Tensor:
    """Numbers in memory as a tensor; those of Python's that have fractions in float64.

    Raises:
        DTypeError: text, dates, or other objects.
    """
    if isinstance(x, (np.ndarray, np.generic)):
        x = np.asarray(x)  # PyTorch reads no single number of some types, such as uint64
        if x.dtype.kind not in "biufc":
            raise DTypeError(
                f"{where}: {name} must be numbers, got {show(x, 60)} of dtype {x.dtype}. If all "
                f"are numbers, convert them by {name}.astype(float)."
            )
        x = np.require(x, requirements="W")  # of pandas' arrays PyTorch would warn
    try:
        numbers = x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu")
        if not is_strided(numbers):
            raise TypeError("a tensor without its own numbers")
        if numbers.dtype == torch.get_default_dtype() and not isinstance(x, (Tensor, np.ndarray)):
            numbers = torch.as_tensor(
                x, dtype=torch.float64, device="cpu"
            )  # 1e39 would be infinite in float32
        return numbers
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = str(error).partition("\n")[0]
        raise DTypeError(f"{where}: {name} must be numbers, got {show(x, 60)} ({why}).") from error
