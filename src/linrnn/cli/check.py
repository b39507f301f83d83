"""Run the contract tests on a mixer: one of the package, or a layer of yours."""

import time
import warnings
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from traceback import format_exc
from typing import TYPE_CHECKING, Any, cast

from linrnn._files.reading import why
from linrnn.cli._line.entries import properties
from linrnn.cli._line.names import known_as
from linrnn.cli._line.output import MANNER, answer, note, row
from linrnn.cli._line.parser import Parser
from linrnn.cli.compare import as_known, parse_mixer
from linrnn.errors import ArgumentError

if TYPE_CHECKING:
    from linrnn.testing import MakeMixer

EPILOG = """MIXER is a name or an import path, pkg.module:Mine. Options may follow, as in
`linrnn compare`: lru:form=conv.

Each test checks one property of the contract and has one of three verdicts.
  pass      the mixer has the property
  declared  it lacks the property, and its class gives the reason
  broken    it lacks the property without a reason, or has one that it declares to lack
The worst error is the largest over all compared numbers, divided by the tolerance: above 1 it is
too large. `linrnn.testing.MIXER_PROPERTIES` lists the properties, and the page "Testing" explains
them. In your own tests, call `linrnn.testing.check_mixer`.

exit codes: 0 all passed or declared, 1 one is broken, 2 the command was wrong."""


@dataclass(frozen=True)
class Verdict:
    """The result of one contract test."""

    property: str
    status: str
    """pass, declared or broken."""
    worst_error: float | None
    """In units of the allowed one; None where no numbers are compared."""
    seconds: float
    reason: str
    """Why it is declared or broken."""
    traceback: str = ""
    """Where a test failed; empty if it did not."""


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("check", __doc__, epilog=EPILOG)
    parser.add("mixer", metavar="MIXER", help="a name or pkg.module:Mine", kind="mixer")
    words = "test only this property, such as causal; may be repeated"
    parser.add("--property", action="append", metavar="NAME", help=words, kind="property")
    parser.add("--law", action="append", metavar="NAME", help=SUPPRESS, kind="property")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run all contract tests, or the selected ones, and print a line for each."""
    options = parser().parse_args(argv)
    options.mixer = as_known(options.mixer)
    if options.law:
        note("--law is called --property; the former name goes with linrnn 0.4\n")
    names = properties()
    selection = [*(options.property or ()), *(options.law or ())]
    chosen = [known_as("property", name, names) for name in selection]
    make, checked, verdicts = _maker(options.mixer), chosen or names, []
    width = max(len("property"), *map(len, checked))
    row(f"{'property':<{width}}  verdict   worst error     time  reason\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tracer that is refused warns first
        for verdict in _verdicts(make, checked):
            verdicts.append(verdict)
            _say(verdict, width)
            if MANNER.verbose:
                note(verdict.traceback)
    broken = [verdict.property for verdict in verdicts if verdict.status == "broken"]
    if broken and not MANNER.verbose:
        note("-v shows the tracebacks\n")
    row(_ending(options.mixer, len(verdicts), broken))
    answer(lambda: {"mixer": options.mixer, "properties": verdicts})
    return 1 if broken else 0


def _maker(text: str) -> "MakeMixer":
    """Return the constructor of the layers to check."""
    from linrnn import mixers
    from linrnn.cli._line.mixer_options import import_named

    name, mixer_options = parse_mixer(text)
    if "," in name:
        raise ArgumentError(f"check: MIXER must be one mixer, got the pattern {name!r}.")
    import_named(name)
    cls = mixers.load(name)
    mixers.build(name, 8, mixer_options)  # a wrong option is an error of the command
    return partial(cls, **mixer_options) if mixer_options else cls


def _verdicts(make: "MakeMixer", names: Sequence[str]) -> Iterator[Verdict]:
    from linrnn.testing import BrokenPropertyError, check_property, recording

    reasons = cast(Any, getattr(make, "func", make)).declared
    for name in names:
        start, declared = time.perf_counter(), _declared(reasons, name)
        trace = ""
        with recording() as worst:
            try:
                check_property(name, make)
                status, reason = ("declared", declared) if declared else ("pass", "")
            except BrokenPropertyError as error:
                status, reason = "broken", str(error).removeprefix(f"{name}: ")
                trace = format_exc()
            except Exception as error:  # noqa: BLE001 - whatever a layer that is wrong raises
                status, reason = "broken", f"raised {type(error).__name__}: {why(error)}"
                trace = format_exc()
        seconds = time.perf_counter() - start
        yield Verdict(name, status, worst.error, seconds, reason, trace)


def _declared(reasons: Any, name: str) -> str:
    """Why a mixer lacks a property, or lacks it in some of its forms."""
    texts = [
        f"{reason} (form {key.partition(':')[2]!r})" if ":" in key else reason
        for key, reason in reasons.items()
        if key.partition(":")[0] == name
    ]
    return "; ".join(texts)


def _say(verdict: Verdict, width: int) -> None:
    error = "-" if verdict.worst_error is None else f"{verdict.worst_error:.2g}"
    line = (
        f"{verdict.property:<{width}}  {verdict.status:<8}  {error:>11}  {verdict.seconds:5.1f} s"
    )
    row(f"{line}  {verdict.reason}".rstrip() + "\n")


def _ending(mixer: str, count: int, broken: list[str]) -> str:
    if not broken:
        return f"{mixer} passes or declares {'all ' if count > 1 else ''}{count} contract tests\n"
    return f"{mixer} fails {len(broken)} of {count} contract tests: {', '.join(broken)}\n"
