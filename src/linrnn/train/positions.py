"""The loss at each place of a window: what a longer context brings, within and beyond training."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn._files.storage import write_atomically
from linrnn._options.numbers import counted
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import all_finite
from linrnn.errors import ArgumentError, NonFiniteError, check_positive_int
from linrnn.tasks import Task
from linrnn.train._outputs import CHUNK, first_rows, why_not_streamed
from linrnn.train.data import Batch, eval_loader, size_of, unpack
from linrnn.train.figures import loss_against_position, save
from linrnn.train.folder import RunFolder
from linrnn.train.model import load_model
from linrnn.typing import State

FURTHER = 16
"""How many times the training length is looked at where the text is long enough."""

_WINDOWS = 8  # at that length, at least, to say something about their mean
_LOGITS = 2**24  # numbers in memory at once


@dataclass(frozen=True, kw_only=True)
class PositionLoss:
    """The loss over some neighbouring positions of a window."""

    first: int
    """Position, from 1: the number of tokens that were read before the predicted one."""
    last: int
    loss: float
    """Mean, in nats per token."""
    standard_error: float
    """Standard error of the mean over the windows; NaN for a single one."""
    windows: int


def loss_by_position(
    run: Path | str, *, length: int | None = None, carry: bool | None = None
) -> list[PositionLoss]:
    """Test loss of a language model by how much of a window was read, in steps of about sqrt 2.

    Args:
        run: the run folder.
        length: of the windows; None takes 16 times that of training, or as many doublings of it
            as leave eight windows.
        carry: let each window begin with the state of the one before; None does so where training
            did and the length is that of training.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        DataError: the text is missing, or shorter than a window.
        ArgumentError: the task does not predict each token of a text, or the state
            cannot be carried.
    """
    model, task, config = load_model(run)
    if not task.perplexity:
        raise ArgumentError(
            f"loss_by_position: the run must be of a language model, got the task {config.task}."
        )
    if carry is None:
        carry = config.train.carry_state and length in (None, task.sequence_length)
        length = task.sequence_length if carry else length
    if length is None:
        length = _longest(task)
    check_positive_int("loss_by_position", length=length)
    if carry and why_not_streamed(model):
        reason = why_not_streamed(model)
        raise ArgumentError(f"loss_by_position: carry must be False, got True and {reason}.")
    return measure_positions(model, task.at_length(length), config.train.batch_size, carry=carry)


@torch.no_grad()
def measure_positions(
    model: SequenceModel, task: Task, batch_size: int, *, carry: bool = False
) -> list[PositionLoss]:
    """`loss_by_position` of a model in evaluation mode on the windows of a task.

    Raises:
        NonFiniteError: the loss of a token is not finite.
    """
    bins = _bins(task.sequence_length)
    rows = batch_size if carry else max(1, _LOGITS // task.sequence_length // task.d_output)
    data = task.datasets().test
    state: State | None = None
    losses = []
    for batch in map(unpack, eval_loader(data, min(rows, batch_size), contiguous=carry)):
        nats, state = _nats(model, batch, state if carry else None)
        losses.append(torch.stack([nats[:, a - 1 : b].mean(1) for a, b in bins], 1))  # (rows, bins)
    by_window = torch.cat(losses).double().cpu()  # (windows, bins)
    if not all_finite([by_window]):
        window, place = (~by_window.isfinite()).nonzero()[0].tolist()
        raise NonFiniteError(
            f"{type(task).__name__}: the loss of every token must be finite, got "
            f"{by_window[window, place].item()} in window {window + 1} from position "
            f"{bins[place][0]} on. Its length is beyond what the model can follow."
        )
    n = len(by_window)
    errors = by_window.std(0) / math.sqrt(n) if n > 1 else torch.full_like(by_window[0], math.nan)
    return [
        PositionLoss(first=a, last=b, loss=m, standard_error=e, windows=n)
        for (a, b), m, e in zip(bins, by_window.mean(0).tolist(), errors.tolist(), strict=True)
    ]


def write_positions(run: Path | str, found: Sequence[PositionLoss]) -> None:
    """Write ``positions.csv`` and the plot ``positions`` (PNG and SVG) into a run folder."""
    folder = RunFolder(Path(run))
    config = folder.load_config()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("first", "last", "loss", "standard_error", "windows"))
    for p in found:
        writer.writerow((p.first, p.last, f"{p.loss:.6g}", f"{p.standard_error:.3g}", p.windows))
    write_atomically(folder.positions, text.getvalue().encode(), inside=folder.path)
    figure = loss_against_position(
        {f"{config.mixer}, seed {config.seed}": points(found)},
        trained=config.task_options.length,
        title=(
            f"{config.task}, one trained model: mean ± s.e. over "
            f"{counted(found[0].windows, 'window')}"
        ),
    )
    save(figure, folder.positions_plot)


def points(losses: Sequence[PositionLoss]) -> list[tuple[float, float, float]]:
    """Points of a figure: middle position as logarithms go, loss and standard error."""
    return [(math.sqrt(p.first * p.last), p.loss, p.standard_error) for p in losses]


def _nats(model: SequenceModel, batch: Batch, state: State | None) -> tuple[Tensor, State | None]:
    """Loss of every token (windows, length), read in chunks where that is possible."""
    device = model.head.weight.device
    x, target = batch.x.to(device), batch.target.to(device)
    reset = None if batch.reset is None else batch.reset.to(device)
    state, parts = first_rows(state, len(x)), []
    for steps in _chunks(model, x.shape[1]):
        cut = None if reset is None else reset[:, steps]
        y, state = model(x[:, steps], state, reset=cut)
        nats = F.cross_entropy(
            y.flatten(0, 1).float(), target[:, steps].flatten(), reduction="none"
        )
        parts.append(nats.view(len(x), -1))  # (windows, steps)
    return torch.cat(parts, 1), state


def _chunks(model: SequenceModel, time: int) -> Iterator[slice]:
    size = time if why_not_streamed(model) else CHUNK
    return (slice(start, start + size) for start in range(0, time, size))


def _bins(length: int) -> list[tuple[int, int]]:
    """First and last position of each, about sqrt 2 times the one before.

    Example:
        >>> _bins(8)
        [(1, 1), (2, 2), (3, 3), (4, 5), (6, 8)]
    """
    starts = sorted({round(2 ** (j / 2)) for j in range(2 * length.bit_length())})
    starts = [s for s in starts if s < length] or [1]
    return list(zip(starts, [*(s - 1 for s in starts[1:]), length], strict=True))


def _longest(task: Task) -> int:
    """16 times the training length, or as much as leaves enough windows."""
    length = task.sequence_length
    windows = size_of(task.datasets().test, "test data")
    factor = FURTHER
    while factor > 1 and windows // factor < _WINDOWS:
        factor //= 2
    return length * factor
