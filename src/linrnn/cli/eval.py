"""Test the weights of a run again, from its folder, also on sequences of other lengths."""

import math
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn import tasks
from linrnn._options.numbers import counted
from linrnn.cli._line.output import answer, joined, note, plain, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.progress import metric_text, perplexity
from linrnn.cli._verbs.panel import eval_panel
from linrnn.errors import ArgumentError

if TYPE_CHECKING:
    from linrnn.dynamics import Cycle
    from linrnn.train import LengthScore, Score

EPILOG = """\
--lengths prints a table, and writes lengths.csv and the plots lengths.png and lengths.svg to the
run folder. A model whose state has a constant size reads long sequences in chunks, in constant
memory. A bidirectional model, or attention without a window, reads them whole.

--lyapunov follows the state of every layer along one test sequence. It prints how fast nearby
states separate (exponents above 0: chaos) or converge, in nats per step, and the eigenvalues of the
Jacobian. The run folder gets lyapunov.csv, lyapunov.png and lyapunov.svg.

--cycles is for the mixers plrnn and relu_rnn. It lists the fixed points of every layer and its
cycles of up to K steps, with a constant input: the mean over a test sequence. The run folder gets
cycles.csv.

A run of many series in one table is tested on the ends of the series in its file: it is fitted
again to what comes before them. --data names the file if it was moved, or another one with the
same columns.

example: linrnn eval runs/induction_heads-mingru-1 --lengths 2^6..2^14 --examples 200"""

