"""Language models that read and write: generation, and how much a text surprises a model.

The state has a fixed size, so a text may be as long as one likes, longer than anything the model
was trained on, and every token costs the same.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn import state as states
from linrnn._options.schema import check_type
from linrnn._process.turns import Turns, in_turn
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import all_finite
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    check_at_most,
    check_kind,
    check_positive_int,
    show,
)
from linrnn.streaming import (
    CHUNK,
    check_streamable,
    fresh,
    load_stream,
    read,
    save_stream,
)
from linrnn.streaming.input import as_tokens, check_finite, vocabulary
from linrnn.tokenizers import Stream, Tokenizer
from linrnn.typing import Float, State

__all__ = [
    "Sampling",
    "StopText",
    "TokenIds",
    "TokenStream",
    "check_tokenizer",
    "generate",
    "generate_batch",
    "generate_text",
    "generate_texts",
    "generator_of",
]

TokenIds = Sequence[int] | np.ndarray | Tensor
"""Token ids of a text, as a tokenizer returns them."""

#: Scores computed at once: so few stay in the second-level cache between the head, the exponentials
#: and their sum, which is several times faster than fresh memory.
_SCORES = 1 << 17
_ROWS = 64  # tokens at least: a large head is read once for all of them
_WIDE = 1 << 18  # numbers of a chunk between layers: a narrow model reads longer chunks
_LONG = 1 << 14  # but none longer than this
_LARGEST = 1 << 63  # of a number that PyTorch divides by
_MOST_SEED = 1 << 62  # the rows of a batch have seeds after one another


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn from the model's probabilities.

    Raises:
        ArgumentError: a value outside the range named below.
    """

    temperature: float = 1.0
    """Divides the logits, at least 0; below 1 likely tokens get likelier, 0 takes the likeliest."""
    top_k: int = 0
    """Draw from that many likeliest tokens only; 0: from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens whose probabilities sum to this, in (0, 1]; 1: all."""

    def __post_init__(self) -> None:
        if not _number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ArgumentError(
                f"generate: temperature must be at least 0 and finite, got "
                f"{show(self.temperature)}. 0 always takes the likeliest token."
            )
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ArgumentError(
                f"generate: top_k must be an integer of at least 0, got {show(self.top_k)}."
            )
        if not _number(self.top_p) or not 0 < self.top_p <= 1:
            raise ArgumentError(f"generate: top_p must be in (0, 1], got {show(self.top_p)}.")

    def draw(self, logits: Float[Tensor, " vocabulary"], generator: torch.Generator) -> int:
        """One token; all randomness comes from ``generator``, of the CPU.

        Raises:
            NonFiniteError: a logit is NaN or infinite; minus infinity, which rules a token out,
                may stand anywhere but everywhere.
        """
        logits = logits.detach().double().cpu()
        if not logits.max() < math.inf or not logits.isfinite().any():
            raise NonFiniteError(_NOT_NUMBERS)
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits - logits.max()  # however small the temperature, one of them stays finite
        if self.top_k == 0 and self.top_p == 1:  # sorting a large vocabulary would cost a step
            return _draw((logits / self.temperature).softmax(0).cumsum(0), generator)
        top = logits.sort(descending=True, stable=True)
        count = len(logits) if self.top_k == 0 else min(self.top_k, len(logits))
        summed = (top.values[:count] / self.temperature).softmax(0).cumsum(0)
        if self.top_p < 1:
            count = int((summed < self.top_p).sum()) + 1
            summed = summed[:count]
        return int(top.indices[_draw(summed, generator)])


def _number(x: object) -> bool:
    number = isinstance(x, (int, float)) and not isinstance(x, bool)
    return number and -_LARGEST < x < _LARGEST  # type: ignore[operator]


_NOT_NUMBERS = (
    "generate: the model's outputs must be numbers, got NaN or infinity. Did its training diverge?"
)


def _draw(summed: Tensor, generator: torch.Generator) -> int:
    """The place of a number drawn evenly up to the last of the sums."""
    point = torch.rand((), dtype=torch.float64, generator=generator) * summed[-1]
    return int(torch.searchsorted(summed, point, right=True).clamp(max=len(summed) - 1))


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
        nats = [torch.empty(0)]
        with self._all_or_nothing():
            for part in ids.split(self.chunk):
                first = self.last is None
                z = self._advance(part)
                if first and len(part):
                    nats.append(torch.tensor([math.log(self.vocabulary_size)]))
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
            raise NonFiniteError(_NOT_NUMBERS)
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


