"""Every error linrnn raises on purpose, and the helpers that word it.

The template is ``<where>: <what> must <rule>, got <value>. <the usual fix>.``
All of them derive from `LinrnnError`, so a program can catch the library's own complaints, and
from the builtin a Python user would expect (`ValueError`, `TypeError`, ...).
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "DriftWarning",
    "InterruptedRunError",
    "LinrnnError",
    "MissingExtraError",
    "NonFiniteError",
    "ProcessError",
    "RunFolderError",
    "ShapeError",
    "StorageError",
    "UnknownArgumentError",
    "UnknownNameError",
    "UntrustedError",
    "check_at_most",
    "check_few",
    "check_in",
    "check_kind",
    "check_not_negative",
    "check_positive",
    "check_positive_int",
    "check_probability",
    "check_shape",
    "how_to_install",
    "nearest",
    "no_attribute",
    "printable",
    "show",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class LinrnnError(Exception):
    """Base of all errors this library raises on purpose; its text is fit to show to a user.

    It repeats what users, files and paths said, so what a terminal would obey is written out.
    """

    #: Exit status of the command line: 1 the run failed, 2 the command was wrong.
    exit_code = 1
    #: Name of the stream at fault, where `linrnn.streaming.Sessions` were fed; else None.
    stream: Any = None

    def __str__(self) -> str:
        return printable(super().__str__())


class ArgumentError(LinrnnError, ValueError):
    """An argument has a value outside what the callee accepts."""

    exit_code = 2


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of another type than the callee accepts."""


class ShapeError(ArgumentError, RuntimeError):
    """A tensor has the wrong shape; PyTorch raises RuntimeError for that."""

    exit_code = 1


class DTypeError(LinrnnError, TypeError, ValueError):
    """A tensor has the wrong dtype, or something that is not a tensor came in its place.

    PyTorch's recurrent layers raise ValueError for the first.
    """


class DeviceError(ArgumentError, RuntimeError):
    """Tensors that must share a device do not; PyTorch raises RuntimeError for that."""


class BackendError(LinrnnError, RuntimeError):
    """The requested backend cannot compute this call."""


class UnknownNameError(LinrnnError, ValueError):
    """No such mixer, task, recipe, backend or option; suggests the nearest known name."""

    exit_code = 2

    def __init__(self, kind: str, name: object, known: Iterable[str], fix: str = "") -> None:
        known = sorted(set(known))
        near = nearest(name, known)
        hint = "" if near is None else f" Did you mean {near!r}?"
        text = f"no {kind} named {show(name, 300)}.{hint} {_listing(kind, known)}"
        super().__init__(f"{text} {fix}".rstrip())


class UnknownArgumentError(UnknownNameError, TypeError):
    """No such keyword argument; Python raises TypeError for that."""


