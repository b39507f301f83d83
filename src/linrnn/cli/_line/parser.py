"""The parser of a verb: what every verb takes, and errors that name the option that was meant."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from linrnn.cli._line.names import (
    canonical,
    empty_path,
    flag_name,
    given_twice,
    no_such_option,
    respelt,
)
from linrnn.cli._line.output import MANNER
from linrnn.errors import ArgumentError

QUIET = "print only the result: no progress, no notes"
VERBOSE = "show the traceback of an error"
JSON = "print the result as JSON; progress and notes go to standard error"


class Parser(argparse.ArgumentParser):
    """An argument parser with ``-q``, ``-v`` and, of a verb that answers, ``--json``.

    Options, and the choices of one that has some, are taken in any case and with ``-`` or ``_``, in
    full.

    Args:
        verb: its name.
        description: what it does.
        answers: whether it takes ``--json``.
        wrap: whether description and epilog are broken into lines; else they stand as they are.
        **given: of ``argparse.ArgumentParser``.
    """

    def __init__(
        self,
        verb: str,
        description: Any,
        *,
        answers: bool = True,
        wrap: bool = False,
        **settings: Any,
    ) -> None:
        raw, wrapped = argparse.RawDescriptionHelpFormatter, argparse.HelpFormatter
        super().__init__(
            prog=f"linrnn {verb}",
            description=description,
            formatter_class=wrapped if wrap else raw,
            allow_abbrev=False,
            **settings,
        )
        self._words: list[str] = []
        self.kinds: dict[str, str] = {}
        """The kind of each argument's value, by its name, for completions."""
        manners = [("quiet", ["-q", "--quiet"], QUIET), ("verbose", ["-v", "--verbose"], VERBOSE)]
        manners += [("json", ["--json"], JSON)] if answers else []
        for name, flags, words in manners:
            self.add_argument(*flags, action=_Set, dest=name, help=words)

    def add(self, *flags: str, kind: str = "", **settings: Any) -> None:
        """Add an argument.

        Args:
            *flags: as of ``add_argument``.
            kind: what its value is, one of those `linrnn.cli._verbs.complete` knows.
            **settings: as of ``add_argument``.
        """
        action = self.add_argument(*flags, **settings)
        self.kinds[action.dest] = kind

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments.

        Raises:
            ArgumentError: an option that there is not.
        """
        arguments: Sequence[str] = respelt(args, self._option_string_actions)
        for argument in _before_separator(arguments):
            if argument.startswith("--") and not self._has(argument):
                flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
                raise no_such_option(self._verb, argument, flags, f"{self.prog} --help")
        return super().parse_args(arguments, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments, and those that are of another parser.

        Raises:
            ArgumentError: an option came twice that does not collect, or with one value too many.
        """
        self._words = respelt(args, self._option_string_actions)
        self._check_once()
        self._check_one_value()
        return super().parse_known_args(self._words, namespace)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """One value; of choices the one that was meant, of paths one that is not empty.

        Raises:
            ArgumentError: an empty path, which would be the current folder.
        """
        if self.kinds.get(action.dest) in ("file", "folder") and not arg_string.strip():
            name = (*action.option_strings, action.metavar or action.dest)[0]
            raise empty_path(self._verb, str(name), arg_string)
        value = super()._get_value(action, arg_string)
        if action.choices is not None and isinstance(value, str):
            return canonical(value, map(str, action.choices))
        return value

    def error(self, message: str) -> NoReturn:
        """Raise any other error of the arguments, in one line.

        Raises:
            ArgumentError: always.
        """
        more = f"`linrnn help {self._verb}` describes every argument."
        raise ArgumentError(f"{self._verb}: {message}.{self._meant(message)} {more}")

    @property
    def _verb(self) -> str:
        return self.prog.removeprefix("linrnn ")

    def _check_once(self) -> None:
        first: dict[str, list[str]] = {}
        words = _before_separator(self._words)
        for at, argument in enumerate(words):
            name, sign, value = argument.partition("=")
            action = self._option_string_actions.get(name)
            if action is None or isinstance(action, _MAY_REPEAT):
                continue
            values = [value] if sign else words[at + 1 : at + 2] if action.nargs != 0 else []
            if action.dest in first:
                second = [name, *values]
                raise given_twice(self._verb, first[action.dest], second, "Leave one of them out.")
            first[action.dest] = [name, *values]

    def _check_one_value(self) -> None:
        """A word behind an option and its value would be taken for one of the option before."""
        positional = [x for x in self._actions if not x.option_strings]
        if any(x.nargs is not None for x in positional):
            return
        words = _before_separator(self._words)
        at, left = 0, len(positional)
        option: tuple[argparse.Action, str, str] | None = None  # which it is behind
        while at < len(words):
            name, sign, value = words[at].partition("=")
            action = self._option_string_actions.get(name)
            if action is not None:
                behind = [] if action.nargs == 0 else [value] if sign else words[at + 1 : at + 2]
                option = (action, name, behind[0]) if behind else None
                at += 1 if sign else 1 + len(behind)
            elif words[at].startswith("-"):  # of another parser, and so is all up to the next
                at, option = at + 1, None
                while at < len(words) and not words[at].startswith("--"):
                    at += 1
            elif left:
                at, left, option = at + 1, left - 1, None
            elif option is None:
                return
            else:
                raise self._two_values(*option, words[at])

    def _two_values(self, action: argparse.Action, name: str, *got: str) -> ArgumentError:
        several = ""
        if isinstance(action, argparse._AppendAction):
            repeated = " ".join(f"{name} {value}" for value in got)
            several = f" Several are said one by one: {repeated}."
        elif "," in str(action.metavar):
            several = f" Several have commas between: {name} {','.join(got)}."
        said = " and ".join(f"{value!r:.60}" for value in got)
        return ArgumentError(f"{self._verb}: {name} must be one value, got {said}.{several}")

    def _meant(self, message: str) -> str:
        """A question that names the likely misspelling of a missing option; empty without one."""
        missing = [flag for flag in message.replace(",", " ").split() if flag.startswith("--")]
        for option in (arg.partition("=")[0] for arg in self._words if arg.startswith("--")):
            # dashes that all options have would make any two alike
            name = flag_name(option).lstrip("-")
            near = difflib.get_close_matches(name, [one.lstrip("-") for one in missing], n=1)
            if near and not self._has(option):
                return f" Did you mean --{near[0]} by {option:.60}?"
        return ""

    def _has(self, argument: str) -> bool:
        return argument.partition("=")[0] in self._option_string_actions


def _before_separator(words: Sequence[str]) -> Sequence[str]:
    """Those before a ``--``, behind which nothing is an option."""
    return words[: words.index("--") if "--" in words else None]


class _Set(argparse.Action):
    """Changes how the command speaks."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(MANNER, self.dest, True)


_MAY_REPEAT = (argparse._AppendAction, argparse._HelpAction, _Set)


def take_manners(arguments: Sequence[str]) -> list[str]:
    """A command line without ``-q``, ``-v`` and ``--json``, which are obeyed."""
    flags = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}
    flags["--json"] = "json"
    left = []
    for argument in arguments:
        name = flags.get(argument.lower())
        if name is None:
            left.append(argument)
        else:
            setattr(MANNER, name, True)
    return left
