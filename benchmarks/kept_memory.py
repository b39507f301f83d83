"""Time that `linrnn.keep_memory` saves in a training step, and its cost in memory.

Each layer in a process of its own, once with the allocator as it is and once told to keep: the
time of the processor in the program and in the system, pages mapped anew, and the largest size of
the process. Writes ``benchmarks/results/kept-memory.md``.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import linrnn
from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import mixers

D_MODEL = 256
SHAPES = ((8, 1024), (1, 16384))
LAYERS = ("mingru", "lru", "s4d", "gla", "mamba", "mamba2", "mlstm")
STEPS = 3


def measure(name: str, batch: int, time: int) -> dict[str, float]:
    """A training step of this process: seconds in program and system, faults, megabytes."""
    torch.manual_seed(0)
    layer = mixers.build(name, D_MODEL)
    x = torch.randn(batch, time, D_MODEL, requires_grad=True)
    sources = [x, *layer.parameters()]

    def step() -> None:
        torch.autograd.grad(layer(x)[0].sum(), sources, allow_unused=True)

    step(), step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(STEPS):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "program": (after.ru_utime - before.ru_utime) / STEPS,
        "system": (after.ru_stime - before.ru_stime) / STEPS,
        "pages": (after.ru_minflt - before.ru_minflt) / STEPS,
        "peak": after.ru_maxrss * 1024 / 1e6,
    }


def in_a_process(name: str, shape: tuple[int, int], keep: bool) -> dict[str, float]:
    """`measure` in one of its own, with or without `keep_memory`."""
    words = [sys.executable, __file__, "--one", name, *map(str, shape)]
    environment = {**os.environ, "LINRNN_KEEP_MEMORY": "1" if keep else "0"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def row(name: str, shape: tuple[int, int]) -> list[str]:
    """The row of one layer and shape: before, with kept memory, and the share of time saved."""
    before, kept = (in_a_process(name, shape, keep) for keep in (False, True))
    whole = [one["program"] + one["system"] for one in (before, kept)]
    cells = [f"{1e3 * one[key]:.0f}" for key in ("program", "system") for one in (before, kept)]
    pages = [f"{one['pages']:,.0f}" for one in (before, kept)]
    peaks = [f"{one['peak']:,.0f}" for one in (before, kept)]
    saved = f"{100 * (1 - whole[1] / whole[0]):.0f} %"
    return [f"`{name}` {shape}", *(" → ".join(cells[i : i + 2]) for i in (0, 2)),
            " → ".join(pages), " → ".join(peaks), saved]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", default=LAYERS)
    parser.add_argument("--length", type=int, default=None, help="one row of so many steps alone")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    parser.add_argument("--one", nargs=3, default=None, help="print one measurement and stop")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.one:
        linrnn.keep_memory()
        print(json.dumps(measure(options.one[0], int(options.one[1]), int(options.one[2]))))
        return 0
    shapes = SHAPES if options.length is None else ((1, options.length),)
    head = ["layer (batch, time)", "in the program [ms]", "in the system [ms]"]
    head += ["pages mapped a step", "peak of the process [MB]", "saved"]
    rows = table(head, [row(name, shape) for shape in shapes for name in options.layers])
    lines = ["# Memory that is kept", "", *conditions(command_line(), ["torch"])]
    lines += [f"- one layer of width {D_MODEL}, float32, forward and backward; time of the"
              f" processor, mean of {STEPS}; as it is → kept", ""]  # fmt: skip
    lines += section("kept", rows)
    print("\n".join(lines))
    write_lines(options.out / "kept-memory.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
