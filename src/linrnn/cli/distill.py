"""Replace a run's long filters by small recurrences, in a new run folder."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn._options.numbers import counted
from linrnn.cli._line.output import answer, joined, plain, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.progress import metric_text
from linrnn.errors import ArgumentError

if TYPE_CHECKING:
    from linrnn.train import DistilledRun, Score

EPILOG = """\
A layer of long convolutions stores its inputs. Its replacement has a state of constant size, so
the new run streams at a constant cost per step and can be exported. hyena becomes laughing_hyena;
sgconv, s4, s4d, dss and dlr become modal. Other layers stay as they are. Nothing is trained:
each filter is fitted over its first --length steps, and continues as a recurrence after them.

For each order, the first table has the relative errors of the filters of each layer, in the
Euclidean norm: the largest and the median over channels, and a lower bound of the largest for any
recurrence of that order. The second table has the effect on the validation data: the relative error
of the outputs, the loss and the metric. The new run has the last order. It contains both tables as
distillation.csv.

example: linrnn distill runs/lm-hyena-1 --order 4,8,16,32 --out runs/small"""

_ORDER = "real numbers in the state of each filter; several orders, separated by commas (16)"
_LENGTH = "number of steps over which filters are fitted (the length of the task's sequences)"
_EXAMPLES = "number of validation sequences to use, spread evenly (all)"
_OUT = "the new run folder, new or empty (the next free runs/TASK-MIXER-N)"


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("distill", __doc__, epilog=EPILOG)
    parser.add("run", type=Path, metavar="RUN", help="the run folder", kind="folder")
    parser.add("--order", default="16", metavar="N[,N...]", help=_ORDER)
    parser.add("--length", type=int, metavar="L", help=_LENGTH)
    parser.add("--examples", type=int, metavar="N", help=_EXAMPLES)
    parser.add("--out", type=Path, metavar="FOLDER", help=_OUT, kind="folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Distil a run, print how near it comes, and write the new run."""
    args = parser().parse_args(argv)
    orders = parse_orders(args.order)
    from linrnn.train import distill_run

    distilled = distill_run(
        args.run, orders, length=args.length, examples=args.examples, out=args.out
    )
    row("".join(f"{line}\n" for line in report(distilled)))
    answer(lambda: _record(distilled))
    return 0


def _record(distilled: "DistilledRun") -> dict[str, Any]:
    """The distilled run for JSON, with those errors of the filters that are printed."""
    orders = [
        {
            "order": fit.order,
            "n_state": fit.n_state,
            "outputs": fit.outputs,
            "score": plain(fit.score),
            "layers": [
                {"name": one.name, "kind": one.kind, "largest": one.largest}
                | {"median": one.median, "least": one.floor}
                for one in fit.layers
            ],
        }
        for fit in distilled.orders
    ]
    about = {"folder": distilled.folder, "mixer": distilled.mixer, "length": distilled.length}
    return joined(
        about, {"kept": distilled.kept, "before": plain(distilled.before), "orders": orders}
    )


def parse_orders(text: str) -> list[int]:
    """Orders with commas between them.

    Raises:
        ArgumentError: something else.

    Example:
        >>> parse_orders("4, 8")
        [4, 8]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", part, re.ASCII) for part in parts):
        raise ArgumentError(
            f"distill: --order must be like 16 or 4,8,16, each of at least 1, got {text!r:.80}."
        )
    return [int(part) for part in parts]


def report(distilled: "DistilledRun") -> list[str]:
    """The lines that are printed."""
    lines = [
        f"filters over {counted(distilled.length, 'step')}, their errors as part of their norms"
    ]
    layers = [layer.name for layer in distilled.orders[0].layers]
    width = max(5, *map(len, layers))
    lines.append(f"{'order':>6}  {'layer':<{width}}  {'largest':>9}  {'median':>9}  {'least':>9}")
    for fit in distilled.orders:
        for layer in fit.layers:
            numbers = (layer.largest, layer.median, layer.floor)
            cells = "  ".join(f"{value:>9.2g}" for value in numbers)
            lines.append(f"{fit.order:>6}  {layer.name:<{width}}  {cells}")
    original, name = distilled.before, distilled.before.metric_name
    lines += [
        "",
        f"outputs, loss and {name} on {counted(original.examples, 'validation sequence')}",
    ]
    lines.append(f"{'order':>6}  {'floats of state':>15}  {'outputs':>9}  {'loss':>9}  {name}")
    lines.append(f"{'before':>6}  {'-':>15}  {'-':>9}  {original.loss:>9.5g}  {_metric(original)}")
    for fit in distilled.orders:
        size, score = f"{fit.n_state:,}", fit.score
        lines.append(
            f"{fit.order:>6}  {size:>15}  {fit.outputs:>9.2g}  {score.loss:>9.5g}  {_metric(score)}"
        )
    if distilled.kept:
        lines += ["", f"as they were, for they have no long filters: {', '.join(distilled.kept)}"]
    last = distilled.orders[-1].order
    return [
        *lines,
        "",
        f"{distilled.folder} is the run of order {last}, with the mixer {distilled.mixer}",
    ]


def _metric(score: "Score") -> str:
    return metric_text(score.metric_name, score.metric).removeprefix(f"{score.metric_name} ")
