"""Cost of learning online: a step of each rule by the length read before, and its traces.

Prints three tables: time and memory of a step after more and more steps, beside back-propagation
through all of them; a step of an LRU and of a minGRU beside its traces, which are one native call
for each linear map, and beside the whole of what is learned from it, with traces, without, and by
the rule written out by hand; and chunks with traces beside chunks without.
Writes ``benchmarks/results/learning-cpu.md``. ``--quick`` checks that everything runs.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, Timing, in_turn, keep_memory
from _traces import WRITTEN_OUT
from linrnn import SequenceModel, learn, mixers
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Learner, Loop
from linrnn.learn._exact.step_derivatives import stepped
from linrnn.learn._exact.traces import linear_name
from linrnn.ops.linear.traces import learned
from linrnn.state import leaves
from linrnn.typing import State

STEPS = 20
"""In a row, as a stream takes them: a single one would be timed with caches that others filled."""
FLOORS = {"traces": 3.0, "chunks": 2.0}  # times a step alone, and a chunk of back-propagation
ALONE, TRACES = "a step", "its traces and their gradients, in native code"


class Layer(nn.Module):
    """A mixer alone, as a learner takes a model."""

    def __init__(self, mixer: str, width: int) -> None:
        super().__init__()
        self.mixer = mixers.load(mixer)(width)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Outputs and state."""
        found: tuple[Tensor, State] = self.mixer(x, state)
        return found


class Stream:
    """A learner at some place of a sequence, one piece after the other.

    Args:
        rule: the learner.
        model: that it trains.
        x: of a piece, which is read again and again.
    """

    def __init__(self, rule: Learner, model: nn.Module, x: Tensor, d_output: int) -> None:
        self.rule, self.model, self.state = rule, model, None
        self.batch = Batch(x, torch.zeros(*x.shape[:2], d_output), None, None)

    def step(self) -> None:
        """Gradients of one more piece."""
        self.model.zero_grad(set_to_none=True)
        self.state = self.rule.step(self.model, self.batch, self.state, Loop(mse_loss)).state


def steps_in_turn(
    calls: Mapping[str, Callable[[], object]], options: argparse.Namespace
) -> dict[str, Timing]:
    """Seconds of one step or chunk each, of some in a row."""

    def repeated(call: Callable[[], object]) -> Candidate:
        def run() -> None:
            for _ in range(STEPS):
                call()

        return Candidate(run)

    candidates = {name: repeated(call) for name, call in calls.items()}
    found = in_turn(candidates, seconds=options.seconds, limit=options.limit)
    return {name: time._replace(seconds=time.seconds / STEPS) for name, time in found.items()}


def kept(call: Callable[[], object]) -> int:
    """Bytes that autograd keeps for the backward passes of a call, all together."""
    found: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return sum(found.values())


def remembered(stream: Stream) -> int:
    """Bytes that a learner and a model carry from one step to the next."""
    tensors = [*stream.rule.state_dict().values(), *leaves(stream.state)]
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, Tensor))


def flat_rows(options: argparse.Namespace) -> list[list[str]]:
    """A row for each rule: milliseconds and kilobytes a step, after each number of steps."""
    rows = []
    for name in learn.names():
        torch.manual_seed(0)
        model = SequenceModel(
            8, 8, mixer="mingru", d_model=options.small, n_layers=1, norm="layer", pool="none"
        )
        rule = learn.build(name)
        try:
            rule.check(model)
        except ArgumentError as refused:
            rows.append([name, *["-"] * len(options.lengths), str(refused).partition(". ")[0]])
            continue
        rows.append([name, *_flat(Stream(rule, model, torch.randn(1, 1, 8), 8), options), ""])
    cells = []
    for length in options.lengths:
        stream = Stream(learn.build("bptt"), model, torch.randn(1, length, 8), 8)

        def whole(stream: Stream = stream) -> None:
            stream.state = None
            stream.step()

        taken = in_turn({"bptt": Candidate(whole)}, seconds=options.seconds, limit=options.limit)
        cells.append(f"{taken['bptt'].text()}, {kept(whole) / 1e3:.0f}")
    return [*rows, ["bptt of all of them", *cells, "for the whole, not for a step"]]


def _flat(stream: Stream, options: argparse.Namespace) -> list[str]:
    cells, done = [], 0
    for length in options.lengths:
        for _ in range(length - done):
            stream.step()
        taken = steps_in_turn({"step": stream.step}, options)
        cells.append(f"{taken['step'].text()}, {remembered(stream) / 1e3:.0f}")
        done = length
    return cells


def check_agreement(mixer: str) -> None:
    """Stop unless the rule written out finds what `diagonal_rtrl` does."""
    torch.manual_seed(0)
    layer = Layer(mixer, 6).double()
    x, target = torch.randn(2, 9, 6).double(), torch.randn(2, 9, 6).double()
    rule = learn.build("diagonal_rtrl")
    rule.step(layer, Batch(x, target, None, None), None, Loop(mse_loss))
    written, sums, state = WRITTEN_OUT[mixer](layer.mixer, 2), {}, layer.mixer.init_state(2)
    for t in range(9):
        with torch.no_grad():
            y, state = layer.mixer.step(x[:, t], state)
        for name, g in written.step(x[:, t], 2 * (y - target[:, t]) / target.numel()).items():
            sums[name] = sums.get(name, 0) + g
    for name, p in layer.mixer.named_parameters():
        torch.testing.assert_close(sums[name], p.grad, rtol=1e-9, atol=1e-12)


