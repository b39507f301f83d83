"""The options that ``linrnn sweep`` varies, parsed and checked before anything is imported."""

import ast
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from linrnn.cli._line.names import flag_name, learner_named, mixer_named, no_such_option
from linrnn.cli._line.train_options import Options, check_train, mixer_and_learner, train_options
from linrnn.cli._line.values import Values, values_of
from linrnn.errors import ArgumentError

_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})")
_CHOICES = {"mixer": mixer_named, "learner": learner_named}
"""Options without a dot that runs may differ in."""
_FIXED = {
    "seed": "--seeds N trains every combination with the seeds 0 to N-1.",
    "recipe": "--recipe is one for all runs.",
    "scale": "--scale is one for all runs.",
    "out": "--out is one for all runs.",
}


class Drawn(NamedTuple):
    """A range from which values are drawn; `linrnn.compare.Range` without PyTorch."""

    low: float
    high: float
    whole: bool
    """Whether the range is of integers."""


def parse_over(text: str) -> tuple[str, list[Any] | Drawn]:
    """An option and its values, or the range of them.

    Raises:
        ArgumentError: no option, no value, or a range among values.

    Example:
        >>> parse_over("Optim.LR=1e-3,0.01"), parse_over("mixer.d-state=8")
        (('optim.lr', [0.001, 0.01]), ('mixer.d_state', [8]))
        >>> parse_over("optim.lr=1e-4..1e-2")
        ('optim.lr', Drawn(low=0.0001, high=0.01, whole=False))
    """
    name, _, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not name or not all(parts):
        raise ArgumentError(
            f"sweep: --over must be an option and its values, such as optim.lr=0.001,0.01, got "
            f"{text!r:.80}."
        )
    name = flag_name(name).lstrip("-").replace("-", "_")
    ranges = [match for part in parts if (match := _RANGE.fullmatch(part))]
    if not ranges:
        return name, [_value(part) for part in parts]
    if len(parts) > 1:
        raise ArgumentError(
            f"sweep: --over {name} must be one range, or values with commas between, got "
            f"{values!r:.80}."
        )
    low, high = map(_value, ranges[0].groups())
    return name, Drawn(low, high, isinstance(low, int) and isinstance(high, int))


