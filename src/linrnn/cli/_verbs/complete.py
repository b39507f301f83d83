"""Completions of a command line for a shell; PyTorch is not imported."""

import importlib
import re
from collections.abc import Callable, Iterable, Sequence

from linrnn import learn, mixers, recipes, reproductions, tasks
from linrnn._options.catalogue import entries
from linrnn.cli import verbs
from linrnn.cli._line.entries import CATALOGUES, package_of, properties, scales_of
from linrnn.cli._line.names import UNTUNED, canonical
from linrnn.cli._line.options import peek
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.train_options import recipe_says, train_options
from linrnn.cli._line.values import choices
from linrnn.errors import LinrnnError

FILES, FOLDERS = ":files", ":folders"
"""Said alone: the shell knows these better."""

_RUNS = ("train", "compare", "sweep")
"""Verbs that take the options of a run."""
_LAST = re.compile(r"(.*[,+*])?(.*)", re.DOTALL)


def complete(words: Sequence[str]) -> list[str]:
    """The words that the last one may become.

    Args:
        words: what follows ``linrnn``, the last of them unfinished and perhaps empty. Shells that
            take ``=`` for the end of a word may give it as one.

    Returns:
        Whole words, or `FILES` or `FOLDERS` alone.

    Example:
        >>> complete(["ex"]), complete(["list", "ta"])
        (['export'], ['tasks'])
    """
    *previous, last = [word for word in words[:-1] if word != "="] + [*words[-1:]] or [""]
    last = "" if last == "=" else last
    while previous and previous[0].startswith("-"):
        previous = previous[1:]
    if not previous:
        return _beginning(last, ["-h", "-q", "-v", "--version", *verbs()])
    verb = previous[0].lower()
    if verb not in verbs():
        return []
    flag, sign, value = last.partition("=")
    if sign and flag.startswith("-"):
        completions = _values(verb, [*previous[1:], flag], value)
        return (
            completions
            if completions[:1] in ([FILES], [FOLDERS])
            else [f"{flag}={one}" for one in completions]
        )
    return _values(verb, previous[1:], last)


def _values(verb: str, previous: list[str], last: str) -> list[str]:
    parser: Parser = importlib.import_module(f"linrnn.cli.{verb}").parser()
    place, flags = _place(parser, previous), _flags(verb, parser, previous)
    if last.startswith("-"):
        return _beginning(last, flags)
    if previous and previous[-1].startswith("-"):
        kind = _kind_of_flag(verb, parser, previous)
        if kind is not None:
            return _of_kind(kind, previous, last)
    arguments = [one for one in parser._get_positional_actions() if one.dest in parser.kinds]
    if not arguments:
        return _beginning(last, flags)
    many = arguments[-1].nargs == "+"
    if place >= len(arguments) and not many:
        return _beginning(last, flags)
    action = arguments[min(place, len(arguments) - 1)]
    return _of_kind(parser.kinds[action.dest], previous, last) or _beginning(last, flags)


def _place(parser: Parser, previous: Sequence[str]) -> int:
    """How many arguments are there that are neither options nor their values."""
    actions, count, value = parser._option_string_actions, 0, False
    for word in previous:
        if word.startswith("-"):
            action = actions.get(word)
            # of an option of a run, which the parser does not know, it is taken to have a value
            value = "=" not in word and (action is None or action.nargs != 0)
            continue
        count, value = count + (not value), False
    return count


def _flags(verb: str, parser: Parser, previous: Sequence[str]) -> list[str]:
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    task = _task(verb, parser, previous)
    if task is not None:
        flags += train_options(*_chosen(task, previous)).flags
        if verb != "train":
            flags = [flag for flag in flags if flag not in ("--mixer",)]
    return sorted(set(flags))


def _task(verb: str, parser: Parser, previous: Sequence[str]) -> str | None:
    if verb not in _RUNS or not previous or "--resume" in previous:
        return None
    named = [word.lower().replace("-", "_") for word in previous if not word.startswith("-")]
    return next((name for name in named[:1] if name in tasks.names()), None)


def _chosen(task: str, previous: Sequence[str]) -> tuple[str, str | None, str | None]:
    """Task, mixer and learner of the options so far."""
    recipe: str | None = peek(previous, "--recipe") or task
    if recipe not in recipes.names():
        recipe = None
    scale = peek(previous, "--scale") or (recipes.default_scale(recipe) if recipe else None)
    choices = [
        peek(previous, f"--{what}") or recipe_says(recipe, scale, what, otherwise)
        for what, otherwise in (("mixer", "lru"), ("learner", "bptt"))
    ]
    return task, choices[0], choices[1]


def _kind_of_flag(verb: str, parser: Parser, previous: list[str]) -> str | list[str] | None:
    """The kind of value that the option before the cursor takes, or its choices; None: none."""
    flag = previous[-1]
    action = parser._option_string_actions.get(flag)
    if action is not None:
        if action.nargs == 0:
            return None
        return list(action.choices) if action.choices else parser.kinds.get(action.dest, "")
    task = _task(verb, parser, previous)
    declared = train_options(*_chosen(task, previous)).flags.get(flag) if task else None
    if declared is None:
        return ""
    if declared.annotation == "bool":
        return None
    return choices(declared) or ("file" if "Path" in declared.annotation else "")


def _of_kind(kind: str | list[str], previous: Sequence[str], last: str) -> list[str]:
    if isinstance(kind, list):
        return _beginning(last, kind)
    if kind in ("file", "out"):
        return [FILES]
    if kind == "folder":
        return [FOLDERS]
    if kind in ("mixer", "mixers", "learners"):
        match = _LAST.fullmatch(last)
        assert match
        names = learn.names() if kind == "learners" else mixers.names()
        return [f"{match[1] or ''}{name}" for name in _beginning(match[2], names)]
    if kind == "scale":
        recipe = peek(previous, "--recipe") or next(iter(previous), "")
        return _beginning(last, [UNTUNED, *_scales(recipe)])
    if kind == "scale of a reproduction":
        name = canonical(next(iter(previous), ""), reproductions.names())
        return _beginning(last, scales_of(name) if name in reproductions.names() else [])
    return _beginning(last, _KINDS[kind]() if kind in _KINDS else [])


def _scales(recipe: str) -> list[str]:
    try:
        return recipes.scales(recipe)
    except LinrnnError:
        return []


def _beginning(text: str, words: Iterable[str]) -> list[str]:
    """Those that begin with a text, in any case and with ``-`` or ``_``."""
    prefix = text.lower().replace("_", "-")
    return [one for one in words if one.lower().replace("_", "-").startswith(prefix)]


_KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "verb": verbs,
    "catalogue": lambda: CATALOGUES,
    "task": tasks.names,
    "learner": learn.names,
    "property": properties,
    "recipe": lambda: [UNTUNED, *recipes.names()],
    "reproduction": lambda: [name.replace("_", "-") for name in reproductions.names()],
    "entry": lambda: sorted({name for kind in CATALOGUES for name in entries(package_of(kind))}),
    "shell": lambda: ["bash", "zsh", "fish"],
}
"""The values that an argument may have, by kind."""
