"""Files of streams: a state, what was read, and which model it is of."""

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from linrnn import __version__
from linrnn import state as states
from linrnn._files.reading import reading
from linrnn._files.storage import checksum, read_tensors, write_tensors
from linrnn._options.schema import check_type
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import first_bad
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    NonFiniteError,
    check_kind,
    check_positive_int,
    show,
)
from linrnn.streaming.input import (
    Streamable,
    as_input,
    check_finite,
    check_path,
    check_streamable,
    is_tree_of,
)
from linrnn.streaming.reading import read
from linrnn.typing import State

_STREAMS = "streams"  # what the metadata of a file of several is called


def save_stream(
    path: Path | str,
    model: Streamable,
    state: State,
    steps: int = 0,
    pending: Sequence[int] = (),
    *,
    allow_nonfinite: bool = False,
) -> None:
    """Write a state and what says which model it is of: safetensors, no code, all or nothing.

    Args:
        path: the file, replaced if it exists.
        model: whose state it is.
        state: of any number of rows.
        steps: how many the stream has read.
        pending: tokens among those that are not in the state yet.
        allow_nonfinite: write NaN and infinity as well.

    Raises:
        NonFiniteError: the state is not finite; the file is as it was.
        StorageError: the file cannot be written; it is as it was.
    """
    check_path("save_stream", path)
    check_streamable("save_stream", model, growing=True)
    if not is_tree_of(model.init_state(1), state):
        raise ArgumentTypeError(f"save_stream: state must be one of the model, got {show(state)}.")
    check_type("save_stream", "steps and pending", tuple[int, ...], (steps, *_listed(pending)))
    header: dict[str, Any] = {"linrnn": __version__, "steps": steps, "pending": list(pending)}
    header["model"] = fingerprint(model)
    states.save(state, path, header, allow_nonfinite=allow_nonfinite)


def load_stream(
    path: Path | str, model: Streamable, *, rows: int = 1, allow_nonfinite: bool = False
) -> tuple[State, int, list[int]]:
    """Load what `save_stream` wrote: state (on the model's device), steps and pending tokens.

    Raises:
        DataError: no such file, damaged, larger than such a state can be, not finite where that is
            not allowed, or of a newer linrnn.
        ArgumentError: it is of another model, of other weights, or of another number of rows.
    """
    check_path("load_stream", path)
    check_streamable("load_stream", model, growing=True)
    check_positive_int("load_stream", rows=rows)
    header = states.read_header(path)
    _check_model(path, fingerprint(model), header.get("model"))
    state = states.load(path, model.init_state(rows), allow_nonfinite=allow_nonfinite)
    if states.batch_size(state) not in (0, rows):
        raise ArgumentError(
            f"{path}: the state must have {rows} rows, got {states.batch_size(state)}."
        )
    with reading(path, DataError, "say what was read"):
        past = (header["steps"], *header["pending"])
        check_type("the header", "steps and pending", tuple[int, ...], past)
        if min(past) < 0:
            raise ValueError(f"{past[0]} steps, and {min(past)}")
    return states.to(state, device=next(model.parameters()).device), past[0], list(past[1:])


def _listed(pending: Any) -> tuple[Any, ...]:
    check_kind("save_stream", "pending", pending, list, tuple)
    return tuple(pending)


def load_read(path: Path | str, model: Streamable, allow: bool) -> tuple[State, int]:
    """The state that has read everything, pending tokens too, and how many steps those were."""
    state, steps, pending = load_stream(path, model, allow_nonfinite=allow)
    if pending:
        tokens, _ = as_input(str(path), model, pending)
        y, state = read(model, tokens[None], state)
        if not allow:
            check_finite(str(path), y, state)
    return state, steps


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """The fingerprint of a model: its name, its size, hashes of its shapes and weights.

    Example:
        >>> from linrnn.mixers import LRU
        >>> torch.manual_seed(0) and fingerprint(LRU(4))["name"]
        'LRU'
    """
    weights = {n: p.detach().cpu() for n, p in model.state_dict().items()}
    shapes = {n: [str(p.dtype), list(p.shape)] for n, p in weights.items()}
    name = type(model).__name__
    if isinstance(model, SequenceModel):
        first = type(model.mixers[0]).__name__
        name = f"{name} of {len(model.mixers)} x {first}, width {model.d_model}"
    text = json.dumps(shapes, sort_keys=True).encode()
    return {
        "name": name,
        "parameters": sum(p.numel() for p in weights.values()),
        "shapes": hashlib.sha256(text).hexdigest(),
        "weights": checksum(weights, {}),
    }