_SAME = (
    ("d_model", "hidden_size", "hidden_dim", "embed_dim", "embedding_dim", "dim", "n_embd"),
    ("n_layers", "num_layers", "num_hidden_layers", "depth", "nlayers"),
    ("d_input", "input_size", "input_dim", "in_features", "in_channels", "vocab_size"),
    ("d_output", "output_size", "output_dim", "out_features", "num_classes", "n_classes"),
    ("n_heads", "num_heads", "nhead"),
    ("d_state", "state_size", "state_dim", "ssm_size"),
    ("block", "activation"),
    ("epochs", "max_epochs", "num_epochs", "n_epochs"),
    ("lr", "learning_rate"),
    ("optim", "optimizer", "optimiser", "lr", "learning_rate"),
    ("seed", "random_state"),
    ("out", "output_dir", "save_dir", "checkpoint_dir"),
    ("val_loader", "valid_loader", "validation_loader"),
    ("max_new_tokens", "max_tokens", "max_length", "length"),
    ("prompt", "input_ids"),
    ("mean", "avg", "average"),
    ("tokens", "embedding"),
    ("cross_entropy", "ce", "nll"),
    ("mae", "l1"),
    ("mse", "l2"),
)  #: names of one thing, here and in PyTorch, transformers, scikit-learn and Lightning


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, or None.

    In this order: another library's word for the same thing, a slip of spelling, an abbreviation.
    None itself stands for the name ``none``.

    Example:
        >>> nearest("num_layers", ["d_model", "n_layers"]), nearest("acc", ["accuracy", "mse"])
        ('n_layers', 'accuracy')
    """
    spelt = {one.lower().replace("-", "_"): one for one in known}
    if name is None:
        return spelt.get("none")
    spelling = name[:60].lower().replace("-", "_") if isinstance(name, str) else ""
    prefix, dot, word = spelling.rpartition(".")
    for group in _SAME:
        if word in group:
            for other in group:
                if other != word and prefix + dot + other in spelt:
                    return spelt[prefix + dot + other]
    close = difflib.get_close_matches(spelling, spelt, n=1)
    close += [one for one in spelt if len(spelling) > 2 and one.startswith(spelling)]
    return spelt[close[0]] if close else None


_SHORT = 40  # names that a line of an error may hold
_LISTED = ("mixer", "task", "learner", "recipe", "reproduction")


def _listing(kind: str, names: list[str]) -> str:
    """All names, or where to see them if they are many."""
    if len(names) <= _SHORT:
        return f"Known: {', '.join(names) if names else 'none'}."
    if kind.split(",")[0] in _LISTED:
        which = f" {kind}s" if kind in _LISTED else ""
        return f"`linrnn list{which}` prints all {len(names)}."
    return f"Known: {', '.join(names[:_SHORT])} and {len(names) - _SHORT} more."


def no_attribute(module: str, name: str, places: Mapping[str, str]) -> AttributeError:
    """The error of a module without an attribute, which says where something of that name is.

    Args:
        module: its name.
        name: of the attribute. Names that begin with an underscore have no suggestion: programs,
            and not people, look for them.
        places: how to write each thing that may be meant, by name.

    Example:
        >>> no_attribute("linrnn", "lru", {"LRU": "linrnn.mixers.LRU"})
        AttributeError("module 'linrnn' has no attribute 'lru'. Did you mean linrnn.mixers.LRU?")
    """
    near = None if name.startswith("_") else nearest(name, places)
    hint = "" if near is None else f". Did you mean {places[near]}?"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


class MissingExtraError(LinrnnError, ImportError):
    """An optional dependency is needed now and is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed. "
            f"Install it, {how_to_install(extra)}"
        )


def how_to_install(extra: str) -> str:
    """The commands that install an extra: no index has this package yet.

    Example:
        >>> how_to_install("hf").partition(";")[0]
        "in a clone: pip install -c constraints.txt '.[hf]'"
    """
    return (
        f"in a clone: pip install -c constraints.txt '.[{extra}]'; "
        f"once published: pip install 'linrnn[{extra}]'"
    )


class DataError(LinrnnError, ValueError):
    """A data file or the numbers in it cannot be used."""


class RunFolderError(LinrnnError, RuntimeError):
    """A run folder, or a file in it, is missing, damaged, in use or from another version."""


class UntrustedError(LinrnnError, RuntimeError):
    """A file names code to import, and nobody said that it may be run."""


class StorageError(LinrnnError, OSError):
    """A file cannot be written: the disk is full, the folder read-only, ..."""


class NonFiniteError(LinrnnError, ArithmeticError):
    """NaN or infinity turned up where training cannot go on."""


class InterruptedRunError(LinrnnError):
    """Training was asked to stop, wrote a checkpoint and stopped; it can be continued."""

    exit_code = 130  # what shells report for a program ended by Ctrl-C


class DriftWarning(UserWarning):
    """Errors of a model in use have become larger than those it was calibrated with."""


class ProcessError(LinrnnError, RuntimeError):
    """One of the processes that train together ended before the others."""


def check_shape(
    where: str, what: str, got: Sequence[int], expected: Mapping[str, int | None], fix: str = ""
) -> None:
    """Raise `ShapeError` unless ``got`` matches ``expected``.

    Args:
        where: the function or class that checks, for the message.
        what: the argument's name.
        got: the shape that came.
        expected: axis name to size, in order; ``None`` accepts any size.
        fix: the usual remedy, one sentence.
    """
    sizes = tuple(expected.values())
    if tuple(got) == sizes:  # at once, where every size is known: an op makes six such checks
        return
    fits = len(got) == len(sizes) and all(
        [s is None or s == g for s, g in zip(sizes, got, strict=True)]
    )
    if not fits:
        axes = ", ".join(n if s is None else f"{n}={s}" for n, s in expected.items())
        raise ShapeError(
            f"{where}: {what} must have shape ({axes}), got {tuple(got)}.{' ' + fix if fix else ''}"
        )


