"""Models of transformers on a CPU: their own definitions in PyTorch against linrnn's ops.

Both copies of a model with random weights take turns: reading a prompt with a cache, one training
step, and writing tokens. A cell is the median of processor times of theirs, divided by that of
ours. Writes ``benchmarks/results/hf-cpu.md``.
"""

import argparse
import contextlib
import copy
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

from _hf_families import FAMILIES, VOCABULARY, build
from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn.interop import accelerate

#: Their scan of 1,024 steps trains for minutes: every step's gradient is as large as all states.
SHORT = ("falcon_mamba", "jamba", "mamba", "rwkv", "zamba")
SHORT_TIME = 256


@contextlib.contextmanager
def plain(model: torch.nn.Module) -> Iterator[None]:
    """Their definitions in PyTorch, even where a package of kernels for GPUs is installed."""
    names = {type(part).__module__ for part in model.modules()}
    before = []
    for module in (sys.modules[x] for x in names if x.startswith("transformers.models.")):
        for name, function in list(vars(module).items()):
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                before.append((module, name, function))
                setattr(module, name, inspect.unwrap(function))
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def ratio(theirs: Callable[[], object], ours: Callable[[], object], rounds: int) -> str:
    """How many times as long theirs takes, of calls in turn."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for call, times in zip((theirs, ours), samples, strict=True):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
    slow, fast = (statistics.median(times[1:]) for times in samples)  # the first one warms up
    return f"{slow / fast:.2f} ({slow * 1e3:.0f} ms)"


def prompt(model: Any, ids: torch.Tensor) -> None:
    """Read a prompt and keep what generation needs."""
    with torch.no_grad():
        model(ids, use_cache=True)


def train(model: Any, ids: torch.Tensor) -> None:
    """Logits, loss and gradients."""
    model.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()


def measure(family: str, options: argparse.Namespace) -> list[str]:
    """A row of the table."""
    theirs = build(family, options.width)
    ours = copy.deepcopy(theirs)
    length = min(options.prompt, SHORT_TIME) if family in SHORT else options.prompt
    ids = torch.randint(2, VOCABULARY, (1, options.prompt))

    def write(model: Any) -> None:
        few = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens}
        model.generate(ids[:, :16], do_sample=False, **few)

    with plain(theirs):
        accelerate(ours)
        calls = (
            lambda model: prompt(model, ids),
            lambda model: train(model, ids[:, :length]),
            write,
        )
        cells = [
            ratio(lambda call=call: call(theirs), lambda call=call: call(ours), options.rounds)
            for call in calls
        ]
    cells[1] += f" of {length}"
    print(family, *cells, sep=", ", file=sys.stderr, flush=True)
    return [family, *cells]


def report(rows: list[list[str]], options: argparse.Namespace) -> None:
    """Write the page."""
    lines = ["# Models of transformers on a CPU", ""]
    lines += conditions(command_line(), ("torch", "transformers"))
    lines += ["- times of transformers' own PyTorch functions divided by ours; theirs in brackets"]
    lines += [f"- float32, width {options.width}, 2 to 4 layers, random weights, one thread"]
    lines += [f"- processor time, calls in turn, medians of {options.rounds}", ""]
    head = ["family", "prompt", "training step", f"{options.tokens} tokens"]
    write_lines(RESULTS / "hf-cpu.md", lines + section("ratios", table(head, rows)))


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for family in options.families:
        rows.append(measure(family, options))
        report(rows, options)  # what was measured stays, whatever comes after it
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
