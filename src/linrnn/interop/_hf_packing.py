"""Several documents in one row: what keywords of transformers say of them, as one reset mask."""

import inspect
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError, show
from linrnn.interop._hf_padding import WHERE
from linrnn.typing import Bool, Integer

_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k")
_LONGEST = ("max_length_q", "max_length_k")

#: Keywords that transformers and its tokenizers send to every model, and what they may be here.
_SILENT: Mapping[str, tuple[Any, ...]] = {
    "output_attentions": (None, False),
    "output_router_logits": (None, False),
    "is_causal": (None, True),
    "token_type_ids": (None,),
}


class Packing(NamedTuple):
    """Where documents begin, as the caller of a model says it; None for what was left out."""

    position_ids: Any = None
    seq_idx: Any = None
    reset: Any = None
    cu_seq_lens_q: Any = None
    cu_seq_lens_k: Any = None
    max_length_q: Any = None
    max_length_k: Any = None

    def __bool__(self) -> bool:
        return any(value is not None for value in self)


def sort_keywords(
    model: type, kwargs: Mapping[str, Any], of_loss: tuple[str, ...], **columns: Any
) -> tuple[Packing, dict[str, Any]]:
    """Keywords of a call: those about documents, and those of the loss.

    Args:
        model: the class that was called, for messages.
        kwargs: what the signature of the call does not name.
        of_loss: the names that its loss takes.
        columns: what the signature names: ``position_ids``, ``seq_idx`` and ``reset``.

    Raises:
        UnknownNameError: a keyword that means nothing here.
        ArgumentError: one of transformers that asks for what the model has not.
    """
    packing: dict[str, Any] = {}
    loss: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in (*_LENGTHS, *_LONGEST):
            packing[name] = value
        elif name in of_loss:
            loss[name] = value
        elif name not in _SILENT:
            accepted = {*inspect.signature(model.forward).parameters} - {"self", "kwargs"}  # type: ignore[attr-defined]
            accepted |= {*_LENGTHS, *_LONGEST, *of_loss}
            raise UnknownNameError(f"keyword of {model.__name__}.forward", name, accepted)
        elif not any(value is silent for silent in _SILENT[name]) and not _is_zero(name, value):
            raise ArgumentError(f"{WHERE}: {name} must be left out, got {show(value)}.")
    return Packing(**columns, **packing), loss


def _is_zero(name: str, value: Any) -> bool:
    """Whether it is what tokenizers give for one text: segments that are all the first."""
    return name == "token_type_ids" and isinstance(value, Tensor) and not bool(value.any())


def document_starts(
    packing: Packing, x: Tensor, valid: Tensor | None, begun: Tensor | None
) -> Bool[Tensor, "batch time"] | None:
    """Before which steps the state begins anew; None where it goes on at all of them.

    A document begins

    - at a position that does not follow on the one before: 0, or the lowest of its row;
    - where ``seq_idx`` changes;
    - at each of ``cu_seq_lens_q``, of the rows one after the other;
    - where ``reset`` is True; at padding it is for the next token.

    Only what is no padding counts. The first token of a call goes on after the cache unless its
    position is 0 or ``reset`` says otherwise.

    Args:
        packing: what was said.
        x: what is read, (batch, time, ...).
        valid: boolean (batch, time), what is no padding; None for all.
        begun: boolean (batch,), which rows have read a token before; None for none.

    Raises:
        ArgumentError: one of them cannot be, or two of them do not agree, and where.
        ShapeError, DTypeError: one does not fit.
    """
    if not packing:
        return None
    real = x.new_ones(x.shape[:2], dtype=torch.bool) if valid is None else valid
    previous = _step_before(real)
    inner, first = real & (previous >= 0), real & (previous < 0)
    starts: dict[str, Tensor] = {}
    anew = torch.zeros_like(real)  # where documents begin
    if packing.position_ids is not None:
        at = _per_step("position_ids", packing.position_ids, x)
        starts["position_ids"] = inner & _by_position(at, real, inner, previous)
        anew = anew | (first & (at == 0))
    if packing.seq_idx is not None:
        starts["seq_idx"] = _by_index(
            _per_step("seq_idx", packing.seq_idx, x), real, inner, previous
        )
    if packing.reset is not None:
        begins = _to_tokens(_per_step("reset", packing.reset, x, boolean=True), real, previous)
        starts["reset"] = inner & begins
        anew = anew | (first & begins)
    for name in _LENGTHS:
        if (lengths := getattr(packing, name)) is not None:
            starts[name] = inner & _by_lengths(name, lengths, x, valid, begun)
    _check_alike(starts)
    inside = next(iter(starts.values()), torch.zeros_like(real))
    _check_longest(packing, real, inside | first)
    old = torch.zeros_like(real[:, 0]) if begun is None else begun
    begins_anew = inside | (anew & old[:, None])  # (batch, time)
    return begins_anew if begins_anew.any() else None


