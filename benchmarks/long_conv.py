"""Cost of a long convolution's step, read online and as a product with all of its past.

A stream of random inputs passes kernels of several lengths. A step by the online convolution is
timed over as many steps as the kernel has taps, so that every size of block is made; a step as the
product of the last inputs with all taps without the copy that a state needs; and the same stream in
blocks of 64 against all of it at once. Processor time of one thread. Writes
``benchmarks/results/long-conv-cpu.md``. Exit code 1: blocks of 64 take more than 3 times the whole.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn.ops.conv.online_conv import Kernel, State, levels, read

LENGTHS = (1024, 4096, 16_384, 65_536)
BLOCK, SLOWER = 64, 3.0


def fresh(kernel: Kernel) -> dict[str, Any]:
    """A state that has read nothing."""
    nothing = kernel.taps.new_zeros(1, 0, kernel.taps.shape[0])
    return State(nothing, [nothing] * levels(kernel.taps.shape[1]))._asdict()


def stream(kernel: Kernel, x: Tensor, size: int, state: dict[str, Any]) -> Tensor:
    """All outputs for x (1, T, C), read in blocks of so many steps."""
    ys = []
    for block in x.split(size, 1):
        y, state = read("long_conv", kernel, block, state, None)
        ys.append(y)
    return torch.cat(ys, 1)


def product(recent: Tensor, past: Tensor, scratch: Tensor) -> Tensor:
    """One output (C,) from as many inputs (K, C) as there are taps, both oldest first."""
    # several times as fast as einsum or bmm here, and without fresh memory
    return torch.mul(recent, past, out=scratch).sum(0)


def seconds(run: Callable[[], object]) -> float:
    """Processor time of a call."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


@torch.no_grad()
def measure(length: int, channels: int, rounds: int) -> tuple[list[str], bool]:
    """A row, and whether blocks stay within what is allowed."""
    kernel = Kernel(torch.randn(channels, length) / length**0.5)
    x = torch.randn(1, length, channels)
    _, state = read("long_conv", kernel, x, fresh(kernel), None)
    step = seconds(lambda: stream(kernel, x, 1, state)) / length
    recent = kernel.taps.flip(1).t().contiguous()
    scratch = torch.empty_like(recent)
    plain = min(seconds(lambda: product(recent, x[0], scratch)) for _ in range(5 * rounds))
    whole = min(seconds(lambda: stream(kernel, x, length, fresh(kernel))) for _ in range(rounds))
    blocks = min(seconds(lambda: stream(kernel, x, BLOCK, fresh(kernel))) for _ in range(rounds))
    cells = [f"{length:,}", f"{step * 1e6:.0f}", f"{plain * 1e6:.0f}", f"{plain / step:.1f}"]
    cells += [f"{whole * 1e3:.1f}", f"{blocks * 1e3:.1f}", f"{blocks / whole:.2f}"]
    print(" | ".join(cells), file=sys.stderr, flush=True)
    return cells, blocks <= SLOWER * whole


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where blocks cost too much."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3, help="of measurements (3)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = [measure(length, options.channels, options.rounds) for length in options.lengths]
    kept = all(within for _, within in found)
    head = ["taps", "us a step", "us a product", "times faster"]
    head += ["ms at once", f"ms in blocks of {BLOCK}", "times the whole"]
    lines = ["# A long convolution, read online", ""]
    lines += conditions(command_line(), ("torch",))
    lines += [f"- one sequence of {options.channels} channels, float32; processor time", ""]
    lines += section("long_conv", table(head, [row for row, _ in found]))
    lines += [f"Blocks of {BLOCK} within {SLOWER:g} times the whole: {'yes' if kept else 'NO'}."]
    print("\n".join(lines))
    write_lines(options.out / "long-conv-cpu.md", lines)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
