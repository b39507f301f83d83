"""How fast a streaming step of a model of each mixer is: recorded, and as the operators it runs as.

Six layers at one sequence by default. Prints a table of microseconds a step and the ratio, and what
keeps a mixer from being recorded; writes ``benchmarks/results/steps-cpu.md``. Operators are those
of the whole model, none of whose layers is recorded alone.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn
from linrnn import SequenceModel
from linrnn.engine.replay import step
from linrnn.mixers import names
from linrnn.ops import explain


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


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models: does everything run?")
    parser.add_argument("--mixers", nargs="+", choices=names(), default=names())
    parser.add_argument("--d-model", type=int, default=256, help="width (256)")
    parser.add_argument("--layers", type=int, default=6, help="layers (6)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (1)")
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
    rows = [measure(mixer, options) for mixer in options.mixers]
    lines = ["# Streaming steps on a CPU", "", *conditions(command_line(), ["torch"])]
    lines += [f"- {options.layers} layers, d_model {options.d_model}, batch {options.batch}, block "
              f"{options.block}, pool {options.pool}; medians, in turn"]  # fmt: skip
    head = ["mixer", "operators [µs]", "step [µs]", "times faster", "why not"]
    lines += ["", *section("steps", table(head, rows))]
    print("\n".join(lines))
    write_lines(options.out / "steps-cpu.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
