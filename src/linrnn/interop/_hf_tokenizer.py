"""Our tokenizers as fast tokenizers of transformers, which read them without linrnn."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from linrnn.errors import ArgumentError
from linrnn.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
    WordTokenizer,
)

PADDING = "<|padding|>"
"""Text of the token whose id is one beyond the vocabulary."""


def to_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same tokenizer, the same ids, in the form that ``save_pretrained`` writes.

    Its padding token is one beyond the vocabulary, which `LinrnnForCausalLM` knows as padding; it
    is the end-of-text token as well, which a model of ours never predicts, since some programs
    cannot do without one. Batches are padded on the left. The text of a byte or character may be
    anything but that of the padding token.

    Args:
        tokenizer: of `linrnn.tokenizers`.

    Raises:
        ArgumentError: a tokenizer of another kind.

    Example:
        >>> from linrnn.tokenizers import ByteTokenizer
        >>> to_tokenizer(ByteTokenizer())("hé")["input_ids"]
        [104, 195, 169]
    """
    inner = _inner(tokenizer)
    inner.add_special_tokens([library.AddedToken(PADDING, special=True, normalized=False)])
    special: dict[str, Any] = {}
    if inner.token_to_id(PADDING) == tokenizer.vocabulary_size:
        special = {"pad_token": PADDING, "eos_token": PADDING}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **special,
    )


def _inner(tokenizer: Tokenizer) -> library.Tokenizer:
    if isinstance(tokenizer, LibraryTokenizer):
        return library.Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_json())["tokenizer"]))
    if isinstance(tokenizer, ByteTokenizer):
        inner = library.Tokenizer(models.BPE(vocab=_byte_letters(), merges=[]))
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.pre_tokenizer, inner.decoder = split, decoders.ByteLevel()
        return inner
    if isinstance(tokenizer, CharTokenizer):
        vocabulary = {tokenizer.decode([i]): i for i in range(tokenizer.vocabulary_size)}
        inner = library.Tokenizer(_word_level(vocabulary))
        inner.pre_tokenizer = pre_tokenizers.Split(library.Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        return inner
    if isinstance(tokenizer, WordTokenizer):
        return _of_words(json.loads(tokenizer.to_json())["words"])
    raise ArgumentError(
        f"to_tokenizer: tokenizer must be one of linrnn.tokenizers, got {type(tokenizer).__name__}."
    )


def _of_words(words: Sequence[str]) -> library.Tokenizer:
    """Words between blanks; the end of a line is a word too."""
    end, unknown = WordTokenizer.end_of_line, WordTokenizer.unknown
    vocabulary = {word: i for i, word in enumerate(words)}
    unk_token = unknown if unknown in vocabulary else PADDING
    inner = library.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=unk_token))
    inner.normalizer = normalizers.Replace("\n", f" {end} ")
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace(library.Regex("^"), " "),
            decoders.Replace(library.Regex(f"^ {end}$"), " \n"),
            decoders.Fuse(),
        ]
    )
    return inner


def _word_level(vocabulary: Mapping[str, int]) -> models.WordLevel:
    # a character outside the vocabulary is an error of the library: there is no unknown token
    return models.WordLevel(vocab=dict(vocabulary), unk_token=PADDING)


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level vocabularies, to the byte.

    A byte whose Latin-1 character can be seen is that character; the others, in order, are the
    code points from 256 on, as in GPT-2 (Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return {letters[byte]: byte for byte in range(256)}
