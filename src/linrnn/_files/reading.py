"""The one place where what goes wrong in reading a file becomes an error that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linrnn.errors import ArgumentError, LinrnnError, UnknownNameError, check_kind, show

_LONGEST = 300  # characters of a reason


def as_path(where: str, path: Any) -> Path:
    """The path of a caller.

    Raises:
        ArgumentTypeError: it is neither a text nor a `Path`.
    """
    check_kind(where, "path", path, str, Path)
    return Path(path)


@contextmanager
def reading(
    path: Path | str,
    error: type[LinrnnError],
    must: str,
    fix: str = "",
    *,
    got: str = "got: {}",
) -> Iterator[None]:
    """Inside, a file from anywhere is taken apart: whatever that raises is about the file.

    Args:
        path: the file, or whatever else the content came from.
        error: what is raised.
        must: what the file has to be or to hold, such as "be complete JSON".
        fix: the usual remedy, one sentence.
        got: how what was raised is put.

    Raises:
        LinrnnError: of the class ``error``, from what was raised; an error of ours as it is, unless
            it is about a value and knows nothing of the file.
    """
    try:
        yield
    except BaseException as reason:
        if not _is_about_content(reason):
            raise
        text = f"{path}: the file must {must}, {got.format(why(reason))}."
        raise error(f"{text} {fix}".rstrip()) from reason


def _is_about_content(reason: BaseException) -> bool:
    if isinstance(reason, LinrnnError):
        return isinstance(reason, (ArgumentError, UnknownNameError))
    # a library in Rust that gives up raises no `Exception`
    return isinstance(reason, Exception) or type(reason).__name__ == "PanicException"


def why(reason: BaseException) -> str:
    """The text of an error, on one line and not longer than a message may be.

    Example:
        >>> why(FileNotFoundError(2, "No such file")), why(KeyError("x"))
        ('No such file', "KeyError('x')")
    """
    text = str(getattr(reason, "strerror", None) or reason)
    if not text or isinstance(reason, LookupError):
        text = show(reason)
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
