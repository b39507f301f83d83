"""Cost at each threshold of the CPU kernels beside half and double of it.

A threshold divides two ways of computing the same thing: where it lies is a measurement, of one
machine on one day. This repeats it. Every row is one constant of the package and a call near the
place where it decides; the call is timed with the constant as it is and with others, in turn.
Writes ``benchmarks/results/thresholds-cpu.md``: times divided by that of the constant as it is.
One thread, unless a row says otherwise.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from _report import RESULTS, command_line, conditions, table, write_lines
from _timing import Candidate, in_turn, keep_memory
from linrnn import mixers, ops
from linrnn.backbone import SequenceModel

Call = Callable[[], object]


class Threshold(NamedTuple):
    """A constant, and a call that it decides."""

    module: str
    name: str
    others: tuple[float, ...]
    """In the place of the constant."""
    call: Callable[[], Call]
    what: str
    """The call, in words."""
    threads: int = 1


def trained(name: str, size: tuple[int, int, int], reset: bool = False, **options: Any) -> Call:
    """A training step of a layer."""
    torch.manual_seed(0)
    layer = mixers.load(name)(size[-1], **options)
    x = torch.randn(size, requires_grad=True)
    marks = {"reset": torch.rand(size[:2]) < 0.02} if reset else {}

    def call() -> None:
        layer(x, **marks)[0].sum().backward()

    return call


def by_definition(name: str, size: tuple[int, int, int]) -> Call:
    """A training step of a layer by PyTorch's operators."""
    call = trained(name, size)

    def run() -> None:
        with ops.use_backend("reference"):
            call()

    return run


def read(name: str, size: tuple[int, int, int], **options: Any) -> Call:
    """A whole sequence without a gradient."""
    torch.manual_seed(0)
    layer = mixers.load(name)(size[-1], **options).eval()
    x = torch.randn(size)

    def call() -> None:
        with torch.no_grad():
            layer(x)

    return call


def stepped(rows: int, **options: Any) -> Call:
    """64 steps of a whole model."""
    torch.manual_seed(0)
    model = SequenceModel(16, 16, pool="none", **options).eval()
    x = torch.randn(rows, 16)

    def call() -> None:
        state = model.init_state(rows)
        with torch.no_grad():
            for _ in range(64):
                _, state = model.step(x, state)

    return call


def memory_steps(time: int) -> Call:
    """Short calls of a matrix memory, as a decoder makes them."""
    q, k, v = torch.randn(3, 1, time, 4, 32).unbind(0)
    memory = torch.zeros(1, 4, 32, 32)
    return lambda: ops.outer_scan(q, k, v, initial_state=memory)


def online(width: int, count: int) -> Call:
    """A layer with a long filter, read step by step."""
    torch.manual_seed(0)
    layer = mixers.load("sgconv")(width).eval()
    x = torch.randn(1, count, width)

    def call() -> None:
        state = layer.init_state(1)
        with torch.no_grad():
            for t in range(count):
                _, state = layer.step(x[:, t], state)

    return call