def _value(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def checked_over(
    task: str, texts: Sequence[str], run_args: Sequence[str], draws: int | None
) -> tuple[dict[str, list[Any] | Drawn], list[str]]:
    """The values to sweep, by full option names, and the options of all runs as they are known.

    Args:
        task: its name.
        texts: what ``--over`` was given.
        run_args: the options of all runs.
        draws: how many combinations are drawn; None: all are trained.

    Raises:
        UnknownNameError: no such mixer, or learner.
        ArgumentError: no such option, one that comes twice, a value that it does not take, or a
            range that nothing is drawn from.
    """
    over = _read(texts)
    _check_alone(over, run_args)
    arguments = check_train(task, run_args, "sweep")
    for name, named in _CHOICES.items():
        values = over.get(name, [])
        if isinstance(values, Drawn):
            raise _no_number(name, values)
        over |= {name: [named(str(one)) for one in values]} if values else {}
    defaults: dict[str, Any] = dict(zip(_CHOICES, mixer_and_learner(task, arguments), strict=True))
    mixers, learners = ([*over.get(name, [one])] for name, one in defaults.items())
    for mixer in mixers:
        for learner in learners:
            options = train_options(task, mixer, learner)
            over = _in_full(over, options)
            _check_known(over, options, arguments, f"linrnn train {task} --help")
            over = {name: _checked_values(name, values, options) for name, values in over.items()}
    for name, one in over.items():
        if isinstance(one, Drawn) and draws is None:
            raise ArgumentError(
                f"sweep: --over {name} must be listed values without --random, got the range "
                f"{one.low}..{one.high}. Add --random N, which draws N combinations."
            )
    return over, arguments


def _read(texts: Sequence[str]) -> dict[str, list[Any] | Drawn]:
    over: dict[str, list[Any] | Drawn] = {}
    for text in texts:
        name, values = parse_over(text)
        if name in over:
            both = [*_words(over[name]), *_words(values)]
            fix = f"Write {name}={','.join(both)}."
            raise ArgumentError(f"sweep: --over must name {name} once, got it twice. {fix}")
        over[name] = values
    return over


def _words(values: list[Any] | Drawn) -> list[str]:
    return [f"{values.low}..{values.high}"] if isinstance(values, Drawn) else [*map(str, values)]


def _check_alone(over: dict[str, Any], run_args: Sequence[str]) -> None:
    """Options of a mixer that is swept would be forgotten by the others; so of a learner."""
    for name in _CHOICES:
        clashes = [arg for arg in run_args if flag_name(arg).startswith(f"--{name}.")]
        if name in over and clashes:
            flag = flag_name(clashes[0])
            raise ArgumentError(
                f"sweep: {flag} must come without --over {name}, got both. Give it to every "
                f"{name} by --over {flag[2:].replace('-', '_')}=..., with one value or several."
            )


def _in_full(over: dict[str, list[Any] | Drawn], options: Options) -> dict[str, Any]:
    """The same with the full names of options that were given by short ones."""
    renamed: dict[str, Any] = {}
    for name, values in over.items():
        full = options.same.get(_flag(name), _flag(name))[2:].replace("-", "_")
        if full in renamed:
            raise ArgumentError(f"sweep: --over must name {full} once, got it twice.")
        renamed[full] = values
    return renamed


def _check_known(
    over: dict[str, Any], options: Options, run_args: Sequence[str], where: str
) -> None:
    flags = {options.in_full(flag_name(arg)) for arg in run_args if arg.startswith("--")}
    for name in over:
        flag = _flag(name)
        if flag in flags:
            raise ArgumentError(
                f"sweep: {flag} must come without --over {name}, got both. Leave one of them out."
            )
        if name in _CHOICES:
            continue
        if name in _FIXED:
            raise ArgumentError(
                f"sweep: --over must name an option that runs may differ in, got {name}. "
                f"{_FIXED[name]}"
            )
        if "." not in name or not options.has(flag):
            swept = [*_CHOICES, *(f[2:] for f in options.flags if "." in f)]
            raise no_such_option("sweep", name, swept, where)


def _checked_values(name: str, values: list[Any] | Drawn, options: Options) -> list[Any] | Drawn:
    """Values that an option takes, or their range, of integers where it takes no others."""
    declared = options.flags.get(_flag(name))
    if name in _CHOICES or declared is None:  # an option of somebody else's class says itself
        return values
    takes = values_of(declared)
    if isinstance(values, Drawn):
        return _checked_range(name, values, takes)
    if takes.most == 1:
        values = [one if takes.fits(str(one)) else _value(takes.meant(str(one))) for one in values]
    for value in values:
        if not takes.most and not isinstance(value, bool):
            raise ArgumentError(f"sweep: --over {name} must be true or false, got {value!r:.80}.")
        if takes.most == 1 and not takes.fits(str(value)):
            hint = " A range is two numbers, A..B." if ".." in str(value) else ""
            raise ArgumentError(
                f"sweep: --over {name} must be {takes.what}, got {value!r:.80}.{hint}"
            )
    return values


def _checked_range(name: str, values: Drawn, takes: Values) -> Drawn:
    kinds = {kind.what for kind in takes.kinds}
    got = f"{values.low}..{values.high}"
    if takes.most != 1 or not kinds & {"a number", "an integer"}:
        raise _no_number(name, values)
    integers_only = "a number" not in kinds
    if integers_only and not values.whole:
        raise ArgumentError(f"sweep: --over {name} must be a range of integers, got {got}.")
    if not values.low < values.high:
        raise ArgumentError(
            f"sweep: --over {name} must be a range from a number to a larger one, got {got}."
        )
    return values._replace(whole=integers_only)


def _no_number(name: str, values: Drawn) -> ArgumentError:
    return ArgumentError(
        f"sweep: --over {name} must be listed values, since it takes no number, got the range "
        f"{values.low}..{values.high}."
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
