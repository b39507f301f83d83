"""Language models that read and write: generation, and how much a text surprises a model.

The state has a fixed size, so a text may be as long as one likes, longer than anything the model
was trained on, and every token costs the same.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from linrnn import state as states
from linrnn._options.call import checked
from linrnn.backbone import SequenceModel
from linrnn.compute.finite import all_finite
from linrnn.errors import ArgumentError, ArgumentTypeError, NonFiniteError, check_kind, show
from linrnn.generation._sampling import NOT_NUMBERS, Sampling, as_plain, generator_of
from linrnn.generation._stops import StopText, check_stop, until
from linrnn.generation._stream import TokenIds, TokenStream
from linrnn.streaming import check_streamable
from linrnn.tokenizers import Stream, Tokenizer

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


def __dir__() -> list[str]:
    return sorted(__all__)


@checked
def generate(
    model: SequenceModel | TokenStream,
    prompt: TokenIds = (),
    max_new_tokens: int | None = None,
    *,
    stop: TokenIds = (),
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
        max_new_tokens: when to stop at the latest; None never.
        stop: end before the first of these tokens, such as the end of a text. A `TokenStream` has
            read it then.
        temperature, top_k, top_p: see `Sampling`.
        seed: of the draws; None takes a different one each time.

    Raises:
        ArgumentError: an argument out of its range, a token outside the vocabulary (with its
            position), or nothing to begin with.
        ArgumentTypeError: the prompt is a text: `generate_text` takes one.
        NonFiniteError: the model's outputs are not numbers.

    Example:
        >>> model = SequenceModel(5, 5, d_model=4, n_layers=1, pool="none", encoder="tokens")
        >>> len(list(generate(model.eval(), [1, 2], 7, seed=0)))
        7
    """
    stream = model if isinstance(model, TokenStream) else TokenStream(model)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    count = _checked_count(max_new_tokens)
    ends = _stop_tokens(stop, stream.vocabulary_size)
    _check_prompt("generate", "prompt", prompt)
    stream.read(prompt)
    if stream.last is None:
        stream.expected()  # says that there is nothing to begin with
    return _generate(stream, count, ends, sampling, generator_of(seed))


def _generate(
    stream: TokenStream,
    count: int | None,
    ends: frozenset[int],
    sampling: Sampling,
    generator: torch.Generator,
) -> Iterator[int]:
    for _ in itertools.count() if count is None else range(count):
        token = stream.draw(sampling, generator)
        if token in ends:
            return
        yield token


@checked
def generate_batch(
    model: SequenceModel,
    prompts: Sequence[TokenIds],
    max_new_tokens: int,
    *,
    stop: TokenIds = (),
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
) -> Iterator[list[int | None]]:
    """Continue several prompts of any lengths together; yield a token of each at a time.

    Every prompt is read on its own, so none needs padding; then their states are one batch. Row
    ``i`` draws with ``seed + i``: it gets what `generate` gives its prompt alone with that seed, as
    long as rounding, which differs between batches, tips no draw.

    Args:
        model: a language model in evaluation mode, with a state of fixed size.
        prompts: token ids, at least one each.
        max_new_tokens: tokens to make of each, at most.
        stop: a row ends before the first of these tokens; from then on it yields None. When all
            rows have ended, nothing more is yielded.
        temperature, top_k, top_p: see `Sampling`.
        seed: of the first row's draws; None takes a different one each time.

    Raises:
        ArgumentError, ArgumentTypeError, NonFiniteError: as `generate`.

    Example:
        >>> model = SequenceModel(5, 5, d_model=4, n_layers=1, pool="none", encoder="tokens")
        >>> [len(row) for row in generate_batch(model.eval(), [[1], [2, 3]], 3, seed=0)]
        [2, 2, 2]
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    count = _checked_count(max_new_tokens)
    check_kind("generate_batch", "max_new_tokens", count, int)
    assert count is not None
    check_streamable("generate_batch", model, growing=False)
    check_kind("generate_batch", "prompts", prompts, list, tuple)
    ends = _stop_tokens(stop, TokenStream(model).vocabulary_size)
    streams = []
    for i, prompt in enumerate(prompts):
        _check_prompt("generate_batch", f"prompts[{i}]", prompt)
        stream = TokenStream(model)
        stream.read(prompt)
        if stream.last is None:
            raise ArgumentError(
                f"generate_batch: prompts[{i}] must hold a token, got none. Begin with a newline."
            )
        stream.expected()
        streams.append(stream)
    first = generator_of(seed).initial_seed() % (1 << 62)
    return _generate_batch(model, streams, count, ends, sampling, first)


@torch.no_grad()
def _generate_batch(
    model: SequenceModel,
    streams: list[TokenStream],
    count: int,
    ends: frozenset[int],
    sampling: Sampling,
    seed: int,
) -> Iterator[list[int | None]]:
    if not streams:
        return
    running = [True] * len(streams)
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(streams))]
    state = states.concat([stream.state for stream in streams])
    tokens = [stream.last or 0 for stream in streams]
    for _ in range(count):
        ids = torch.tensor(tokens, device=model.head.weight.device)
        logits, state = model.step(ids, state)
        if not all_finite([logits]):
            raise NonFiniteError(NOT_NUMBERS)
        tokens = [sampling.draw(row, g) for row, g in zip(logits, generators, strict=True)]
        running = [on and token not in ends for on, token in zip(running, tokens, strict=True)]
        if not any(running):
            return
        yield [token if on else None for on, token in zip(running, tokens, strict=True)]


@checked
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
    check_stop(stop)
    ids = torch.from_numpy(tokenizer.encode(prompt, where="prompt").astype("int64"))
    tokens = generate(stream, ids, max_new_tokens, **options)
    return until(_decode(tokens, tokenizer.stream()), stop)


@checked
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
    check_stop(stop)
    ids = [torch.from_numpy(tokenizer.encode(p, where="prompt").astype("int64")) for p in prompts]
    rows: list[list[int]] = [[] for _ in prompts]
    for tokens in generate_batch(model, ids, max_new_tokens, **options):
        for row, token in zip(rows, tokens, strict=True):
            if token is not None:
                row.append(token)
    return ["".join(until(_decode(iter(row), tokenizer.stream()), stop)) for row in rows]


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


def _check_prompt(where: str, argument: str, prompt: Any) -> None:
    if isinstance(prompt, (str, bytes)):
        raise ArgumentTypeError(
            f"{where}: {argument} must be token ids, got the text {show(prompt)}. "
            "generate_text and generate_texts take texts and a tokenizer."
        )


def _stop_tokens(stop: Any, vocabulary: int) -> frozenset[int]:
    """Token ids that end a text, checked."""
    ids = stop.tolist() if isinstance(stop, (torch.Tensor, np.ndarray)) else stop
    listed = isinstance(ids, (list, tuple, set, frozenset))
    ids = [as_plain(i) for i in ids] if listed else ids
    # True is an int, of the value 1: a mask is no list of tokens
    ints = listed and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    if not ints or not all(0 <= i < vocabulary for i in ids):
        raise ArgumentError(
            f"generate: stop must be a list of token ids from 0 to {vocabulary - 1}, got "
            f"{show(stop)}."
        )
    return frozenset(ids)


def _checked_count(count: int | None) -> int | None:
    count = as_plain(count)
    wrong = isinstance(count, bool) or not isinstance(count, int) or count < 0
    if count is not None and wrong:
        raise ArgumentError(
            f"generate: max_new_tokens must be an integer of at least 0, got {show(count)}."
        )
    return count
