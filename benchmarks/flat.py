"""Whether a token costs the same at position 1 and at position 1,000,000 of one stream.

A small language model reads random tokens without a stop; its states at some positions are kept.
Then a step from each is timed, in a new random order every round, by what the processor spends on
it, so that a busy machine hits all alike. Writes ``benchmarks/results/flat-cpu.md``: time of a
step, numbers in the state, and memory of the process when it got there. Exit code 1: a step from
one of the positions takes a tenth longer than from another, or memory grew by more than 16 MB.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from _decoders import SIZES, our_model
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import return_free_memory
from linrnn.state import n_floats
from linrnn.streaming import CHUNK, fresh
from linrnn.typing import State

KINDS = ("rwkv", "mamba", "mingru")
POSITIONS = (1, 1000, 10_000, 100_000, 1_000_000)
SLOWER, MEGABYTES = 1.1, 16.0
WARM, REPEAT = 8, 5


class Place(NamedTuple):
    """A stream at a position: how many tokens it has read, and what the process then holds."""

    position: int
    state: State
    megabytes: float


def resident() -> float:
    """Megabytes this process holds now; NaN where that cannot be read."""
    return_free_memory()  # what the allocator keeps for later comes and goes
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(x.split()[1]) / 1024 for x in lines if x.startswith("VmRSS")), float("nan"))


@torch.inference_mode()
def places(model: torch.nn.Module, vocabulary: int, positions: Sequence[int]) -> list[Place]:
    """One stream of random tokens, at each position just before it reads that token."""
    model.features(
        torch.randint(vocabulary, (1, CHUNK)), fresh(model, 1)
    )  # buffers find their size
    state, read, found = fresh(model, 1), 0, []
    for position in positions:
        while read < position - 1:
            count = min(CHUNK, position - 1 - read)
            state = model.features(torch.randint(vocabulary, (1, count)), state)[1]
            read += count
        found.append(Place(position, state, resident()))
    return found


@torch.inference_mode()
def times(model: torch.nn.Module, found: Sequence[Place], rounds: int) -> list[float]:
    """Seconds of a step from each place: first deciles over rounds of a few steps."""
    token, samples = torch.zeros(1, dtype=torch.long), [[] for _ in found]
    for _ in range(rounds):
        for i in random.sample(range(len(found)), len(found)):
            start = time.thread_time()
            for _ in range(REPEAT):
                model.step(token, found[i].state)[0].argmax()
            samples[i].append((time.thread_time() - start) / REPEAT)
    return [statistics.quantiles(s, n=10)[0] for s in samples]


def measure(kind: str, options: argparse.Namespace) -> tuple[list[list[str]], bool]:
    """A row a position, and whether the cost stayed the same."""
    size = SIZES[options.size]
    model = our_model(kind, size)
    found = places(model, size.vocabulary, options.positions)
    seconds, first = times(model, found, options.rounds), found[0].megabytes
    rows = []
    for p, taken in zip(found, seconds, strict=True):
        cells = (f"{taken * 1e3:.3f}", f"{taken / min(seconds):.2f}", f"{n_floats(p.state):,}")
        name = f"{type(model.mixers[0]).__name__}, token {p.position:,}"
        rows.append([name, *cells, f"{p.megabytes - first:+.1f}"])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    grown = max(p.megabytes for p in found) - first
    return rows, max(seconds) <= SLOWER * min(seconds) and not grown > MEGABYTES


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a later token costs more."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=list(SIZES), default="0.1M", help="of the models (0.1M)")
    parser.add_argument("--positions", nargs="+", type=int, default=list(POSITIONS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=300, help="of measurements (300)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = [measure(kind, options) for kind in options.kinds]
    flat = all(kept for _, kept in results)
    head = ["position", "ms a token", "of the fastest", "numbers in the state", "MB added"]
    lines = ["# One token, early and late in a stream", ""]
    lines += conditions(command_line(), ("torch",))
    lines += [f"- models of some {options.size} parameters; processor time, first deciles", ""]
    lines += section("flat", table(head, [row for rows, _ in results for row in rows]))
    lines += [
        f"Within {SLOWER:g} times the fastest and {MEGABYTES:g} MB: {'yes' if flat else 'NO'}."
    ]
    print("\n".join(lines))
    write_lines(options.out / "flat-cpu.md", lines)
    return int(not flat)


if __name__ == "__main__":
    sys.exit(main())