def check_positive_int(where: str, **values: Any) -> None:
    """Raise `ArgumentError` unless every keyword's value is an integer of at least 1.

    One of another type is an `ArgumentTypeError`.
    """
    for name, value in values.items():
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not 1 <= value < 2**63:
            kind = ArgumentError if is_integer else ArgumentTypeError
            raise kind(
                f"{where}: {name} must be an integer of at least 1, got {_foreign(name, value)}"
            )


def check_few(where: str, most: int, **values: Any) -> None:
    """Raise `ArgumentError` unless every keyword's value is an integer from 1 to ``most``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ArgumentError(
                f"{where}: {name} must be an integer from 1 to {most}, got {_foreign(name, value)}"
            )


def check_positive(where: str, **values: Any) -> None:
    """Raise `ArgumentError` unless every keyword's value is a positive, finite number."""
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and 0 < value < float("inf")):
            raise ArgumentError(
                f"{where}: {name} must be positive and finite, got {_foreign(name, value)}"
            )


def check_not_negative(where: str, **values: Any) -> None:
    """Raise `ArgumentError` unless every keyword's value is a finite number of at least 0."""
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and 0 <= value < float("inf")):
            raise ArgumentError(
                f"{where}: {name} must be at least 0 and finite, got {_foreign(name, value)}"
            )


def check_probability(where: str, *, one: bool = True, **values: Any) -> None:
    """Raise `ArgumentError` unless every keyword's value is a number from 0 to 1.

    One that is no number is an `ArgumentTypeError`.

    Args:
        where: the function or class that checks, for the message.
        one: whether 1 is allowed.
        values: the numbers by name.
    """
    for name, value in values.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1 or (value == 1 and not one):
            kind = ArgumentError if number else ArgumentTypeError
            rule = f"in [0, 1{']' if one else ')'}"
            raise kind(f"{where}: {name} must be {rule}, got {show(value)}.")


def _foreign(name: str, value: object) -> str:
    """The value in words, with a conversion to pass instead of a number of NumPy's types.

    Layers do not take such numbers: PyTorch refuses some of them later, and files cannot hold them.
    """
    if isinstance(value, (bool, int, float)) or not isinstance(value, Real):
        return f"{show(value)}."
    kind = "int" if isinstance(value, Integral) else "float"
    return f"{show(value)}. Pass {kind}({name})."


def check_kind(where: str, what: str, value: object, *kinds: type) -> None:
    """Raise `ArgumentTypeError` unless a value is of one of some types."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ArgumentTypeError(f"{where}: {what} must be a {names}, got {show(value)}.")


def check_at_most(where: str, most: int, **values: int) -> None:
    """Raise `ArgumentError` unless every keyword's value is at most ``most``."""
    for name, value in values.items():
        if value > most:
            raise ArgumentError(f"{where}: {name} must be at most {most:,}, got {show(value)}.")


def check_in(where: str, what: str, value: object, known: Iterable[str]) -> None:
    """Raise `UnknownNameError` unless ``value`` is one of ``known``."""
    known = list(known)
    # an array that is compared with a text gives no truth value
    if not isinstance(value, str) or value not in known:
        raise UnknownNameError(f"{where} {what}", value, known)


#: Characters that a terminal obeys and does not show: control characters, ends of lines included,
#: changes of the writing direction, and surrogates, as of file names that are not valid text.
_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    r"""A text in which what a terminal would obey is written out, as Python writes it.

    Args:
        text: of anybody.
        keep: characters that stay: of a text of several lines ``"\n\t"``.

    Example:
        >>> printable("red: \x1b[31m")
        'red: \\x1b[31m'
    """

    def escaped(match: re.Match[str]) -> str:
        character = match.group()
        return character if character in keep else character.encode("unicode_escape").decode()

    return _OBEYED.sub(escaped, text)


def show(value: object, limit: int = 80) -> str:
    """A value as it is written in Python, not longer than a message may be.

    Example:
        >>> show("a" * 100, 10)
        "'aaaaaa..."
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."
