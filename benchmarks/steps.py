"""How fast a streaming step of a model of each mixer is: recorded, and as the operators it runs as.

Six layers at one sequence by default. Prints a table of microseconds a step and the ratio, and what
keeps a mixer from being recorded; writes ``benchmarks/results/steps-cpu.md``. Operators are those
of the whole model, none of whose layers is recorded alone.

A second table is what reinforcement learning and control pay: a call of `linrnn.RNN` with one step
beside those of PyTorch's recurrent layers, with a mark where sequences begin, by operators, and as
a bare layer; and how long the first one takes, which is recorded. It is written to
``one-step-cpu.md``.
"""

import argparse
import copy
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn
from linrnn import RNN, SequenceModel
from linrnn.engine.replay import step
from linrnn.mixers import load, names
from linrnn.ops import explain

TABLES = ("models", "one step")


def never(x: object) -> bool:
    """Whether a step may be recorded, for those that are not to be; a plain function costs 2 µs."""
    return False


def by_operators(model: SequenceModel, x: torch.Tensor, state: Any) -> Any:
    """A step of which nothing is recorded."""
    with mock.patch.object(step, "ready", never):
        return model.step(x, state)


def measure(mixer: str, options: argparse.Namespace) -> list[str]:
    """A row of the table."""
    torch.manual_seed(0)
    model = SequenceModel(
        *(options.d_model, options.d_model),
        **{"mixer": mixer, "d_model": options.d_model, "n_layers": options.layers},
        **{"block": options.block, "pool": options.pool},
    ).eval()
    x = torch.randn(options.batch, options.d_model)
    said = explain(model.step, x, model.init_state(options.batch))
    with torch.no_grad():
        _, state = model.step(x, model.init_state(options.batch))
        calls = {
            "operators": Candidate(lambda: by_operators(model, x, state)),
            "step": Candidate(lambda: model.step(x, state)),
        }
        if not said.startswith("one native call"):
            del calls["step"]
        found = in_turn(calls, seconds=options.seconds, limit=60.0)
    operators = found["operators"].seconds
    if "step" not in found:
        return [mixer, f"{1e6 * operators:.0f}", "-", "-", said]
    recorded = found["step"].seconds
    times = (f"{1e6 * t:.0f}" for t in (operators, recorded))
    return [mixer, *times, f"{operators / recorded:.1f}×", ""]


def one_step(mixer: str, options: argparse.Namespace) -> list[str]:
    """A row of the second table: times of nn.GRU's call, in the same turns."""
    torch.manual_seed(0)
    batch, width = options.rows, options.width
    x, mark = torch.randn(1, batch, width), torch.zeros(1, batch, dtype=torch.bool)
    net, layer = RNN(mixer, width, width).eval(), load(mixer)(width).eval()
    calls = {}
    with torch.no_grad():
        for kind in (nn.GRU, nn.LSTM, nn.RNN):
            theirs = kind(width, width)
            _, theirs_hx = theirs(x)
            calls[kind.__name__] = Candidate(partial(theirs, x, theirs_hx))
        hx, state = net.init_state(batch), layer.init_state(batch)
        _, hx = net(x, hx)  # which also imports what is needed
        again = copy.deepcopy(net)
        begin = time.perf_counter()
        again(x, hx)
        first = time.perf_counter() - begin
        _, state = layer.step(x[0], state)
        calls |= {
            "call": Candidate(lambda: net(x, hx)),
            "mark": Candidate(lambda: net(x, hx, reset=mark)),
            "operators": Candidate(lambda: call_by_operators(net, x, hx)),
            "layer": Candidate(lambda: layer(x.transpose(0, 1), state)),
            "step": Candidate(lambda: layer.step(x[0], state)),
        }
        found = in_turn(calls, seconds=options.seconds, limit=60.0, max_calls=99)
    of_gru = {name: t.seconds / found["GRU"].seconds for name, t in found.items() if name != "GRU"}
    return [
        *(mixer, f"{1e6 * found['GRU'].seconds:.0f}"),
        *(f"{ratio:.2f}" for ratio in of_gru.values()),
        f"{1e3 * first:.1f}",
    ]


def call_by_operators(net: RNN, *args: Any) -> Any:
    """A call of which nothing is recorded; beside it `mock` would take most of the time."""
    ready, step.ready = step.ready, never
    try:
        return net(*args)
    finally:
        step.ready = ready


ONE_STEP = [
    *("mixer", "nn.GRU [µs]", "nn.LSTM", "nn.RNN", "RNN", "RNN, reset=", "RNN, operators"),
    *("layer", "layer.step", "first call [ms]"),
]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models: does everything run?")
    parser.add_argument("--mixers", nargs="+", choices=names(), default=names())
    parser.add_argument("--d-model", type=int, default=256, help="width (256)")
    parser.add_argument("--layers", type=int, default=6, help="layers (6)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (1)")
    parser.add_argument("--width", type=int, default=24, help="of the second table (24)")
    parser.add_argument("--rows", type=int, default=8, help="sequences of the second table (8)")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--block", default="glu", help="see SequenceModel (glu)")
    parser.add_argument("--pool", default="mean", help="see SequenceModel (mean)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (1)")
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at, a candidate (1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    if options.quick:
        options.d_model, options.layers, options.seconds = 8, 1, 0.01
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = parse(argv)
    torch.set_num_threads(options.threads)
    if "models" in options.tables:
        of_models(options)
    if "one step" in options.tables:
        of_one_step(options)
    return 0


def of_one_step(options: argparse.Namespace) -> None:
    """The second table."""
    rows = [one_step(mixer, options) for mixer in options.mixers]
    lines = ["# One step on a CPU", "", *conditions(command_line(), ["torch"])]
    sizes = f"{options.rows} sequences of {options.width} channels"
    lines += [f"- {sizes}, in multiples of nn.GRU's time of the same turns; medians", ""]
    lines += section("steps", table(ONE_STEP, rows))
    print("\n".join(lines))
    write_lines(options.out / "one-step-cpu.md", lines)


def of_models(options: argparse.Namespace) -> None:
    """The first table."""
    rows = [measure(mixer, options) for mixer in options.mixers]
    lines = ["# Streaming steps on a CPU", "", *conditions(command_line(), ["torch"])]
    lines += [f"- {options.layers} layers, d_model {options.d_model}, batch {options.batch}, block "
              f"{options.block}, pool {options.pool}; medians, in turn"]  # fmt: skip
    head = ["mixer", "operators [µs]", "step [µs]", "times faster", "why not"]
    lines += ["", *section("steps", table(head, rows))]
    print("\n".join(lines))
    write_lines(options.out / "steps-cpu.md", lines)


if __name__ == "__main__":
    sys.exit(main())
