"""The options of ``linrnn train`` as the sources state them, so that an error needs no PyTorch."""

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from linrnn import recipes
from linrnn._options.catalogue import stems, studied, todays_name
from linrnn._options.declared import OF_THE_MODEL, SET_BY_THE_STACK
from linrnn._options.import_path import is_import_path
from linrnn.cli._line import source
from linrnn.cli._line.entries import attribute_of, class_of
from linrnn.cli._line.names import (
    UNTUNED,
    given_twice,
    learner_named,
    mixer_named,
    no_such_option,
    recipe_named,
    respelt,
    scale_named,
)
from linrnn.cli._line.options import CHOSEN, peek, short_names
from linrnn.cli._line.source import Declared
from linrnn.cli._line.values import ANY, check_values, values_of
from linrnn.errors import ArgumentError

_FLAG = re.compile(r"--[A-Za-z].*|-[A-Za-z].*", re.DOTALL)
_NUMBER = re.compile(r"-(inf|nan)", re.IGNORECASE)
_HELP = ("-h", "--help")


class Options(NamedTuple):
    """The options that a run takes."""

    flags: dict[str, Declared]
    """Every option by its flag; ``--x.no-y`` is beside each ``--x.y`` that is on or off."""
    partly: tuple[str, ...]
    """Beginnings of flags of which the sources do not say all: of classes of other packages."""
    same: Mapping[str, str] = MappingProxyType({})
    """Short names, and the flags they stand for."""

    def has(self, flag: str) -> bool:
        """Whether there is such an option, or may be."""
        return flag in self.flags or flag.startswith(self.partly)

    def in_full(self, flag: str) -> str:
        """The one flag of an option that has several."""
        flag = self.same.get(flag, flag)
        on = flag.replace(".no-", ".")
        return on if on in self.flags and self.flags[on] is self.flags.get(flag) else flag


def train_options(task: str, mixer: str | None, learner: str | None) -> Options:
    """The options of a run; nothing of what it names is imported.

    Args:
        task: its name.
        mixer: a name, or a pattern with commas between; None where only the recipe knows it.
        learner: a name; None where only the recipe knows it.
    """
    package = Path(source.file_of("linrnn", "errors") or "").parent
    config = package / "train" / "config.py"
    flags = {f"--{name}": Declared(name, kind, "") for name, kind in CHOSEN.items()}
    flags |= dict(_section("model", _model(package)))
    for section, name in (("optim", "OptimConfig"), ("train", "TrainConfig")):
        flags |= dict(_section(section, source.fields(_named(config, name))))
    unknown = []
    of_task = _of_task(task)
    of_mixer = None if mixer is None else _of_pattern(mixer)
    of_learner = None if learner is None else _entry("learners", learner)
    for name, options in (("task", of_task), ("mixer", of_mixer), ("learner", of_learner)):
        if options is None:
            unknown.append(f"--{name}.")
        else:
            flags |= options if isinstance(options, dict) else dict(_section(name, options))
    # a task of another package may define short names
    partly = ("--",) if of_task is None else tuple(unknown)
    return Options(flags, partly, {} if of_task is None else _short(task, of_task))


def check_train(task: str, arguments: Sequence[str], verb: str = "train") -> list[str]:
    """The options of a run as they are known, or the error of the first that cannot be meant.

    Names may be written in any case and with ``-`` or ``_``. What only an imported class can tell
    is left to it.

    Args:
        task: its name.
        arguments: what follows it.
        verb: for messages.

    Raises:
        UnknownNameError: no such mixer, learner, recipe or scale.
        ArgumentError: no such option, or a value that is no number where one is wanted.
    """
    words = respelt(arguments, [f"--{name}" for name in CHOSEN])
    words = list(map(_of_todays_mixer, _with_names(words, task)))
    options = train_options(task, *mixer_and_learner(task, words))
    words = _with_words(respelt(words, options.flags), options)
    _check(words, options, verb, f"linrnn train {task} --help")
    return words


