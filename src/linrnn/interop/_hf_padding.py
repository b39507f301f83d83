"""Reading rows of different lengths in one batch, each as if it were alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from linrnn import state as states
from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.typing import Float, Integer, State

WHERE = "linrnn.interop.hf"
"""The caller, for messages."""

Read = Callable[..., tuple[Tensor, State]]
"""Embeddings (batch, time, channels), a state or None, a reset mask or None, and perhaps a mask of
what is no padding: features (batch, time, channels) and the new state."""


def split_padding(
    ids: Integer[Tensor, "batch time"], mask: Tensor | None, size: int, past: int
) -> tuple[Tensor, Tensor | None]:
    """Ids that a model can read, and which of them it should, or None for all.

    Args:
        ids: token ids; the id ``size``, one beyond the vocabulary, is padding.
        mask: (batch, time) or (batch, past + time), zero at padding.
        size: tokens of the vocabulary.
        past: columns read before.

    Raises:
        ArgumentError: an id outside the vocabulary, or a number in the mask that is neither 0 nor
            1, with its place.
        ShapeError, DTypeError: a mask that does not fit.
    """
    padding = ids == size
    valid = ~padding if mask is None else unmasked(mask, ids, past)
    # what is padding is never looked at; generate goes on giving padding to rows that have ended
    ids = ids.masked_fill(padding | ~valid, 0)
    bad = (ids < 0) | (ids >= size)
    if bad.any():
        row, step = (int(i) for i in bad.nonzero()[0])
        raise ArgumentError(
            f"{WHERE}: input_ids must be between 0 and {size - 1}, or {size} for "
            f"padding, got {int(ids[row, step])} in row {row} at position {step}. Is it the "
            "tokenizer of another model?"
        )
    return ids, None if valid.all() else valid


def unmasked(mask: Tensor, x: Tensor, past: int) -> Tensor:
    """Which steps of x (batch, time, ...) a mask lets through: boolean (batch, time).

    Raises:
        ArgumentError: it holds other numbers than 0 and 1.
        ShapeError: it does not fit.
    """
    batch, time = x.shape[:2]
    shapes = ((batch, time), (batch, past + time))
    if mask.is_complex() or mask.ndim != 2 or tuple(mask.shape) not in shapes:
        raise ShapeError(
            f"{WHERE}: attention_mask must have shape ({batch}, {time}), or "
            f"({batch}, {past + time}) with what the cache has read, got {tuple(mask.shape)}."
        )
    valid = mask[:, mask.shape[1] - time :].to(x.device)
    if mask.dtype != torch.bool and (invalid := (valid != 0) & (valid != 1)).any():
        row, step = invalid.nonzero()[0].tolist()
        raise ArgumentError(
            f"{WHERE}: attention_mask must be 0 at padding and 1 elsewhere, got "
            f"{valid[row, step].item()} in row {row} at position {step}. Say by seq_idx which "
            "document of a row a token is of."
        )
    return valid != 0


def read_rows(
    read: Read,
    x: Tensor,
    valid: Tensor | None,
    state: State | None,
    begun: Tensor,
    grows: bool,
    reset: Tensor | None = None,
) -> tuple[Float[Tensor, "batch time channels"], State]:
    """Read the valid tokens of each row; the outputs at the others mean nothing.

    A row that has read nothing yet may have padding anywhere: its tokens are moved together to
    the end, and its state is reset before the first of them. Rows whose state must pass over
    padding are read one by one.

    Args:
        read: the model.
        x: (batch, time, channels).
        valid: boolean (batch, time), or None for all.
        state: before the first step.
        begun: boolean (batch,), whether a row has read a token before.
        grows: whether a state grows with what was read, padding or not.
        reset: boolean (batch, time), before which steps a row begins anew, none of them padding.

    Raises:
        ArgumentError: ``grows``, and a row that has begun has padding now.
    """
    if valid is None and (state is None or bool(begun.all())):
        return read(x, state, reset)
    valid = begun.new_ones(x.shape[:2]) if valid is None else valid
    late = begun & ~valid.all(1)
    if late.any():
        if grows:
            raise ArgumentError(
                f"{WHERE}: attention_mask must be 1 once a row has begun where the state "
                f"grows with every step, got 0 in row {int(late.nonzero()[0])}. Read each text on "
                "its own, or choose a mixer whose state does not grow."
            )
        return _one_by_one(read, x, valid, state, begun, reset)
    order = valid.long().argsort(dim=1, stable=True)  # padding first, tokens in their order
    first = (~valid).sum(1)
    step = torch.arange(x.shape[1], device=x.device)
    begins = (step == first[:, None]) & ~begun[:, None]  # (batch, time)
    if reset is not None:
        begins = begins | reset.gather(1, order)
    z, next_state = read(_moved(x, order), state, begins, step >= first[:, None])
    return _moved(z, order.argsort(1)), next_state


def _moved(x: Tensor, order: Tensor) -> Tensor:
    """The steps of each row in another order."""
    return x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))  # (batch, time, channels)


def _one_by_one(
    read: Read,
    x: Tensor,
    valid: Tensor,
    state: State | None,
    begun: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, State]:
    if state is None:
        raise DTypeError(f"{WHERE}: a row that has begun must have a state, got None.")
    no_outputs, _ = read(x[:1, :0], states.select(state, 0), None)
    pieces, next_states = [no_outputs[0]], []
    for row, keep in enumerate(valid):
        row_state = states.select(state, row)
        if keep.any():
            begins = None if reset is None else reset[row, keep][None]  # (1, valid steps)
            z, row_state = read(x[row, keep][None], row_state if begun[row] else None, begins)
            pieces.append(z[0])
        next_states.append(row_state)
    flat = torch.cat(pieces)  # (valid steps, channels)
    places = valid[..., None].expand(-1, -1, flat.shape[1])  # (batch, time, channels)
    return flat.new_zeros(places.shape).masked_scatter(places, flat), states.concat(next_states)
