"""A language model in the middle of a text."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn._process.turns import Turns, in_turn
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import all_finite
from linrnn.errors import ArgumentError, ArgumentTypeError, NonFiniteError, check_positive_int
from linrnn.generation._sampling import NOT_NUMBERS, Sampling
from linrnn.streaming import CHUNK, check_streamable, fresh, load_stream, read, save_stream
from linrnn.streaming.input import as_tokens, check_finite, vocabulary
from linrnn.typing import Float, State

TokenIds = Sequence[int] | np.ndarray | Tensor
"""Token ids of a text, as a tokenizer returns them."""

#: Scores computed at once: so few stay in the second-level cache between the head, the exponentials
#: and their sum, which is several times faster than fresh memory.
_SCORES = 1 << 17
_ROWS = 64  # tokens at least: a large head is read once for all of them
_WIDE = 1 << 18  # numbers of a chunk between layers: a narrow model reads longer chunks
_LONG = 1 << 14  # but none longer than this


class TokenStream:
    """A language model in the middle of a text.

    The state has read all tokens but the last, which is kept beside it: what the model expects
    next is its output for that one. As in a `linrnn.streaming.Session`, what would make the state
    or an answer NaN or infinite raises, and leaves the stream where it was; and each call, or token
    of `generate`, happens as a whole, whatever other threads do.

    Args:
        model: in evaluation mode; attention without a window is allowed, and costs more with every
            token.
        chunk: most tokens computed at once. Default: 4,096, and up to 16,384 where ``d_model`` is
            below 64.

    Raises:
        ArgumentError: the model reads no tokens or has no output for each, or cannot be streamed.

    Example:
        >>> model = SequenceModel(5, 5, d_model=4, n_layers=1, pool="none", encoder="tokens")
        >>> text = TokenStream(model.eval())
        >>> text.surprise([0, 1, 2]).shape
        torch.Size([3])
        >>> text.expected().shape
        torch.Size([5])
    """

    def __init__(self, model: SequenceModel, *, chunk: int | None = None) -> None:
        if not isinstance(model, SequenceModel):
            raise ArgumentTypeError(
                f"TokenStream: model must be a linrnn.SequenceModel, got a {type(model).__name__}."
            )
        size = vocabulary(model)
        if size is None or model.pool.kind != "none" or model.d_output != size:
            raise ArgumentError(
                "TokenStream: model must be a language model (tokens in, a score for each token "
                f"out at every step), got d_input={model.d_input}, d_output={model.d_output}, "
                f"pool={model.pool.kind!r}, {'no ' if size is None else ''}tokens."
            )
        check_streamable("TokenStream", model, growing=True)
        self.model, self.vocabulary_size = model, size
        self.chunk = max(CHUNK, min(_LONG, _WIDE // model.d_model)) if chunk is None else chunk
        check_positive_int("TokenStream", chunk=self.chunk)
        self.state: State = fresh(model, 1)
        self.last: int | None = None
        """The last token, not in the state yet; None before the first one."""
        self.steps = 0
        """Tokens read, those before `load` included."""
        self._turn = Turns()

    @in_turn
    def read(self, tokens: TokenIds) -> None:
        """Read tokens in parallel, in chunks; nothing is computed for the last one yet.

        Raises:
            ArgumentError: a token outside the vocabulary, with its position.
            NonFiniteError: the state after them is not finite; nothing was read then.
        """
        ids = self._checked(tokens)
        with self._all_or_nothing():
            for part in ids.split(self.chunk):
                self._advance(part)

    @in_turn
    def surprise(self, tokens: TokenIds) -> Float[Tensor, " time"]:
        """Read tokens, and say of each how unlikely it was: ``-log2 p``, in bits.

        The very first token of a stream follows on nothing: it counts as drawn from all evenly.

        Raises:
            ArgumentError: a token outside the vocabulary, with its position.
            NonFiniteError: an answer, or the state after them, is not finite; nothing was read
                then.
        """
        ids = self._checked(tokens)
        nats = [torch.empty(0, device="cpu")]
        with self._all_or_nothing():
            for part in ids.split(self.chunk):
                first = self.last is None
                z = self._advance(part)
                if first and len(part):
                    nats.append(torch.tensor([math.log(self.vocabulary_size)], device="cpu"))
                nats.append(_minus_log_p(self.model.head, z, part[1:] if first else part))
                check_finite("TokenStream", nats[-1], ())
        return torch.cat(nats) / math.log(2)

    @in_turn
    def expected(self) -> Float[Tensor, " vocabulary"]:
        """Logits of the next token; a second call changes nothing.

        Raises:
            ArgumentError: nothing was read.
            NonFiniteError: they are not finite.
        """
        return self._expected()[0]

    @in_turn
    def save(self, path: Path | str) -> None:
        """Write the state and the last token: see `linrnn.streaming.Session.save`.

        Raises:
            NonFiniteError: the state is not finite; the file is as it was.
        """
        pending = [] if self.last is None else [self.last]
        save_stream(path, self.model, self.state, self.steps, pending)

    @in_turn
    def load(self, path: Path | str) -> None:
        """Go on where a stream of the same model was saved.

        Raises:
            DataError: no such file, damaged, not finite, or of a newer linrnn.
            ArgumentError: it is of another model.
        """
        state, steps, pending = load_stream(path, self.model)
        if any(not 0 <= token < self.vocabulary_size for token in pending[-1:]):
            raise ArgumentError(f"{path}: the last token must be of this model, got {pending}.")
        self.state, self.steps = state, steps
        self.last = pending[-1] if pending else None

    @in_turn
    def draw(self, sampling: Sampling, generator: torch.Generator) -> int:
        """Draw the next token, and read it: see `Sampling.draw`.

        Raises:
            ArgumentError: nothing was read.
            NonFiniteError: the model's outputs are not numbers; nothing was read then.
        """
        logits, state = self._expected()
        token = sampling.draw(logits, generator)
        self.state, self.last, self.steps = state, token, self.steps + 1
        return token

    def _checked(self, tokens: TokenIds) -> Tensor:
        return as_tokens("generate", self.model, tokens)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Whatever ends what is done inside leaves the stream where it was."""
        snapshot = self.state, self.last, self.steps
        try:
            yield
        except BaseException:
            self.state, self.last, self.steps = snapshot
            raise

    @torch.no_grad()
    def _advance(self, part: Tensor) -> Tensor:
        """Read ``last`` and all of ``part`` but its last: what the head gets for each."""
        if not len(part):
            return self.model.head.weight.new_zeros(0, self.model.d_model)
        previous = [] if self.last is None else [self.last]
        ids = torch.cat([part.new_tensor(previous), part[:-1]])  # (time,)
        z, state = self.model.features(ids[None], self.state)
        check_finite("TokenStream", z, state)
        self.state = state
        self.last = int(part[-1])
        self.steps += len(part)
        return z[0]

    def _expected(self) -> tuple[Tensor, State]:
        """Logits of the next token, and the state that has read the last one too."""
        if self.last is None:
            raise ArgumentError(
                "generate: prompt must hold a token, got none, and nothing was read before. "
                "Begin with a newline."
            )
        ids = torch.tensor([[self.last]], device=self.model.head.weight.device)
        y, state = read(self.model, ids, self.state)
        if not all_finite([y]):
            raise NonFiniteError(NOT_NUMBERS)
        return y[0, 0], state


@torch.no_grad()
def _minus_log_p(head: nn.Linear, z: Tensor, targets: Tensor) -> Tensor:
    """Return -log p of each target in nats from the head's inputs ``z``, a few rows at a time."""
    rows = max(_ROWS, _SCORES // head.out_features)
    nats = [
        F.cross_entropy(head(z_block).float(), target_block, reduction="none")
        for z_block, target_block in zip(z.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat(nats).cpu()
