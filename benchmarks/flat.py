"""Whether a token costs the same at position 1 and at position 1,000,000 of one stream.

A small language model reads random tokens without a stop; its states at some positions are kept.
Then a step from each is timed, everyone in turn. Writes ``benchmarks/results/flat-cpu.md``: time of
a step, numbers in the state, and memory of the process when it got there. Exit code 1: a step from
one of the positions takes a tenth longer than from another, or memory grew by more than 16 MB.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from _decoders import SIZES, our_model
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn
from linrnn.state import n_floats
from linrnn.streaming import CHUNK, fresh
from linrnn.typing import State

KINDS = ("rwkv", "mamba", "mingru")
POSITIONS = (1, 1000, 10_000, 100_000, 1_000_000)
SLOWER, MEGABYTES = 1.1, 16.0


class Place(NamedTuple):
    """A stream at a position: how many tokens it has read, and what the process then holds."""

    position: int
    state: State
    megabytes: float


def resident() -> float:
    """Megabytes this process has in memory now; NaN where that cannot be read."""
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
def measure(kind: str, options: argparse.Namespace) -> tuple[list[list[str]], bool]:
    """A row a position, and whether the cost stayed the same."""
    size = SIZES[options.size]
    model = our_model(kind, size)
    found, token = (
        places(model, size.vocabulary, options.positions),
        torch.zeros(1, dtype=torch.long),
    )
    calls = {
        str(p.position): Candidate(lambda s=p.state: model.step(token, s)[0].argmax())
        for p in found
    }
    times = in_turn(calls, seconds=options.seconds, limit=60, max_calls=options.calls)
    least = min(t.seconds for t in times.values())
    rows = []
    for p in found:
        seconds = times[str(p.position)].seconds
        cells = (f"{seconds * 1e3:.3f}", f"{seconds / least:.2f}", f"{n_floats(p.state):,}")
        name = f"{type(model.mixers[0]).__name__}, token {p.position:,}"
        rows.append([name, *cells, f"{p.megabytes - found[0].megabytes:+.1f}"])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    slowest = max(t.seconds for t in times.values()) / least
    grown = max(p.megabytes for p in found) - found[0].megabytes
    return rows, slowest <= SLOWER and not grown > MEGABYTES


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a later token costs more."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=list(SIZES), default="1M", help="of the models (1M)")
    parser.add_argument("--positions", nargs="+", type=int, default=list(POSITIONS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=3.0, help="aimed at, a position (3)")
    parser.add_argument("--calls", type=int, default=101, help="measurements at most (101)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = [measure(kind, options) for kind in options.kinds]
    flat = all(kept for _, kept in results)
    head = ["position", "ms a token", "of the fastest", "numbers in the state", "MB added"]
    lines = ["# One token, early and late in a stream", ""]
    lines += [
        *conditions(command_line(), ("torch",)),
        f"- models of about {options.size} parameters",
    ]
    lines += ["- medians of single steps, all positions in turn", ""]
    lines += section("flat", table(head, [row for rows, _ in results for row in rows]))
    lines += [
        f"Within {SLOWER:g} times the fastest and {MEGABYTES:g} MB: {'yes' if flat else 'NO'}."
    ]
    print("\n".join(lines))
    write_lines(options.out / "flat-cpu.md", lines)
    return int(not flat)


if __name__ == "__main__":
    sys.exit(main())
