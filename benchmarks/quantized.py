"""Weights of 8 and 4 bits on a CPU: products and steps beside what reading the bytes takes.

Times are processor time of one thread, medians in turn, so that a machine that does other things
as well hurts all alike; with several threads they are by the clock. A read is PyTorch's sum of as
many float32 numbers. With ``--ggml FOLDER``, where llama.cpp's libggml-cpu.so lies, its products
with Q8_0 and Q4_0 run in the same turns. A small model is trained for a while, and what its text
costs is compared. Writes ``benchmarks/results/quantized-cpu.md``.
"""

import argparse
import copy
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _ggml import Ggml
from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import SequenceModel, quantize
from linrnn.nn.quantized import QuantizedLinear
from linrnn.quantization import errors

#: What is beyond every cache: so many bytes of the smallest weights are read in turn.
BEYOND = 150 << 20
SHAPES = ((768, 3072), (3072, 768), (2048, 8192), (8192, 2048))
PARTS = ("products", "steps", "prompts", "quality")
SMALL = {"int8": (8, 64), "int4": (4, 64)}
Calls = Mapping[str, Callable[[], object]]


def in_turn(calls: Calls, rounds: int) -> dict[str, float]:
    """The median seconds of each call."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):  # the first warms up
        for name, call in calls.items():
            start = clock()
            call()
            samples[name].append(clock() - start)
    return {name: statistics.median(times[1:]) for name, times in samples.items()}


def many(linear: QuantizedLinear, count: int) -> list[QuantizedLinear]:
    """Maps of the same numbers in memory of their own."""
    return [copy.deepcopy(linear) for _ in range(count)]


def reading(n_bytes: int) -> Callable[[], object]:
    """Reads about as many bytes."""
    return torch.ones(n_bytes // 4).sum


@functools.cache
def rounded(shape: tuple[int, int], bits: int, group: int) -> QuantizedLinear:
    """A matrix, rounded once: that takes longer than to measure it."""
    return QuantizedLinear(nn.Linear(*shape, bias=False), bits, group)


@torch.no_grad()
def products(shape: tuple[int, int], batch: int, options: argparse.Namespace) -> list[list[str]]:
    """A row for each kind of weights: all matrices once."""
    inputs, outputs = shape
    numbers, x = inputs * outputs, torch.randn(batch, inputs)
    count = max(1, options.beyond * 2 // numbers)
    linear = nn.Linear(inputs, outputs, bias=False)
    floats = [copy.deepcopy(linear) for _ in range(max(1, count // 4))]
    calls: dict[str, Callable[[], object]] = {"float32": lambda: [m(x) for m in floats]}
    sizes = {"float32": 4 * numbers * len(floats)}
    for name, (bits, group) in SMALL.items():
        for digits in (24, 16):
            maps = many(rounded(shape, bits, group), count if bits == 4 else count // 2 or 1)
            for part in maps:
                part.activation_bits = digits
            name_ = f"{name}, x of {digits} bits"
            sizes[name_] = sum(m.packed.nbytes + m.scales.nbytes for m in maps)
            calls[name_] = lambda maps=maps: [m(x) for m in maps]
    if options.ggml:
        for kind in ("q8_0", "q4_0"):
            peer = Ggml(options.ggml, kind, linear.weight, x, count // 2 or 1)
            calls[f"llama.cpp {kind}"], sizes[f"llama.cpp {kind}"] = peer, peer.n_bytes
    read_bytes = options.beyond
    found = in_turn({"read": reading(read_bytes), **calls}, options.rounds)
    speed = read_bytes / found["read"]
    rows = []
    for name, size in sizes.items():
        share = size / found[name] / speed
        weights = size * (numbers / (per_matrix(name, numbers)))
        row = [f"{inputs} x {outputs}", str(batch), name, f"{size / found[name] / 1e9:.1f}"]
        row += [f"{speed / 1e9:.1f}", f"{share:.2f}", f"{weights / found[name] / 1e9:.1f}"]
        rows.append(row)
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def per_matrix(name: str, numbers: int) -> float:
    """Bytes of a matrix, scales included."""
    if name == "float32":
        return 4 * numbers
    if name.startswith("llama.cpp"):
        return numbers * (34 / 32 if name.endswith("q8_0") else 18 / 32)
    return numbers * (1 + 2 / 64 if name.startswith("int8") else 0.5 + 2 / 64)


def stack(mixer: str, options: argparse.Namespace) -> SequenceModel:
    """A language model with random weights."""
    torch.manual_seed(0)
    return SequenceModel(
        *(options.vocabulary, options.vocabulary),
        **{"mixer": mixer, "d_model": options.d_model, "n_layers": options.layers},
        **{"encoder": "tokens", "pool": "none", "norm": "rms", "block": "bare"},
    ).eval()


def stored(model: nn.Module) -> int:
    """Bytes that a step reads: all but the embedding."""
    tensors = [*model.parameters(), *model.buffers()]
    rows = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    return sum(x.nbytes for x in tensors) - sum(x.nbytes for x in rows)


@torch.no_grad()
def models(mixer: str, options: argparse.Namespace) -> list[list[str]]:
    """A row for each kind of weights: tokens a second, recorded and by operators."""
    plain = stack(mixer, options)
    kinds: dict[str, SequenceModel] = {"float32": plain}
    kinds |= {name: quantize(plain, *form) for name, form in SMALL.items()}
    n = sum(p.numel() for p in plain.parameters())
    rows = []
    for batch in (1, 8):
        calls: dict[str, Callable[[], object]] = {"read": reading(options.beyond)}
        for name, model in kinds.items():
            token, state = torch.zeros(batch, dtype=torch.long), model.init_state(batch)
            calls[name] = lambda m=model, t=token, s=state: m.step(t, s)
            calls[f"{name} by operators"] = lambda m=model, t=token, s=state: by_operators(m, t, s)
        found = in_turn(calls, options.rounds)
        speed = options.beyond / found["read"]
        for name, model in kinds.items():
            least = stored(model) / speed
            row = [f"{mixer}, {n / 1e6:.0f} M", str(batch), name, f"{stored(model) / 1e6:.0f}"]
            row += [f"{batch / found[key]:.1f}" for key in (name, f"{name} by operators")]
            row += [f"{found['float32'] / found[name]:.1f}", f"{least / found[name]:.2f}"]
            rows.append(row)
            print(*rows[-1], sep=" | ", flush=True)
    return rows


def by_operators(model: SequenceModel, token: torch.Tensor, state: Any) -> object:
    """A step of which nothing is recorded."""
    from unittest import mock

    from linrnn.engine.replay import step

    with mock.patch.object(step, "ready", return_value=False):
        return model.step(token, state)


@torch.no_grad()
def prompts(options: argparse.Namespace) -> list[list[str]]:
    """The time of many rows, as part of that of float32."""
    inputs, outputs = SHAPES[0] if options.quick else (2048, 2048)
    linear = nn.Linear(inputs, outputs, bias=False)
    rows = []
    for tokens in (32, 128, 512):
        x = torch.randn(tokens, inputs)
        calls: dict[str, Callable[[], object]] = {"float32": lambda x=x: linear(x)}
        for name, form in SMALL.items():
            small = QuantizedLinear(linear, *form)
            calls[name] = lambda m=small, x=x: m(x)
        found = in_turn(calls, options.rounds)
        rows.append([str(tokens), *(f"{found[name] / found['float32']:.2f}" for name in SMALL)])
    return rows


def trained(options: argparse.Namespace) -> tuple[SequenceModel, torch.Tensor]:
    """A small model of bytes that has read most of a text for a while, and the rest of it."""
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
    cut = len(text) * 9 // 10
    width = {"d_model": 32 if options.quick else 256, "n_layers": 1 if options.quick else 4}
    model = SequenceModel(256, 256, mixer="gla", encoder="tokens", pool="none", norm="rms", **width)
    optimizer, start = torch.optim.AdamW(model.parameters(), lr=2e-3), time.process_time()
    while (done := (time.process_time() - start) / options.train_seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - done) + 1e-5
        starts = torch.randint(cut - 257, (16,))
        rows = torch.stack([text[i : i + 257] for i in starts])
        loss = nn.functional.cross_entropy(
            model(rows[:, :-1])[0].flatten(0, 1), rows[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval(), text[cut:]


@torch.no_grad()
def perplexity(model: SequenceModel, text: torch.Tensor) -> float:
    """Per byte, of pieces of 512 read each from the start."""
    pieces = text[: len(text) // 513 * 513].view(-1, 513)
    losses = [
        nn.functional.cross_entropy(model(rows[:, :-1])[0].flatten(0, 1), rows[:, 1:].flatten())
        for rows in pieces[:64].split(16)
    ]
    return math.exp(float(torch.stack(losses).mean()))


def quality(options: argparse.Namespace) -> tuple[list[list[str]], list[list[str]]]:
    """Perplexities of a trained model, and the errors of its maps."""
    model, text = trained(options)
    before = perplexity(model, text)
    rows, maps = [["float32", f"{before:.4f}", "-"]], dict[str, list[str]]()
    for bits, group, symmetric in (
        *((8, None, True), (8, 64, True), (4, 128, True), (4, 64, True), (4, 32, True)),
        *((4, 64, False), (4, 32, False)),
    ):
        small = quantize(model, bits, group, symmetric=symmetric)
        after = perplexity(small, text)
        name = f"int{bits}, {f'groups of {group}' if group else 'a scale for each output'}"
        name += "" if symmetric else ", with zeros"
        rows.append([name, f"{after:.4f}", f"{100 * (after / before - 1):+.2f} %"])
        if (group, symmetric) == (64, True):
            for row in errors(model, small):
                shape = f"{row.shape[1]} x {row.shape[0]}"
                maps.setdefault(row.name, [row.name, shape]).append(f"{100 * row.error:.2f} %")
    return rows, list(maps.values())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny: does everything run?")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(all)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of PyTorch (1 2)")
    parser.add_argument("--mixers", nargs="+", default=["mamba2"], help="of the stacks (mamba2)")
    parser.add_argument("--d-model", type=int, default=768, help="width of the stacks (768)")
    parser.add_argument("--layers", type=int, default=24, help="of the stacks (24)")
    parser.add_argument("--vocabulary", type=int, default=50_288, help="of the stacks (50288)")
    parser.add_argument("--rounds", type=int, default=7, help="of each measurement (7)")
    parser.add_argument("--text", type=Path, required=True, help="a text to train on")
    parser.add_argument("--train-seconds", type=float, default=120.0, help="of the processor (120)")
    parser.add_argument("--ggml", type=Path, default=None, help="folder of llama.cpp's libraries")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    options.beyond = BEYOND
    if options.quick:
        options.d_model, options.layers, options.vocabulary = 64, 1, 64
        options.rounds, options.train_seconds, options.beyond = 1, 1.0, 1 << 20
    return options


def product_tables(options: argparse.Namespace) -> list[str]:
    """A table for each number of threads."""
    head = ["inputs x outputs", "rows", "weights", "GB/s", "a read [GB/s]", "of it", "G weights/s"]
    lines: list[str] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        shapes = SHAPES[:1] if options.quick else SHAPES
        rows = [row for shape in shapes for n in (1, 8) for row in products(shape, n, options)]
        clock = "1 thread, processor time" if threads == 1 else f"{threads} threads, by the clock"
        lines += [f"## Products, {clock}", ""]
        lines += section(f"products-{threads}", table(head, rows))
    torch.set_num_threads(1)
    return lines


def step_table(options: argparse.Namespace) -> list[str]:
    """Whole models."""
    head = ["model", "rows", "weights", "MB read", "tokens/s", "by operators"]
    head += ["of float32", "of a read"]
    rows = [row for mixer in options.mixers for row in models(mixer, options)]
    return ["## Steps of whole models, 1 thread", "", *section("steps", table(head, rows))]


def prompt_table(options: argparse.Namespace) -> list[str]:
    """Many rows."""
    lines = ["## Many rows, 1 thread: time over that of float32", ""]
    return lines + section("prompts", table(["rows", *SMALL], prompts(options)))


def quality_tables(options: argparse.Namespace) -> list[str]:
    """The loss of quality."""
    texts, maps = quality(options)
    lines = ["## Perplexity of a byte of held-out text", ""]
    lines += section("perplexity", table(["weights", "perplexity", "more"], texts))
    lines += ["## Errors of the weights in groups of 64, of their norm", ""]
    return lines + section("errors", table(["map", "inputs x outputs", "int8", "int4"], maps))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = parse(argv)
    torch.set_num_threads(1)
    lines = ["# Weights of 8 and 4 bits on a CPU", "", *conditions(command_line(), ["torch"])]
    lines += ["- the machine did other work too: medians of calls in turn, as ratios to a read", ""]
    of = {"products": product_tables, "steps": step_table, "prompts": prompt_table}
    for part in options.parts:
        lines += {**of, "quality": quality_tables}[part](options)
    print("\n".join(lines))
    write_lines(options.out / "quantized-cpu.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