def refuse_documents(starts: Tensor | None, valid: Tensor | None, where: str) -> None:
    """Raise `ArgumentError` where a row holds more than one document.

    Args:
        starts: as of `document_starts`.
        valid: boolean (batch, time), what is no padding; None for all.
        where: the model, for the message.
    """
    if starts is None:
        return
    real = torch.ones_like(starts) if valid is None else valid
    inner = starts & (_step_before(real) >= 0)
    if inner.any():
        row, step = inner.nonzero()[0].tolist()
        raise ArgumentError(
            f"{where}: a row must be one document, for it has one answer, got another that begins "
            f"in row {row} at position {step}. Give each document its own row, padded."
        )


def fit_to_text(value: Tensor, time: int, last: int | None) -> Tensor:
    """A column for each token of a text that was written on: new ones are of the last document.

    Args:
        value: (batch, columns), ``reset`` or ``seq_idx``, of the text as it was.
        time: tokens of the text now.
        last: how many of them are read; None for all.
    """
    new = time - value.shape[1]
    if new > 0:
        end = value[:, -1:] if value.dtype != torch.bool else torch.zeros_like(value[:, -1:])
        value = torch.cat([value, end.expand(-1, new)], 1)
    return value if last is None else value[:, -last:]


def _step_before(real: Bool[Tensor, "batch time"]) -> Integer[Tensor, "batch time"]:
    """For each step the last one before it that is no padding, or -1."""
    step = torch.arange(real.shape[1], device=real.device).expand_as(real)
    last = torch.where(real, step, -1).cummax(1).values
    return torch.nn.functional.pad(last, (1, 0), value=-1)[:, :-1]


def _per_step(name: str, value: Any, x: Tensor, *, boolean: bool = False) -> Tensor:
    """One of the arguments as (batch, time) on the device of x; one row may be for all."""
    if not isinstance(value, Tensor):
        raise DTypeError(f"{WHERE}: {name} must be a tensor, got {type(value).__name__}.")
    batch, time = x.shape[:2]
    if value.ndim != 2 or value.shape[1] != time or value.shape[0] not in (1, batch):
        raise ShapeError(
            f"{WHERE}: {name} must have shape ({batch}, {time}), as what is read, got "
            f"{tuple(value.shape)}."
        )
    is_integer = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    if not (value.dtype == torch.bool if boolean else is_integer):
        kind = "boolean" if boolean else "integers"
        raise DTypeError(f"{WHERE}: {name} must be {kind}, got {value.dtype}.")
    moved: Tensor = value.to(x.device)
    return (moved if boolean else moved.long()).expand(batch, time)


def _to_tokens(reset: Tensor, real: Tensor, previous: Tensor) -> Tensor:
    """A reset mask of which each that is at padding has moved to the next token."""
    count = reset.long().cumsum(1)  # (batch, time)
    passed = torch.where(previous < 0, 0, count.gather(1, previous.clamp(min=0)))
    last = torch.where(real, count, 0).amax(1)  # (batch,)
    if (late := count[:, -1] > last).any():
        row = int(late.nonzero()[0])
        raise ArgumentError(
            f"{WHERE}: reset must be followed by a token that is no padding, got none in row "
            f"{row}. Say it in the call that reads that token."
        )
    return real & (count > passed)