def generate(
    model: SequenceModel | TokenStream,
    prompt: TokenIds = (),
    max_new_tokens: int | None = None,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
) -> Iterator[int]:
    """Yield tokens as they are made, each drawn from what the model expects after all before.

    The prompt is read in parallel, in chunks, whatever its length; then each token is one step of
    constant time and memory.

    Args:
        model: a language model in evaluation mode; or a `TokenStream` that has read something,
            which then goes on: after the last token its state can be saved, or read on.
        prompt: token ids; may be empty where the stream has read something.
        max_new_tokens: when to stop; None never stops.
        temperature, top_k, top_p: see `Sampling`.
        seed: of the draws; None takes a different one each time.

    Raises:
        ArgumentError: an argument out of its range, a token outside the vocabulary (with its
            position), or nothing to begin with.
        NonFiniteError: the model's outputs are not numbers.

    Example:
        >>> model = SequenceModel(5, 5, d_model=4, n_layers=1, pool="none", encoder="tokens")
        >>> len(list(generate(model.eval(), [1, 2], 7, seed=0)))
        7
    """
    stream = model if isinstance(model, TokenStream) else TokenStream(model)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    _check_count(max_new_tokens)
    stream.read(prompt)
    if stream.last is None:
        stream.expected()  # says that there is nothing to begin with
    return _generate(stream, max_new_tokens, sampling, generator_of(seed))


def _generate(
    stream: TokenStream, count: int | None, sampling: Sampling, generator: torch.Generator
) -> Iterator[int]:
    for _ in itertools.count() if count is None else range(count):
        with stream._turn:
            logits, state = stream._expected()
            token = sampling.draw(logits, generator)
            stream.state, stream.last, stream.steps = state, token, stream.steps + 1
        yield token


