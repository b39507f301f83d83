"""Names as people write them: in any case, with ``-``, ``_`` or neither."""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from linrnn import learn, mixers, recipes, tasks
from linrnn._options.catalogue import aliases
from linrnn._options.import_path import is_import_path
from linrnn.errors import ArgumentError, UnknownNameError

UNTUNED = "none"
"""Name used instead of a recipe and its scale: defaults that suit any task, tuned for none."""

_REPEATED = re.compile(r"(\d+\s*\*\s*)?(.+)", re.DOTALL)


def canonical(name: str, names: Iterable[str]) -> str:
    """The known name that was meant, or the same again where it is none.

    Example:
        >>> known = ["lru", "rg_lru"]
        >>> canonical("RG-LRU", known), canonical("RGLRU", known), canonical("x", known)
        ('rg_lru', 'rg_lru', 'x')
    """
    names = list(dict.fromkeys(names))  # catalogues share some names
    for spelling in (str, _underscored, _letters):  # the last is how classes and papers call it
        matches = [one for one in names if spelling(one) == spelling(name)]
        if len(matches) == 1:
            return matches[0]
    return name


def known_as(kind: str, name: str, names: Collection[str], packages: Iterable[str] = ()) -> str:
    """The known name that was meant.

    Args:
        kind: what is named, for the message.
        name: as it was written.
        names: all there are.
        packages: the catalogues of which former names are known too.

    Raises:
        UnknownNameError: it is none.
    """
    meant = canonical(name, names)
    for package in packages if meant not in names else ():
        former = aliases(package)
        meant = former.get(canonical(name, former), meant)
    if meant not in names:
        raise UnknownNameError(kind, name, names)
    return meant


def task_named(name: str) -> str:
    """A task's name."""
    return known_as("task", name, tasks.names())


def learner_named(name: str) -> str:
    """A learner's name."""
    return known_as("learner", name, learn.names(), [learn.__name__])


def recipe_named(name: str) -> str:
    """A recipe's name, or `UNTUNED` for none."""
    return UNTUNED if name.lower() == UNTUNED else known_as("recipe", name, recipes.names())


def scale_named(recipe: str, scale: str) -> str:
    """The name of one of the scales of a recipe, or `UNTUNED` for none."""
    if scale.lower() == UNTUNED:
        return UNTUNED
    return known_as(f"scale of the recipe {recipe}", scale, recipes.scales(recipe))


def mixer_named(text: str) -> str:
    """A mixer, or a pattern with commas between, by the names of the catalogue.

    Import paths stay as they are. None is imported.

    Raises:
        UnknownNameError: a name that is none.

    Example:
        >>> mixer_named("2*RG-LRU,pkg.module:Mine,lru")
        '2*rg_lru,pkg.module:Mine,lru'
    """
    return ",".join(_one_mixer(part) for part in text.split(","))


def _one_mixer(part: str) -> str:
    match = _REPEATED.fullmatch(part.strip())
    if match is None or is_import_path(match[2]):
        return part  # nothing between two commas: the pattern reports that
    return (match[1] or "") + known_as("mixer", match[2], mixers.names(), [mixers.__name__])


def flag_name(argument: str) -> str:
    """An option without its value, as options are written: in small letters, with ``-``.

    Example:
        >>> flag_name("--Match_Params=3")
        '--match-params'
    """
    return argument.partition("=")[0].lower().replace("_", "-")


def respelt(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """A command line whose options are spelt as they are known; others stay as they are.

    Example:
        >>> respelt(["--Match_Params", "A_B", "--x_y=A_B"], ["--match-params", "--x-y"])
        ['--match-params', 'A_B', '--x-y=A_B']
    """
    words: list[str] = []
    for at, argument in enumerate(arguments):
        if argument == "--":
            return [*words, *arguments[at:]]
        name, sign, value = argument.partition("=")
        meant = flag_name(name) if name.startswith("--") else name
        words.append(f"{meant if meant in options else name}{sign}{value}")
    return words


def no_such_option(verb: str, argument: str, options: Iterable[str], where: str) -> ArgumentError:
    """The error of an option that there is not, with the one that was probably meant.

    Args:
        verb: for the message.
        argument: as it was given.
        options: all there are.
        where: the command that lists them.
    """
    name, options = argument.partition("=")[0], sorted(options)
    # `--lr` means `--optim.lr`, however near another is
    last = flag_name(name).lstrip("-").rpartition(".")[2]
    same = [one for one in options if one.lstrip("-").rpartition(".")[2] == last]
    near = same or difflib.get_close_matches(flag_name(name)[:60], options, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ArgumentError(
        f"{verb}: an option must be one of those of `{where}`, got {name:.60}.{hint}"
    )


def empty_path(verb: str, name: str, text: str) -> ArgumentError:
    """The error of an empty path, as of a variable of the shell that is not set."""
    return ArgumentError(
        f"{verb}: {name} must be a path, got {text!r}. A variable may be empty; `.` is the current "
        "folder."
    )


def given_twice(verb: str, first: Sequence[str], second: Sequence[str], fix: str) -> ArgumentError:
    """The error of an option that came twice, of which one would be forgotten.

    Args:
        verb: for the message.
        first: the option as it was given, and its values.
        second: the same of the second time.
        fix: what to do instead.
    """
    words = (" ".join(map(str, one)) for one in (first, second))
    got = " and ".join(f"{text:.60}" for text in words)
    return ArgumentError(f"{verb}: {first[0]} must be given once, got {got}. {fix}")


def _underscored(name: str) -> str:
    return name.lower().replace("-", "_")


def _letters(name: str) -> str:
    return re.sub(r"[-_]", "", name).lower()