def mixer_and_learner(task: str, arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Which a run has, by its options as they are known, or None where only the recipe knows it."""
    recipe, scale = _recipe(task, peek(arguments, "--recipe"), peek(arguments, "--scale"))
    return (
        peek(arguments, "--mixer") or recipe_says(recipe, scale, "mixer", "lru"),
        peek(arguments, "--learner") or recipe_says(recipe, scale, "learner", "bptt"),
    )


def check_learning(arguments: Sequence[str], learner: str, optim: Sequence[str]) -> list[str]:
    """Options of a learner and of an optimiser as they are known, for ``linrnn stream``.

    Args:
        arguments: ``--learner.NAME`` and ``--optim.NAME`` with their values.
        learner: its name.
        optim: the options of the optimiser that there are.

    Raises:
        ArgumentError: no such option, or a value that is no number where one is wanted.
    """
    package = Path(source.file_of("linrnn", "errors") or "").parent
    every = source.fields(_named(package / "train" / "config.py", "OptimConfig"))
    flags = dict(_section("optim", (one for one in every if one.name in optim)))
    of_learner = _entry("learners", learner)
    flags |= dict(_section("learner", of_learner or ()))
    options = Options(flags, () if of_learner is not None else ("--learner.",))
    words = _with_words(respelt(arguments, flags), options)
    _check(words, options, "stream", f"linrnn show {learner}")
    return words


def recipe_says(recipe: str | None, scale: str | None, what: str, otherwise: str) -> str | None:
    """The mixer or the learner of a recipe, or None where that is not plain from its source."""
    if recipe is None:
        return otherwise
    path = source.file_of("linrnn.recipes", recipe)
    function = source.functions(path).get(scale or "") if path else None
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Config":
            keywords = {word.arg: word.value for word in node.keywords}
            value = keywords.get(what, ast.Constant(otherwise))
            return value.value if isinstance(value, ast.Constant) else None  # type: ignore[return-value]
    return None


def _with_names(arguments: list[str], task: str) -> list[str]:
    """Arguments with the names of mixer, learner, recipe and scale as the catalogues have them."""
    named = {"--mixer": mixer_named, "--learner": learner_named, "--recipe": recipe_named}
    for flag, meant in named.items():
        arguments = _replaced(arguments, flag, meant)
    recipe = peek(arguments, "--recipe") or task
    if recipe in recipes.names():
        arguments = _replaced(arguments, "--scale", lambda name: scale_named(recipe, name))
    return arguments


def _of_todays_mixer(argument: str) -> str:
    """An option of one mixer of a pattern, by the name that this has today."""
    flag, sign, value = argument.partition("=")
    match = re.fullmatch(r"--mixer\.([^.]+)\.(.+)", flag)
    if match is None:
        return argument
    former = match[1].lower().replace("-", "_")
    name = todays_name("linrnn.mixers", former)
    if name == former:  # a class of the user's has its own spelling
        return argument
    return f"--mixer.{name.replace('_', '-')}.{match[2]}{sign}{value}"


def _replaced(arguments: list[str], flag: str, meant: Callable[[str], str]) -> list[str]:
    """Arguments with the value of one option replaced by ``meant`` of it, if it is among them."""
    words = list(arguments)
    for at, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            words[at] = f"{flag}={meant(argument.partition('=')[2])}"
        elif argument == flag and at + 1 < len(arguments):
            words[at + 1] = meant(arguments[at + 1])
    return words


def _with_words(arguments: Sequence[str], options: Options) -> list[str]:
    """The same with the words that an option takes a few of as they are known."""
    words: list[str] = []
    values = ANY
    for at, argument in enumerate(arguments):
        if argument == "--":
            return [*words, *arguments[at:]]
        if not _is_flag(argument):
            words.append(values.meant(argument))
            continue
        flag, sign, value = argument.partition("=")
        values = values_of(options.flags.get(flag))
        words.append(f"{flag}={values.meant(value)}" if sign else flag)
    return words


def _recipe(task: str, recipe: str | None, scale: str | None) -> tuple[str | None, str | None]:
    """The recipe and scale whose values are the defaults; None for untuned ones."""
    has_recipe = task in recipes.names() and (scale or recipes.CPU in recipes.scales(task))
    recipe = task if recipe is None and has_recipe else recipe
    if recipe in (None, UNTUNED) or recipe not in recipes.names():
        return None, None
    if recipe in studied("linrnn.recipes"):
        return recipe, "paper"
    return recipe, scale or recipes.default_scale(recipe)


def _check(arguments: Sequence[str], options: Options, verb: str, where: str) -> None:
    first: dict[str, list[str]] = {}
    for flag, texts in _grouped(arguments):
        if not flag:
            raise ArgumentError(f"{verb}: an option must begin with --, got {texts[0]!r:.80}.")
        if flag not in _HELP and not options.has(flag):
            raise no_such_option(verb, flag, options.flags, where)
        values = values_of(options.flags.get(flag))
        check_values(verb, flag, values, texts)
        occurrence = [flag, *texts]
        earlier = first.setdefault(options.in_full(flag), occurrence)
        if earlier is not occurrence:
            all_of_them = " ".join([*earlier, *texts])
            fix = (
                f"Write {all_of_them}."
                if values.most > 1 and values.kinds
                else "Leave one of them out."
            )
            raise given_twice(verb, earlier, occurrence, fix)


def _grouped(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Every option up to ``--`` with the words after it; words before the first go by no name."""
    groups: list[tuple[str, list[str]]] = []
    for argument in itertools.takewhile(lambda one: one != "--", arguments):
        if _is_flag(argument):
            flag, sign, value = argument.partition("=")
            groups.append((flag, [value] if sign else []))
        elif groups:
            groups[-1][1].append(argument)
        else:
            groups.append(("", [argument]))
    return groups


def _is_flag(argument: str) -> bool:
    return bool(_FLAG.fullmatch(argument)) and not _NUMBER.fullmatch(argument)


def _section(name: str, declared: Iterable[Declared]) -> Iterator[tuple[str, Declared]]:
    for one in declared:
        flag = f"--{name}.{one.name.replace('_', '-')}"
        yield flag, one
        if one.annotation == "bool" and one.default is not None:
            group, _, last = flag.rpartition(".")
            yield f"{group}.no-{last}", one


def _model(package: Path) -> list[Declared]:
    model = _named(package / "backbone" / "__init__.py", "SequenceModel")
    return [one for one in source.arguments(model) if one.name not in OF_THE_MODEL]


def _of_task(task: str) -> dict[str, Declared] | None:
    """The options of a task with their short names; None of one of another package."""
    options = attribute_of("tasks", task, "Options")
    path = source.file_of("linrnn.tasks", task)
    if options is None or path is None:
        return None
    cls = next(filter(None, (source.class_named(p, ast.unparse(options)) for p in _files(path))))
    declared = dict(_section("task", source.fields(cls)))
    anywhere = Declared("", "", "")
    return declared | {
        s: declared.get(full, anywhere) for s, full in _short(task, declared).items()
    }


def _short(task: str, options: Iterable[str]) -> dict[str, str]:
    """Short names, and the flags they stand for, of a task with these."""
    stated = attribute_of("tasks", task, "short_options")
    declared = ast.literal_eval(stated) if stated is not None else {}
    names = {flag.removeprefix("--task.").replace("-", "_") for flag in options}
    return {f"--{short}": f"--{full}" for short, full in short_names(declared, names).items()}


def _files(path: Path) -> Iterator[Path]:
    """The files of the classes that the public class of a file is made of."""
    for cls in source.public_classes(path):
        for one in source.lineage(cls):
            yield one.path


def _of_pattern(mixer: str) -> dict[str, Declared] | None:
    """The options of the mixers of a pattern; None where one is not of this package."""
    names = list(
        dict.fromkeys(re.sub(r"^\d+\s*\*\s*", "", part.strip()) for part in mixer.split(","))
    )
    if any(is_import_path(name) or name not in stems("linrnn.mixers") for name in names):
        return None
    flags: dict[str, Declared] = {}
    for name in names:
        section = "mixer" if len(names) == 1 else f"mixer.{name.replace('_', '-')}"
        declared = _entry("mixers", name)
        if declared is None:
            return None
        flags |= dict(_section(section, (d for d in declared if d.name not in SET_BY_THE_STACK)))
    return flags


def _entry(kind: str, name: str) -> list[Declared] | None:
    """The arguments of the class of an entry; None where its file does not tell."""
    cls = class_of(kind, name)
    return source.arguments(cls) if cls else None


def _named(path: Path, name: str) -> source.Class:
    cls = source.class_named(path, name)
    assert cls
    return cls
