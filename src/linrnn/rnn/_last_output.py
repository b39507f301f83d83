"""The last output of each sequence, in every form in which a recurrent layer returns them."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from linrnn.errors import ArgumentError, ShapeError, check_shape
from linrnn.nn.lengths import check_lengths
from linrnn.rnn._packing import ends_of
from linrnn.typing import Lengths


def last_output(
    output: Tensor | PackedSequence,
    lengths: Lengths | None = None,
    *,
    batch_first: bool = False,
    bidirectional: bool = False,
) -> Tensor:
    """The last output of a recurrent layer for each whole sequence: (batch, channels).

    That is the output at the last step of each sequence; with ``bidirectional``, its first half,
    and the second half at the first step, where the backward direction has read everything. For
    `torch.nn.GRU` it is ``h_n[-1]``, and ``torch.cat([h_n[-2], h_n[-1]], -1)`` in two directions.

    Args:
        output: of `RNN` or of a layer of torch.nn: a `PackedSequence`, a padded batch, or
            (time, channels).
        lengths: (batch,) steps of each sequence of a padded batch, a tensor, an array or a list;
            None for all of them.
        batch_first: a padded batch is (batch, time, channels) and not (time, batch, channels).
        bidirectional: the second half of the channels was read backward.

    Returns:
        One row a sequence, in the original order of a packed batch; (channels,) without a batch.

    Raises:
        ArgumentError: a length below 1 or above the steps there are; ``lengths`` for an output
            that is packed or has no batch.
        ShapeError, DTypeError: ``output`` or ``lengths`` does not fit.

    Example:
        >>> output, h_n = torch.nn.GRU(3, 8)(torch.randn(20, 5, 3))
        >>> torch.equal(last_output(output), h_n[-1])
        True
    """
    if isinstance(output, PackedSequence) or output.ndim == 2:
        if lengths is not None:
            raise ArgumentError(
                "last_output: lengths must be None for an output that is packed or has no batch, "
                f"got a {type(lengths).__name__}."
            )
        last, first = ends_of(output)
    else:
        last, first = _ends_of_rows(output, lengths, batch_first=batch_first)
    half = last.shape[-1] // 2
    return torch.cat([last[..., :half], first[..., half:]], -1) if bidirectional else last


def _ends_of_rows(
    output: Tensor, lengths: Lengths | None, *, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """The last and the first output of each row of a padded batch."""
    check_shape("last_output", "output", output.shape, dict.fromkeys(("a", "b", "channels")))
    y = output if batch_first else output.transpose(0, 1)  # (batch, time, channels)
    if lengths is not None:
        ends = check_lengths("last_output", lengths, y, least=1).to(y.device) - 1
        return y[torch.arange(y.shape[0], device=y.device), ends], y[:, 0]
    if y.shape[1] == 0:
        raise ShapeError(f"last_output: output must have a step, got {tuple(output.shape)}.")
    return y[:, -1], y[:, 0]