TABLE = (
    Threshold(
        "linrnn.ops.attention",
        "QUERIES",
        (64, 128, 512, 1024),
        lambda: trained("attention", (1, 4096, 64), n_heads=2, window=2048),
        "a training step of attention in a window of 2,048, 64 channels, 1 row of 4,096 steps",
    ),
    Threshold(
        "linrnn.ops.attention.eviction",
        "STEPS",
        (16, 32, 128, 256),
        lambda: trained("attention", (2, 1024, 64), n_heads=2, window=64, evict="tova"),
        "a training step of attention that evicts (TOVA), 64 channels, 2 rows of 1,024 steps",
    ),
    Threshold(
        "linrnn.ops.selective_scan._cpu",
        "_ENOUGH",
        (1, 2, 8, 16),
        lambda: trained("mamba", (7, 512, 64)),
        "a training step of Mamba, 64 channels, 7 rows of 512 steps, 2 threads",
        2,
    ),
    Threshold(
        "linrnn.ops.conv.siso",
        "LONGEST",
        (32, 128, 256),
        lambda: trained("s4d", (4, 2048, 16), d_state=1024),
        "a training step of S4D, 16 channels, 512 modes, 4 rows of 2,048 steps",
    ),
    Threshold(
        "linrnn.ops.conv.siso",
        "RESET_BLOCK",
        (4, 8, 32, 64),
        lambda: trained("s4d", (4, 1024, 64), reset=True),
        "a training step of S4D with resets, 64 channels, 4 rows of 1,024 steps",
    ),
    Threshold(
        "linrnn.ops.conv.dplr",
        "RESET_BLOCK",
        (8, 32, 64),
        lambda: trained("s4", (4, 1024, 64), reset=True),
        "a training step of S4 with resets, 64 channels, 4 rows of 1,024 steps",
    ),
    Threshold(
        "linrnn.ops.conv._fft",
        "DIRECT",
        (8, 16, 64, 128),
        lambda: read("hyena", (1, 2048, 64), form="blocks"),
        "a sequence read by Hyena in blocks, 64 channels, 1 row of 2,048 steps",
    ),
    Threshold(
        "linrnn.ops.conv.online_conv",
        "NEAR",
        (32, 64, 256, 512),
        lambda: online(64, 1024),
        "1,024 single steps of SGConv, 64 channels",
    ),
    Threshold(
        "linrnn.ops.matrix._memory._again",
        "_STEPS",
        (0, 1),
        lambda: memory_steps(3),
        "`outer_scan` over 3 steps, 4 heads of 32 by 32",
    ),
    Threshold(
        "linrnn.engine.replay.program",
        "_MOST_ROWS",
        (1, 2, 8),
        lambda: stepped(4, mixer="lru", d_model=128),
        "64 steps of a model of 4 LRU layers of 128 channels, 4 rows",
    ),
    Threshold(
        "linrnn.engine.replay.tape",
        "_WORTH",
        (0.0, 1e9),
        lambda: stepped(1, mixer="lru", d_model=64),
        "64 steps of a model of 4 LRU layers of 64 channels",
    ),
    Threshold(
        "linrnn.ops.attention.path",
        "BLOCK",
        (16, 32, 128),
        lambda: trained("path_attention", (1, 1024, 64), n_heads=2),
        "a training step of PaTH attention, 64 channels, 1 row of 1,024 steps",
    ),
    Threshold(
        "linrnn.ops.conv.cauchy",
        "TILE",
        (2**17, 2**21),
        lambda: trained("s4", (1, 4096, 64)),
        "a training step of S4, 64 channels, 1 row of 4,096 steps",
    ),
    Threshold(
        "linrnn.ops.conv.dplr",
        "LONG",
        (512, 2048),
        lambda: trained("s4", (4, 1024, 64)),
        "a training step of S4, 64 channels, 4 rows of 1,024 steps",
    ),
    Threshold(
        "linrnn.ops.matrix.momentum_delta",
        "CHUNK",
        (16, 64),
        lambda: trained("momentum_delta_net", (2, 512, 64)),
        "a training step of Momentum DeltaNet, 64 channels, 2 rows of 512 steps",
    ),
    Threshold(
        "linrnn.ops.matrix._fenwick._blocks",
        "PAIRS",
        (16, 64),
        lambda: trained("log_linear_mamba2", (1, 2048, 64)),
        "a training step of log-linear Mamba-2, 64 channels, 1 row of 2,048 steps",
    ),
    Threshold(
        "linrnn.ops.matrix._fenwick._blocks",
        "ROWS",
        (2**18, 2**22),
        lambda: trained("log_linear_mamba2", (16, 1024, 64)),
        "a training step of log-linear Mamba-2, 64 channels, 16 rows of 1,024 steps",
    ),
    Threshold(
        "linrnn.ops.matrix._memory._definition",
        "HEAD_CHUNK",
        (16, 32, 128),
        lambda: by_definition("gated_delta_net", (4, 1024, 64)),
        "the same by PyTorch's operators",
    ),
    Threshold(
        "linrnn.ops.matrix._memory._definition",
        "CHANNEL_CHUNK",
        (4, 16),
        lambda: by_definition("gla", (4, 512, 64)),
        "a training step of GLA by PyTorch's operators, 64 channels, 4 rows of 512 steps",
    ),
    Threshold(
        "linrnn.ops.selective_scan._reference",
        "CHUNK",
        (16, 32, 128),
        lambda: by_definition("mamba", (4, 512, 64)),
        "a training step of Mamba by PyTorch's operators, 64 channels, 4 rows of 512 steps",
    ),
)


@contextmanager
def replaced(threshold: Threshold, value: float) -> Iterator[None]:
    """Compute with another number in the place of a constant."""
    module = importlib.import_module(threshold.module)
    before = getattr(module, threshold.name)
    setattr(module, threshold.name, value)
    try:
        yield
    finally:
        setattr(module, threshold.name, before)


def measure(threshold: Threshold, options: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    torch.set_num_threads(threshold.threads)
    constant = getattr(importlib.import_module(threshold.module), threshold.name)

    def candidate(value: float) -> Candidate:
        with replaced(threshold, value):
            call = threshold.call()

        def run() -> None:
            with replaced(threshold, value):
                call()

        return Candidate(run)

    values = (constant, *threshold.others)
    calls = {f"{value:g}": candidate(value) for value in values}
    times = in_turn(calls, seconds=options.seconds, limit=60.0)
    ratios = [
        f"{name}: {times[name].seconds / times[f'{constant:g}'].seconds:.2f}"
        for name in sorted(calls, key=float)
        if name != f"{constant:g}"
    ]
    place = f"`{threshold.module.removeprefix('linrnn.')}.{threshold.name}`"
    print(place, constant, *ratios, file=sys.stderr, flush=True)
    return [place, f"{constant:g}", ", ".join(ratios), threshold.what]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="a value (default: 3)")
    parser.add_argument("--only", nargs="*", help="names of constants; then nothing is written")
    options = parser.parse_args()
    keep_memory()
    chosen = [x for x in TABLE if not options.only or x.name in options.only]
    rows = [measure(x, options) for x in chosen]
    if options.only:
        return
    head = ["constant", "value", "time with others, times that of the value", "call"]
    lines = ["# Thresholds of the CPU kernels", "", *conditions(command_line(), ["torch"]), ""]
    write_lines(RESULTS / "thresholds-cpu.md", [*lines, *table(head, rows)])


if __name__ == "__main__":
    main()
