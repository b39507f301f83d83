"""The speed of layers of segments on a CPU, beside their own products and windowed attention.

Prints the median times of a forward and of one with all gradients, in turn with the matrix products
and softmaxes that the layer itself asks for, alone; what a token of a training step costs, in time
and in memory, as sequences get longer; and what a streamed token costs, in the mean over whole
segments with their writes, in turn with attention of a window as long, beside the products of one
step. Writes ``benchmarks/results/segments-cpu.md``. Segments of 256 steps, 256 channels in four
heads. One thread; freed memory is kept, as `linrnn train` does.
"""

import argparse
import inspect
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from _peak import OPTION, megabytes, print_peak
from _products import products_of
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn, keep_memory
from linrnn import mixers
from sequential import Size, call

ATTENTION = "attention"
TRAINED = Size(8, 1024, 256)
LENGTHS = (1024, 4096, 16384)
MEMORY_LIMIT = 300  # seconds
_REPEATS = 100  # of the products of a step, which are too short to be timed alone


def names() -> list[str]:
    """Every causal layer of the family, found in the catalogue."""
    every = [name for name in mixers.names() if mixers.load(name).family == "segment"]
    return [name for name in every if mixers.load(name).causal]


def built(name: str, width: int, segment: int) -> torch.nn.Module:
    """A layer with segments, or a window, of that length."""
    torch.manual_seed(0)
    kind = mixers.load(name)
    known = inspect.signature(kind).parameters
    sizes = {"window": segment} if name == ATTENTION else {"segment": segment}
    layer: torch.nn.Module = kind(width, **{n: x for n, x in sizes.items() if n in known})
    return layer


def training(options: argparse.Namespace) -> list[str]:
    """The table of a training step, and of its own products."""
    rows = []
    for name in options.only or (*names(), ATTENTION):
        layer = built(name, options.size.width, options.segment)
        x = torch.randn(*options.size)
        cells, ratios = [], []
        for train in (False, True):
            own = call(layer, x.clone(), train, None)
            products = products_of(own.call)
            group = {"layer": own, "products": Candidate(products.run)}
            times = in_turn(group, seconds=options.seconds, limit=options.limit)
            cells += [times["layer"].text(), times["products"].text()]
            ratios.append(f"{times['layer'].seconds / times['products'].seconds:.2f}")
        rows.append([name, *cells, *ratios])
        print(f"{name}: trained", file=sys.stderr, flush=True)
    head = ["layer", "forward [ms]", "its products alone", "with gradients [ms]"]
    head += ["its products alone", "forward, times its products", "with gradients, times them"]
    title = f"## A training step, {options.size.text()}, segments of {options.segment}"
    return [title, "", *section("training", table(head, rows))]


def lengths(options: argparse.Namespace) -> list[str]:
    """The table of training steps of one sequence that gets longer."""
    rows = []
    for name in options.only or (*names(), ATTENTION):
        layer = built(name, options.size.width, options.segment)
        calls = {
            str(time): call(layer, torch.randn(1, time, options.size.width), True, None)
            for time in options.lengths
        }
        times = in_turn(calls, seconds=options.seconds, limit=options.limit)
        per_token = [f"{1e6 * times[str(time)].seconds / time:.1f}" for time in options.lengths]
        peaks = [
            megabytes(__file__, name, options.segment, time, options.size.width, limit=MEMORY_LIMIT)
            for time in options.lengths
        ]
        rows.append([name, *per_token, *peaks])
        print(f"{name}: lengths", file=sys.stderr, flush=True)
    head = ["layer", *(f"µs a token, {time:,} tokens" for time in options.lengths)]
    head += [f"MB, {time:,}" for time in options.lengths]
    return ["## Longer sequences", "", *section("lengths", table(head, rows))]


def measure_memory(name: str, segment: int, time: int, width: int) -> None:
    """Print the bytes of one training step."""
    layer = built(name, width, segment)
    sizes = ((1, min(64, time), width), (1, time, width))
    print_peak(*(call(layer, torch.randn(*size), True, None).call for size in sizes))


def streaming(options: argparse.Namespace) -> list[str]:
    """The table of streamed tokens."""
    chosen = (*(options.only or names()), ATTENTION)
    calls = {
        name: Candidate(_streamed(built(name, options.size.width, options.segment), options))
        for name in dict.fromkeys(chosen)
    }
    found = in_turn(calls, seconds=options.seconds, limit=options.limit)
    own = in_turn(
        {
            name: Candidate(_late(built(name, options.size.width, options.segment), options))
            for name in calls
        },
        seconds=options.seconds,
        limit=options.limit,
    )
    rows = []
    for name, time in found.items():
        token, products = time.seconds / (2 * options.segment), own[name].seconds / _REPEATS
        theirs = found[ATTENTION].seconds / (2 * options.segment)
        cells = f"{1e6 * token:.0f}", f"{token / theirs:.2f}", f"{1e6 * products:.0f}"
        rows.append([name, *cells, f"{products / theirs:.2f}"])
    head = ["layer", "µs a token", f"times {ATTENTION}'s", "its products alone [µs]"]
    head += [f"these, times {ATTENTION}'s token"]
    title = f"## A streamed token, {options.size.width} channels, segments of {options.segment}"
    return [title, "", *section("streaming", table(head, rows))]


def _streamed(layer: Any, options: argparse.Namespace) -> Callable[[], None]:
    """Two segments of tokens, from a state that two others left."""
    inputs = torch.randn(2 * options.segment, 1, options.size.width)
    with torch.no_grad():
        _, start = layer.eval()(inputs.transpose(0, 1))
    again = cycle(inputs)

    def stream() -> None:
        state = start
        with torch.no_grad():
            for _ in range(2 * options.segment):
                _, state = layer.step(next(again), state)

    return stream


def _late(layer: Any, options: argparse.Namespace) -> Callable[[], None]:
    """The products and softmaxes of one step, the last but one of its segment, again and again."""
    inputs = torch.randn(1, 2 * options.segment - 1, options.size.width)
    with torch.no_grad():
        _, state = layer.eval()(inputs[:, :-1])
        found = products_of(lambda: layer.step(inputs[:, -1], state))

    def run() -> None:
        with torch.no_grad():
            for _ in range(_REPEATS):
                found.run()

    return run


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="aimed at for each (1.5)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a call may take (60)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", nargs="+", help="these layers alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "segments-cpu.md")
    parser.add_argument(OPTION, nargs=4, metavar=("LAYER", "SEGMENT", "TIME", "CHANNELS"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        name, *sizes = options.memory_of
        measure_memory(name, *map(int, sizes))
        return
    keep_memory()
    options.size, options.lengths, options.segment = TRAINED, LENGTHS, 256
    if options.quick:
        options.size, options.lengths, options.segment = Size(2, 32, 8), (16, 32), 8
    lines = [*training(options), *lengths(options), *streaming(options)]
    head = ["# Layers of segments on a CPU", ""]
    write_lines(options.output, [*head, *conditions(command_line(), ["torch"]), "", *lines])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