_LENGTHS = "values of the task's option `length`: numbers, powers such as 2^10, or A..B, doubling"
_LYAPUNOV = "Lyapunov exponents of the state of every layer, and the spectrum of its Jacobian"
_STEPS = "number of steps that --lyapunov follows (256)"
_CYCLES = "fixed points of piecewise-linear layers, and their cycles of up to K steps"
_DATA = "table to test a run of many series on (the file of the fit)"
_EXAMPLES = "number of test sequences at each length, spread evenly over the test data (all)"


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("eval", __doc__, epilog=EPILOG)
    parser.add("run", type=Path, metavar="RUN", help="the run folder", kind="folder")
    parser.add("--data", type=Path, metavar="FILE", help=_DATA, kind="file")
    parser.add("--lengths", metavar="A,B,...", help=_LENGTHS)
    parser.add("--examples", type=int, metavar="N", help=_EXAMPLES)
    parser.add("--lyapunov", action="store_true", help=_LYAPUNOV)
    parser.add("--cycles", type=int, metavar="K", help=_CYCLES)
    parser.add("--steps", type=int, metavar="T", help=_STEPS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the test metric of a run, or one for each length."""
    args = parser().parse_args(argv)
    if args.data is not None:
        return _of_table(args)
    if args.steps is not None and not args.lyapunov:
        raise ArgumentError(f"eval: --steps is of --lyapunov, got {args.steps} without it.")
    if args.lyapunov or args.cycles is not None:
        what = "--lyapunov" if args.lyapunov else "--cycles"
        if args.lyapunov and args.cycles is not None:
            raise ArgumentError("eval: --lyapunov must be alone, got --cycles too.")
        if args.lengths is not None or args.examples is not None:
            raise ArgumentError(f"eval: {what} must be alone, got --lengths or --examples too.")
        if args.cycles is not None:
            return _cycles(args.run, args.cycles)
        return _lyapunov(args.run, 256 if args.steps is None else args.steps)
    if args.lengths is not None:
        return _lengths(args.run, parse_lengths(args.lengths), args.examples)
    return _test(args.run, args.examples)


def _of_table(args: Namespace) -> int:
    """The test of a run of many series on a file."""
    from linrnn.estimators.panel_run import is_panel

    if not is_panel(args.run):
        raise ArgumentError(
            f"eval: --data must come with a run of many series, got {args.run}. Other runs are "
            "tested on the data in their config.json; linrnn predict takes any file."
        )
    others = {name: x for name, x in vars(args).items() if name not in ("run", "data") and x}
    if others:
        name = next(iter(others))
        raise ArgumentError(f"eval: --data must be alone, got --{name} too.")
    return eval_panel(args.run, args.data)


def _test(run: Path, examples: int | None) -> int:
    """The test metric."""
    from linrnn.estimators.panel_run import is_panel

    if is_panel(run):
        if examples is not None:
            raise ArgumentError(
                f"eval: --examples must be left out for many series, got {examples}."
            )
        return eval_panel(run, None)
    from linrnn.train import evaluate

    score, config = evaluate(run, examples=examples)
    value = metric_text(score.metric_name, score.metric)
    row(
        f"test {value} on {counted(score.examples, 'sequence')}, loss {score.loss:.4g} "
        f"({config.task}, {config.mixer}, seed {config.seed})\n"
    )
    for name, other in score.side_metrics.items():
        row(f"{metric_text(name, other)}\n")
    more: dict[str, Any] = {}
    if tasks.load(config.task).perplexity:
        more = _language(run, score.loss)
    about = {"run": run, "task": config.task, "mixer": config.mixer, "seed": config.seed}
    answer(lambda: joined(about, _scored(score), more))
    return 0


def _scored(score: "Score") -> dict[str, Any]:
    """A score as JSON; other metrics only where the task has some."""
    fields: dict[str, Any] = plain(score)
    if not score.side_metrics:
        del fields["side_metrics"]
    return fields


def _lyapunov(run: Path, steps: int) -> int:
    """Print and store the Lyapunov exponents of every layer's state."""
    from linrnn.train import measure_dynamics, write_dynamics

    dynamics = measure_dynamics(run, steps=steps)
    write_dynamics(run, dynamics)
    row("layer  numbers    largest     median   above 0  mean spectral radius\n")
    for layer, one in enumerate(dynamics, 1):
        values = one.exponents
        ends = f"{float(values[0]):>9.4f}  {float(values.median()):>9.4f}"
        above = int((values > 0).sum())
        row(f"{layer:>5}  {len(values):>7,}  {ends}  {above:>8,}  {one.radius:>20.4f}\n")
    note(f"{run} holds all exponents as lyapunov.csv, and the plot lyapunov.\n")
    layers = [{"radius": one.radius, "exponents": one.exponents.tolist()} for one in dynamics]
    answer(lambda: {"run": run, "steps": steps, "layers": layers})
    return 0


def _cycles(run: Path, order: int) -> int:
    """Print and store the fixed points and cycles of every layer's state."""
    from linrnn.train import measure_cycles, write_cycles

    by_layer = measure_cycles(run, order=order)
    write_cycles(run, by_layer)
    row("layer  order  kind    spectral radius\n")
    for layer, cycles in enumerate(by_layer, 1):
        for one in cycles:
            stable = "stable" if one.stable else "unstable"
            row(f"{layer:>5}  {one.order:>5}  {one.kind:<6}  {one.radius:>15.4f}  {stable}\n")
    note(f"{run} holds the points of all as cycles.csv.\n")
    layers = [[_in_json(one) for one in cycles] for cycles in by_layer]
    answer(lambda: {"run": run, "order": order, "layers": layers})
    return 0


def _in_json(cycle: "Cycle") -> dict[str, Any]:
    values = [[value.real, value.imag] for value in cycle.eigenvalues.tolist()]
    about = {"order": cycle.order, "kind": cycle.kind, "stable": cycle.stable}
    return joined(about, {"points": cycle.points.tolist(), "eigenvalues": values})


def _language(run: Path, loss: float) -> dict[str, Any]:
    """Print and return the further scores of a language model."""
    from linrnn.tasks import TextTask
    from linrnn.train import load_model, loss_by_position, write_positions

    _, task, _ = load_model(run)
    assert isinstance(task, TextTask)
    bits = loss / math.log(2) / task.characters_per_token
    row(f"perplexity {perplexity(loss):.4g} per token, {bits:.4g} bits per character\n")
    positions = loss_by_position(run)
    write_positions(run, positions)
    row(f"{'position':>13}  loss (nats per token)\n")
    for p in positions:
        place = f"{p.first:,}" if p.first == p.last else f"{p.first:,}-{p.last:,}"
        row(f"{place:>13}  {p.loss:.4f} ± {p.standard_error:.2g}\n")
    note(f"{run} holds this table as positions.csv, and the plot positions.\n")
    return {
        "perplexity": perplexity(loss),
        "bits_per_character": bits,
        "positions": plain(positions),
    }


def parse_lengths(text: str) -> list[int]:
    """Lengths from numbers, powers and ranges of doublings, with commas between them.

    Raises:
        ArgumentError: something else, or a range whose end is not its begin times a power of two.

    Example:
        >>> parse_lengths("100,2^6..2^8")
        [100, 64, 128, 256]
    """
    lengths: list[int] = []
    for part in text.split(","):
        first, dots, last = (p.strip() for p in part.partition(".."))
        begin = _number(first, text)
        end = _number(last, text) if dots else begin
        doublings = [begin << k for k in range(max(1, (end // begin).bit_length()))]
        if doublings[-1] != end:
            raise ArgumentError(
                f"eval: lengths A..B must go up by doubling from A to B, got {part.strip()!r}."
            )
        lengths += doublings
    return lengths


def _number(text: str, argument: str) -> int:
    """A positive integer, or a power of one."""
    match = re.fullmatch(r"(\d{1,10})(?:\^(\d{1,2}))?", text, re.ASCII)
    value = int(match[1]) ** int(match[2] or 1) if match else 0
    if value < 1:
        raise ArgumentError(
            f"eval: --lengths must be like 64,128 or 2^6..2^14, of at least 1, got {argument!r}."
        )
    return value


def _lengths(run: Path, lengths: Sequence[int], examples: int | None) -> int:
    from linrnn.train import evaluate_lengths

    rows: list[LengthScore] = []

    def say(result: "LengthScore") -> None:
        if not rows:
            name = f"test {result.score.metric_name}"
            row(f"{'length':>9}  {'steps':>9}  {name:>23}  {'chance':>9}  sequences\n")
        rows.append(result)
        row(_row(result))

    evaluate_lengths(run, lengths, examples=examples, say=say)
    note(f"{run} holds this table as lengths.csv, and the plot lengths (PNG, SVG).\n")
    answer(lambda: {"run": run, "lengths": rows})
    return 0


def _row(result: "LengthScore") -> str:
    score = result.score
    scale, unit = (100, " %") if score.metric_name == "accuracy" else (1, "")
    value = f"{scale * score.metric:.4g} ± {scale * score.standard_error:.2g}{unit}"
    chance = f"{scale * result.chance:.4g}{unit}"
    return (
        f"{result.length:>9,}  {result.steps:>9,}  {value:>23}  {chance:>9}  {score.examples:>9,}\n"
    )