def _check_model(path: Path | str, ours: Mapping[str, Any], theirs: Any) -> None:
    if theirs != ours:
        raise ArgumentError(
            f"{path}: the state must be of this model, {_describe(ours)}, got one of "
            f"{_describe(theirs)}. Start from a fresh state, or take the model it was saved with."
        )


def _describe(model: Any) -> str:
    """A fingerprint in words."""
    if not isinstance(model, dict):
        return "an unknown model"
    weights = show(model.get("weights", "?"), 12).strip("'")[:8]
    name, size = (show(model.get(key, "?"), 60).strip("'") for key in ("name", "parameters"))
    return f"{name} with {size} numbers, weights {weights}"


def save_streams(
    path: Path | str,
    model: Streamable,
    names: Sequence[Hashable],
    state: State,
    steps: np.ndarray,
    *,
    allow_nonfinite: bool = False,
    mark: Mapping[str, Any] | None = None,
) -> None:
    """Write the states of several streams with their names to one file, all or nothing.

    Args:
        path: the file, replaced if it exists.
        model: whose states they are.
        names: of the streams, texts or integers.
        state: a row for each.
        steps: how many each has read.
        allow_nonfinite: write NaN and infinity as well.
        mark: the `fingerprint` of the model, where somebody has taken it before.

    Raises:
        ArgumentError: a name of another type.
        NonFiniteError: a state is not finite; the file is as it was.
        StorageError: the file cannot be written; it is as it was.
    """
    check_path("save_streams", path)
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise ArgumentError(
                f"{path}: names of streams in a file must be texts or integers, got {show(name)}."
            )
    if not allow_nonfinite and (bad := states.bad_part(state)):
        raise NonFiniteError(
            f"{path}: saved states must be finite, got {bad}. The file is unchanged."
        )
    text = json.dumps([[name, int(n)] for name, n in zip(names, steps, strict=True)])
    flat = {f"state.{n}": h.cpu().clone() for n, h in states.flatten(state).items()}
    flat["names"] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    header = {"format": states.FORMAT, "linrnn": __version__, "model": mark or fingerprint(model)}
    write_tensors(Path(path), flat, {_STREAMS: json.dumps(header, sort_keys=True)})


def load_streams(
    path: Path | str,
    model: Streamable,
    *,
    allow_nonfinite: bool = False,
    mark: Mapping[str, Any] | None = None,
) -> tuple[list[str | int], State, list[int]]:
    """Load what `save_streams` wrote: names, states (on the model's device) and steps.

    Raises:
        DataError: no such file, damaged, not finite where that is not allowed, or of a newer
            linrnn.
        ArgumentError: it is of another model, or of other weights.
    """
    check_path("load_streams", path)
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: the file of streams must exist, got no such file.")
    with reading(path, DataError, "be a file of streams that linrnn saved", got="got another ({})"):
        flat, meta = read_tensors(path, inside=None)
        header = json.loads(meta[_STREAMS])
        rows = json.loads(flat.pop("names").numpy().tobytes())
        check_type("the header", "format", int, header["format"])
        names, steps = [name for name, _ in rows], [n for _, n in rows]
        check_type("the file", "steps", tuple[int, ...], tuple(steps))
        check_type("the file", "names", tuple[str | int, ...], tuple(names))
        if len(set(names)) < len(names) or min(steps, default=0) < 0:
            raise ValueError("a name twice, or fewer than no steps")
    if header["format"] > states.FORMAT:
        raise DataError(
            f"{path}: the format of the states must be at most {states.FORMAT}, got "
            f"{header['format']}. Install a newer linrnn."
        )
    _check_model(path, mark or fingerprint(model), header.get("model"))
    like, flat = model.init_state(1), {n.removeprefix("state."): h for n, h in flat.items()}
    states.check_flat(path, flat, states.flatten(like))
    if any(len(h) != len(names) for h in flat.values()):
        raise DataError(f"{path}: there must be a state for each of {len(names)} streams.")
    if not allow_nonfinite and (bad := first_bad((f"part {n}", h) for n, h in flat.items())):
        raise DataError(f"{path}: the states must be finite, got {bad}. Restore it from a copy.")
    state = states.unflatten(flat, like)
    return names, states.to(state, device=next(model.parameters()).device), steps