def generate_batch(
    model: SequenceModel,
    prompts: Sequence[TokenIds],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
) -> Iterator[list[int]]:
    """Continue several prompts of any lengths together; yield a token of each at a time.

    Every prompt is read on its own, so none needs padding; then their states are one batch. Row
    ``i`` draws with ``seed + i``: it gets what `generate` gives its prompt alone with that seed, as
    long as rounding, which differs between batches, tips no draw.

    Args:
        model: a language model in evaluation mode, with a state of fixed size.
        prompts: token ids, at least one each.
        max_new_tokens: tokens to make of each.
        temperature, top_k, top_p: see `Sampling`.
        seed: of the first row's draws; None takes a different one each time.

    Raises:
        ArgumentError, NonFiniteError: as `generate`.

    Example:
        >>> model = SequenceModel(5, 5, d_model=4, n_layers=1, pool="none", encoder="tokens")
        >>> [len(row) for row in generate_batch(model.eval(), [[1], [2, 3]], 3, seed=0)]
        [2, 2, 2]
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    _check_count(max_new_tokens)
    check_kind("generate_batch", "max_new_tokens", max_new_tokens, int)
    check_streamable("generate_batch", model, growing=False)
    check_kind("generate_batch", "prompts", prompts, list, tuple)
    streams = []
    for prompt in prompts:
        stream = TokenStream(model)
        stream.read(prompt)
        stream.expected()
        streams.append(stream)
    first = generator_of(seed).initial_seed() % (1 << 62)
    return _generate_batch(model, streams, max_new_tokens, sampling, first)


@torch.no_grad()
def _generate_batch(
    model: SequenceModel, streams: list[TokenStream], count: int, sampling: Sampling, seed: int
) -> Iterator[list[int]]:
    if not streams:
        return
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(streams))]
    state = states.concat([stream.state for stream in streams])
    tokens = [stream.last or 0 for stream in streams]
    for _ in range(count):
        ids = torch.tensor(tokens, device=model.head.weight.device)
        logits, state = model.step(ids, state)
        if not all_finite([logits]):
            raise NonFiniteError(_NOT_NUMBERS)
        tokens = [sampling.draw(row, g) for row, g in zip(logits, generators, strict=True)]
        yield tokens


def generate_text(
    model: SequenceModel | TokenStream,
    tokenizer: Tokenizer,
    prompt: str = "",
    max_new_tokens: int | None = None,
    *,
    stop: Sequence[str] = (),
    **options: Any,
) -> Iterator[str]:
    """Yield text as it becomes certain: whole characters, and nothing that may begin a stop string.

    Args:
        model: as in `generate`.
        tokenizer: of the model.
        prompt: what to continue; it is not yielded.
        max_new_tokens: when to stop at the latest; None never.
        stop: end before the first of these strings that turns up in the new text.
        options: ``temperature``, ``top_k``, ``top_p`` and ``seed`` of `generate`.

    Raises:
        ArgumentError, NonFiniteError: as `generate`; an empty stop string; a tokenizer of another
            vocabulary.
        DataError: the prompt holds what the tokenizer does not know, and where.
    """
    stream = model if isinstance(model, TokenStream) else TokenStream(model)
    check_tokenizer(stream, tokenizer)
    check_kind("generate", "prompt", prompt, str)
    _check_stop(stop)
    ids = torch.from_numpy(tokenizer.encode(prompt, where="prompt").astype("int64"))
    tokens = generate(stream, ids, max_new_tokens, **options)
    return _until(_decode(tokens, tokenizer.stream()), stop)


def generate_texts(
    model: SequenceModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_new_tokens: int,
    *,
    stop: Sequence[str] = (),
    **options: Any,
) -> list[str]:
    """Continue several prompts together: what `generate_text` yields for each, as one string.

    Args:
        model, tokenizer, max_new_tokens, stop, options: as in `generate_text`; row ``i`` draws
            with ``seed + i``.
        prompts: what to continue.

    Raises:
        ArgumentError, NonFiniteError, DataError: as `generate_text`.
    """
    check_tokenizer(TokenStream(model), tokenizer)
    check_kind("generate", "prompts", prompts, list, tuple)
    for prompt in prompts:
        check_kind("generate", "every prompt", prompt, str)
    _check_stop(stop)
    ids = [torch.from_numpy(tokenizer.encode(p, where="prompt").astype("int64")) for p in prompts]
    rows: list[list[int]] = [[] for _ in prompts]
    for tokens in generate_batch(model, ids, max_new_tokens, **options):
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
    return ["".join(_until(_decode(iter(row), tokenizer.stream()), stop)) for row in rows]


def check_tokenizer(stream: TokenStream, tokenizer: Tokenizer) -> None:
    """Raise `ArgumentError` unless a tokenizer has the vocabulary of the model."""
    if not hasattr(tokenizer, "vocabulary_size"):
        raise ArgumentTypeError(
            f"generate: tokenizer must be one of linrnn.tokenizers, got {show(tokenizer)}."
        )
    if tokenizer.vocabulary_size != stream.vocabulary_size:
        raise ArgumentError(
            f"generate: the tokenizer must have the model's {stream.vocabulary_size} tokens, got "
            f"{tokenizer.vocabulary_size}. Take the tokenizer.json of the model's run."
        )


def _decode(tokens: Iterator[int], decoder: Stream) -> Iterator[str]:
    for token in tokens:
        yield decoder.feed(token)
    yield decoder.close()


class StopText:
    """A text that comes in pieces and ends before the first of some strings.

    What may begin one of them is held back until it is certain.

    Args:
        stop: the strings.

    Example:
        >>> text = StopText(["END"])
        >>> text.feed("an E"), text.feed("EN"), text.feed("D, and more"), text.ended
        ('an ', 'E', '', True)
    """

    def __init__(self, stop: Sequence[str]) -> None:
        _check_stop(stop)
        self._stop, self._held = stop, ""
        self.ended = False
        """Whether one of the strings has come."""

    def feed(self, piece: str) -> str:
        """The text that is certain now and was not before."""
        self._held += piece
        ends = [place for s in self._stop if (place := self._held.find(s)) >= 0]
        if ends:
            self.ended = True
            return self._release(min(ends))
        return self._release(
            len(self._held) - max((_overlap(self._held, s) for s in self._stop), default=0)
        )

    def close(self) -> str:
        """The text that was held back, where none of the strings has come."""
        return "" if self.ended else self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


def _until(pieces: Iterator[str], stop: Sequence[str]) -> Iterator[str]:
    """The text before the first stop string; what may begin one is held back."""
    text = StopText(stop)
    for piece in pieces:
        if certain := text.feed(piece):
            yield certain
        if text.ended:
            return
    if last := text.close():
        yield last


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)


def _check_stop(stop: Any) -> None:
    listed = isinstance(stop, (list, tuple))
    if not listed or not all(isinstance(text, str) and text for text in stop):
        raise ArgumentError(
            f"generate: stop must be a list of strings with text, got {show(stop)}."
        )


def _check_count(count: int | None) -> None:
    wrong = isinstance(count, bool) or not isinstance(count, int) or count < 0
    if count is not None and wrong:
        raise ArgumentError(
            f"generate: max_new_tokens must be an integer of at least 0, got {show(count)}."
        )


def generator_of(seed: int | None) -> torch.Generator:
    """A generator of random numbers, a different one each time where there is no seed."""
    if seed is not None:
        check_type("generate", "seed", int, seed)
        check_at_most("generate", _MOST_SEED, seed=abs(seed))
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
