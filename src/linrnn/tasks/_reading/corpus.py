"""Text files as one long array of token ids on disk, made once and read without loading it."""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from linrnn._files.door import make_folder, open_file, what_is
from linrnn._files.storage import exclusive, read_json, remove_leftovers, replaced, write_atomically
from linrnn.errors import DataError
from linrnn.tasks._reading.files import READ_ERRORS, folder_of, open_packed
from linrnn.tokenizers import Tokenizer

Documents = Literal["files", "blank-lines", "one"]

_FORMAT = 2
_CHUNK = 1 << 20
_BLANK = re.compile(rb"(?:\r?\n){2,}")


class Corpus(NamedTuple):
    """Tokens of some files, one after the other."""

    tokens: np.ndarray
    """(tokens,) unsigned integers, mapped from the disk."""
    starts: np.ndarray
    """(documents,) places of the first token of each, rising, the first one 0."""
    sha256: str
    """Hash of the files' contents."""


class Piece(NamedTuple):
    """A part of a file that can be encoded by itself."""

    text: bytes
    offset: int
    """Bytes before it in the file."""
    begins: bool
    """A document begins with it."""


def read_corpus(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    documents: Documents,
    sha256: str | None = None,
    *,
    strip: bool = False,
) -> Corpus:
    """The tokens of some files, from the disk where they were made before.

    They lie below ``LINRNN_DATA`` or else ``~/.cache/linrnn``, in the folder ``tokens``, under a
    name that follows from what they depend on: the contents of the files, the tokenizer, and what
    a document is. A file of other bytes than its header's checksum says is made anew.

    Args:
        paths: text files, packed as .gz or .xz or not.
        tokenizer: turns their text into ids.
        documents: what a document is: a file, a part between blank lines, or everything.
        sha256: that the files must have, if it is known.
        strip: whether blanks at both ends of each line are left out.

    Raises:
        DataError: a file is missing, damaged, another than expected, or holds what the tokenizer
            does not know; they hold no text at all; or the disk cannot be written.
    """
    contents = hash_files(paths)
    if sha256 not in (None, contents):
        raise DataError(
            f"{', '.join(map(str, paths))}: the text must be the one the run was trained on, "
            f"SHA-256 {sha256:.12}, got {contents:.12}. Restore the files."
        )
    key = [_FORMAT, contents, tokenizer.to_json(), documents, *(["strip"] if strip else [])]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    base = folder_of("tokens") / name
    corpus = _open(base, tokenizer, contents)
    if corpus is None:
        try:
            with _alone(base):
                corpus = _open(base, tokenizer, contents, waited=True)
                if corpus is None:
                    _make(base, paths, tokenizer, documents, strip)
        except OSError as error:
            raise DataError(
                f"{base.parent}: the folder must be one tokens can be written to, got: {error}. "
                "Set LINRNN_DATA to another folder."
            ) from error
        corpus = corpus or _open(base, tokenizer, contents)
        assert corpus is not None
    return corpus


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """Inside, no other process makes the tokens; what one that was killed left is removed."""
    make_folder(base.parent)
    with exclusive(base.with_name(f".{base.name}.lock"), wait=True):
        for suffix in (".bin", ".starts", ".json"):
            remove_leftovers(base.with_suffix(suffix))
        yield


def hash_files(paths: Sequence[Path]) -> str:
    """SHA-256 of the contents of all files, and of where one ends and the next begins."""
    digest = hashlib.sha256()
    for path in paths:
        file_digest = hashlib.sha256()
        for chunk in _chunks(path):
            file_digest.update(chunk)
        digest.update(file_digest.digest())
    return digest.hexdigest()


def pieces(path: Path, documents: Documents = "files") -> Iterator[Piece]:
    """A file in parts of about a megabyte that end with a line, or where a document does.

    Only where no line ends within a part is it cut between two characters.

    Raises:
        DataError: the file is missing or damaged.
    """
    buffer, offset, begins = b"", 0, documents != "one"
    for chunk in chain(_chunks(path), [b""]):  # the empty one says that nothing follows
        buffer, done = buffer + chunk, 0
        for end in _ends(buffer, final=not chunk) if documents == "blank-lines" else ():
            yield Piece(buffer[done:end], offset + done, begins)
            begins, done = True, end
        left = len(buffer) - done
        if left and (not chunk or left >= _CHUNK):
            end = _cut(buffer) if chunk else len(buffer)
            if end > done:
                yield Piece(buffer[done:end], offset + done, begins)
                begins, done = False, end
        buffer, offset = buffer[done:], offset + done