def _by_position(at: Tensor, real: Tensor, inner: Tensor, previous: Tensor) -> Tensor:
    """Whether positions begin again at a step."""
    last = at.gather(1, previous.clamp(min=0))
    begins = inner & (at != last + 1)
    lowest = torch.where(real, at, torch.iinfo(at.dtype).max).amin(1, keepdim=True)  # (batch, 1)
    wrong = (begins & (at != lowest)) | (real & (at < 0))
    if wrong.any():
        row, step = wrong.nonzero()[0].tolist()
        raise ArgumentError(
            f"{WHERE}: position_ids must rise by 1 within a document and begin again with the "
            f"next, at 0, got {int(at[row, step])} after {int(last[row, step])} in row {row} at "
            f"position {step}. A recurrent model counts its steps itself: leave other positions "
            "out."
        )
    return begins


def _by_index(index: Tensor, real: Tensor, inner: Tensor, previous: Tensor) -> Tensor:
    """Whether the number of the document changes at a step."""
    last = index.gather(1, previous.clamp(min=0))
    wrong = (inner & (index < last)) | (real & (index < 0))
    if wrong.any():
        row, step = wrong.nonzero()[0].tolist()
        raise ArgumentError(
            f"{WHERE}: seq_idx must count documents from 0 up, each in one piece, got "
            f"{int(index[row, step])} in row {row} at position {step}."
        )
    return inner & (index != last)


def _by_lengths(
    name: str, lengths: Any, x: Tensor, valid: Tensor | None, begun: Tensor | None
) -> Tensor:
    """Where documents of these cumulative lengths begin, of the rows one after the other."""
    if not isinstance(lengths, Tensor) or lengths.ndim != 1 or len(lengths) < 2:
        raise ShapeError(
            f"{WHERE}: {name} must be a tensor (documents + 1,), got "
            f"{tuple(lengths.shape) if isinstance(lengths, Tensor) else show(lengths)}."
        )
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise DTypeError(f"{WHERE}: {name} must be integers, got {lengths.dtype}.")
    batch, time = x.shape[:2]
    ends: list[int] = lengths.tolist()
    rises = all(a <= b for a, b in itertools.pairwise(ends))
    rows = set(range(0, batch * time, time)) <= set(ends)
    if ends[0] != 0 or ends[-1] != batch * time or not rises or not rows:
        raise ArgumentError(
            f"{WHERE}: {name} must rise from 0 to the {batch * time} tokens that are read, with a "
            f"document's begin at that of each row, got {show(ends)}."
        )
    if valid is not None or (begun is not None and bool(begun.any())):
        what = "attention_mask with zeros" if valid is not None else "past_key_values"
        raise ArgumentError(
            f"{WHERE}: {name} must come without padding and before anything was read, got it with "
            f"{what}. Say by seq_idx or reset where documents begin."
        )
    flat = torch.zeros(batch * time, dtype=torch.bool)
    flat[[end for end in ends if end < batch * time]] = True
    return flat.view(batch, time).to(x.device)  # (batch, time)


def _check_alike(starts: Mapping[str, Tensor]) -> None:
    """Raise `ArgumentError` unless all say that documents begin at the same steps."""
    names = list(starts)
    for name in names[1:]:
        differs = starts[name] != starts[names[0]]
        if differs.any():
            row, step = differs.nonzero()[0].tolist()
            one, second = names[0], name
            if not starts[one][row, step]:
                one, second = second, one
            raise ArgumentError(
                f"{WHERE}: {one} and {second} must agree, got a document that begins in row {row} "
                f"at position {step} by {one} and not by {second}. Leave one of them out."
            )


def _check_longest(packing: Packing, real: Tensor, starts: Tensor) -> None:
    """Raise `ArgumentError` where a document is longer than the stated maximum."""
    for name in _LONGEST:
        limit = getattr(packing, name)
        if limit is None:
            continue
        if isinstance(limit, Tensor) and limit.numel() == 1 and not limit.is_floating_point():
            limit = int(limit)
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise DTypeError(f"{WHERE}: {name} must be an integer, got {show(limit)}.")
        count = real.long().cumsum(1)
        longest = int((count - torch.where(starts, count, 0).cummax(1).values + 1).amax())
        if longest > limit:
            raise ArgumentError(
                f"{WHERE}: {name} must be at least the length of every document, got {limit} and "
                f"one of {longest} tokens."
            )