def natively(stream: Stream) -> Callable[[], None]:
    """The cost of traces alone in a step: they go on, and give the weights their gradients."""
    layer = stream.model.mixer
    found, traces = stepped(layer), dict(stream.rule.traces["mixer"])
    rows, parts, channels = len(stream.batch.x), len(found.owners.parts), found.owners.channels
    keep, credit = torch.rand(rows, parts, parts, channels) / 2, torch.rand(parts, rows, channels)
    maps = found.linears.index
    gains = {place: torch.rand(rows, len(index)) for place, index in maps.items()}

    def run() -> None:
        for place, gain in gains.items():
            name = linear_name(place)
            index, pairs = found.index[name], found.pairs.get(name)
            slope = keep.new_ones(rows, parts, len(index))
            x = stream.batch.x[:, 0]
            traces[name], _ = learned(traces[name], keep, index, slope, x, credit, gain, pairs)

    return run


def trace_rows(options: argparse.Namespace) -> list[list[str]]:
    """A step alone, learned with traces and without, and the limits: two columns for each layer."""
    columns = []
    for mixer in WRITTEN_OUT:
        check_agreement(mixer)
        torch.manual_seed(0)
        layer, x = Layer(mixer, options.width), torch.randn(options.rows, 1, options.width)
        stream = Stream(learn.build("diagonal_rtrl"), layer, x, options.width)
        stream.step()
        written, dy = WRITTEN_OUT[mixer](layer.mixer, options.rows), torch.randn_like(x[:, 0])
        state = layer.mixer.init_state(options.rows)
        trace = torch.cat([t.flatten() for t in stream.rule.state_dict().values()])

        def alone(layer: Layer = layer, x: Tensor = x, state: State = state) -> None:
            with torch.no_grad():
                layer.mixer.step(x[:, 0], state)

        calls = {
            ALONE: alone,
            TRACES: natively(stream),
            "`torch.add` on the traces": lambda trace=trace: torch.add(trace, trace, out=trace),
            "learned without traces": Stream(
                learn.build("tbptt", {"window": 1}), layer, x, options.width
            ).step,
            "learned with traces": stream.step,
            "learned with traces, by hand": lambda w=written, x=x, dy=dy: w.step(x[:, 0], dy),
        }
        found = steps_in_turn(calls, options)
        times = {name: time.seconds / found[ALONE].seconds for name, time in found.items()}
        said = {name: f"{n:.2g}×" for name, n in times.items()}
        said[TRACES] += f" ({_judged(times[TRACES], 'traces')})"
        columns.append([{name: time.text() for name, time in found.items()}, said])
    return [[name, *(part[name] for both in columns for part in both)] for name in columns[0][0]]


def chunk_rows(options: argparse.Namespace) -> list[list[str]]:
    """A row for each layer: a chunk with traces, and without."""
    rows = []
    for mixer in WRITTEN_OUT:
        torch.manual_seed(0)
        layer = Layer(mixer, options.width)
        x = torch.randn(options.rows, options.chunk, options.width)
        streams = {
            name: Stream(learn.build(name, {"window": options.chunk}), layer, x, options.width)
            for name in ("tbptt", "chunked_rtrl")
        }
        found = steps_in_turn({name: s.step for name, s in streams.items()}, options)
        times = found["chunked_rtrl"].seconds / found["tbptt"].seconds
        said = f"{times:.1f}× ({_judged(times, 'chunks')})"
        rows.append([mixer, *(found[name].text() for name in streams), said])
    return rows


def _judged(times: float, what: str) -> str:
    return "met" if times <= FLOORS[what] else f"NOT met: at most {FLOORS[what]:g}×"


def report(options: argparse.Namespace) -> list[str]:
    """The page of results."""
    lines = ["# Learning online on a CPU", "", *conditions(command_line(), ["torch"])]
    lines += [
        f"- medians, of {STEPS} steps or chunks in a row; memory is what a rule "
        "carries on, or back-propagation keeps of activations; freed memory is kept, as "
        "`linrnn train` does"
    ]
    head = ["learner", *(f"after {n:,} [ms, kB]" for n in options.lengths), "remark"]
    lines += ["", f"## A step, by what was read before: one minGRU, width {options.small}", ""]
    lines += section("flat", table(head, flat_rows(options)))
    head = ["", *(cell for mixer in WRITTEN_OUT for cell in (f"{mixer} [ms]", "times a step"))]
    lines += [f"## A step with its traces: batch {options.rows}, width {options.width}", ""]
    lines += section("traces", table(head, trace_rows(options)))
    head = ["layer", "`tbptt` [ms]", "`chunked_rtrl` [ms]", "times"]
    lines += [f"## A chunk of {options.chunk} steps", ""]
    return [*lines, *section("chunks", table(head, chunk_rows(options)))]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models: does everything run?")
    parser.add_argument("--lengths", nargs="+", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--small", type=int, default=16, help="width of the first table (16)")
    parser.add_argument("--width", type=int, default=256, help="of the others (256)")
    parser.add_argument("--rows", type=int, default=8, help="of a batch (8)")
    parser.add_argument("--chunk", type=int, default=64, help="steps (64)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (1)")
    parser.add_argument("--seconds", type=float, default=2.0, help="aimed at, a candidate (2)")
    parser.add_argument("--limit", type=float, default=60.0, help="of one call, in seconds (60)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    if options.quick:
        options.lengths, options.small, options.width = [3, 6], 4, 8
        options.chunk, options.seconds = 4, 0.01
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = parse(argv)
    torch.set_num_threads(options.threads)
    keep_memory()
    lines = report(options)
    print("\n".join(lines))
    write_lines(options.out / "learning-cpu.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