def stripped(text: bytes) -> bytes:
    r"""Whole lines without the blanks at both ends of each.

    Example:
        >>> stripped(b" a b \n c\n")
        b'a b\nc\n'
    """
    return b"\n".join(line.strip(b" \t\r") for line in text.split(b"\n"))


def _ends(text: bytes, final: bool) -> Iterator[int]:
    """Where documents end: after blank lines, unless more of those may follow."""
    for match in _BLANK.finditer(text):
        if final or match.end() < len(text):
            yield match.end()


def _cut(text: bytes) -> int:
    """A place to cut at, not in a run of line ends: after a line, or else a character; or 0."""
    text = text.rstrip(b"\r\n")
    line = text.rfind(b"\n") + 1
    if line:
        return line
    for end in range(len(text) - 1, max(0, len(text) - 5), -1):
        if text[end] & 0xC0 != 0x80:  # not inside a character of UTF-8
            return end
    return 0


def _chunks(path: Path) -> Iterator[bytes]:
    """The content of a file.

    Raises:
        DataError: it is missing, empty or damaged.
    """
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    has_text = False
    try:
        with open_packed(path) as file:
            while chunk := file.read(_CHUNK):
                has_text = True
                yield chunk
    except READ_ERRORS as error:
        raise DataError(f"{path}: the file must be readable, got: {error}. Get it anew.") from error
    if not has_text:
        raise DataError(f"{path}: the file must hold text, got an empty file.")


def _make(
    base: Path, paths: Sequence[Path], tokenizer: Tokenizer, documents: Documents, strip: bool
) -> None:
    """Encode the files; the header comes last, so that what has one is complete."""
    count, starts, digest = 0, [0], hashlib.sha256()
    with replaced(base.with_suffix(".bin")) as file:
        for path in paths:
            for text, offset, begins in pieces(path, documents):
                text = stripped(text) if strip else text
                ids = tokenizer.encode(text, where=str(path), offset=offset)
                if begins and count > starts[-1]:
                    starts.append(count)
                stored = ids.astype(tokenizer.dtype, copy=False).tobytes()
                digest.update(stored)
                file.write(stored)
                count += len(ids)
    if not count:
        raise DataError(f"{paths[0]}: the data must hold a token, got none.")
    first = np.array(starts, "<i8").tobytes()
    write_atomically(base.with_suffix(".starts"), first)
    digest.update(first)
    header = {"dtype": tokenizer.dtype.name, "tokens": count, "documents": len(starts)}
    header["sha256"] = digest.hexdigest()
    write_atomically(base.with_suffix(".json"), json.dumps(header).encode())


def _open(base: Path, tokenizer: Tokenizer, sha256: str, *, waited: bool = False) -> Corpus | None:
    """Open the tokens made before; None if they are missing, or not what their header says.

    ``waited``: it was looked at before, and what is wrong was said then.
    """
    try:
        header = read_json(base.with_suffix(".json"), inside=base.parent)
        with open_file(base.with_suffix(".bin"), inside=base.parent) as file:
            tokens = np.memmap(file, tokenizer.dtype, "r")
        with open_file(base.with_suffix(".starts"), inside=base.parent) as file:
            starts = np.fromfile(file, "<i8")
    except (OSError, ValueError):
        return None
    measured = {"dtype": tokenizer.dtype.name, "tokens": len(tokens), "documents": len(starts)}
    digest = hashlib.sha256(tokens.data)
    digest.update(starts.data)
    if header == measured | {"sha256": digest.hexdigest()}:
        return Corpus(tokens, starts, sha256)
    if not waited:
        logging.getLogger(__name__).warning("%s is damaged; its tokens are made again", base)
    return None
