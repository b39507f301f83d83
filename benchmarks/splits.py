"""Changes by cutting a sequence and carrying the state: every mixer of ours, and others.

A sequence of 1,000 steps is read in one call, and again in random pieces, one of them a single
step. Prints for each layer the largest difference of the outputs, relative to the largest output:
in float32, in bfloat16 and compiled; and whether forward and backward over 65,536 steps of bfloat16
are finite. A rounding is 1e-7 in float32 and 8e-3 in bfloat16. Writes
``benchmarks/results/splits.md``.
"""

import argparse
import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import linrnn
from _layers import LAYERS, transformers_mamba
from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn.state import leaves

D_MODEL, TIME, LONG, PIECES, SEED = 32, 1000, 65_536, 7, 0

Reader = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Reads a piece (1, time, D_MODEL) after a state, None for the first: output and new state."""


def cuts(time: int) -> list[int]:
    """Lengths of random pieces, the first of them a single step."""
    generator = torch.Generator().manual_seed(SEED)
    inner = (torch.randperm(time - 2, generator=generator)[: PIECES - 2] + 2).sort().values
    ends = torch.cat([torch.tensor([1]), inner, torch.tensor([time])])
    return [1, *ends.diff().tolist()]


def difference(read: Reader, x: Tensor) -> float:
    """Largest relative difference between one call and the pieces."""
    with torch.no_grad():
        whole, _ = read(x, None)
        state, parts = None, []
        for piece in x.split(cuts(x.shape[1]), 1):
            y, state = read(piece, state)
            parts.append(y)
    together = torch.cat(parts, 1).double()
    return float((together - whole.double()).abs().max() / whole.double().abs().max())


def finite(mixer: nn.Module, time: int) -> bool:
    """Forward and backward of bfloat16 over a long sequence."""
    mixer = copy.deepcopy(mixer).bfloat16()
    x = torch.randn(1, time, D_MODEL, dtype=torch.bfloat16, requires_grad=True)
    y, state = mixer(x)
    loss = y.float().square().mean()
    gradients = torch.autograd.grad(loss, [x, *mixer.parameters()], allow_unused=True)
    found = [y, *leaves(state), *(g for g in gradients if g is not None)]
    return all(bool(t.isfinite().all()) for t in found)


def ours(name: str, options: argparse.Namespace) -> list[str]:
    """A row for one mixer."""
    torch.manual_seed(SEED)
    mixer = linrnn.mixers.build(name, D_MODEL).eval()
    for weight in mixer.parameters():
        if weight.ndim > 1 and not weight.any():  # RWKV starts with outputs of zero
            nn.init.normal_(weight, std=D_MODEL**-0.5)
    x = torch.randn(1, TIME, D_MODEL)
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(mixer, backend=options.compiler)
    half = copy.deepcopy(mixer).bfloat16()
    cells = [difference(mixer, x), difference(half, x.bfloat16()), difference(compiled, x)]
    # where 65,536 steps take minutes, a sixteenth of them here, and all in a test marked slow
    steps = options.long if mixer.cost == "parallel" else options.long // 16
    long = f"{'yes' if finite(mixer, steps) else 'NO'}, {steps:,} steps"
    return [f"linrnn {name}", *(f"{c:.1e}" for c in cells), long]


def peers() -> dict[str, Reader]:
    """Results of others for the same test, in float32, by the means they document."""
    torch.manual_seed(SEED)
    found: dict[str, Reader] = {}
    gru, lstm = (LAYERS[f"nn.{k}"].build(D_MODEL) for k in ("GRU", "LSTM"))
    found["nn.GRU"], found["nn.LSTM"] = gru, lstm
    min_gru = LAYERS["minGRU-pytorch"].build(D_MODEL)
    found["minGRU-pytorch"] = lambda x, h: min_gru(x, h, return_next_prev_hidden=True)
    s5 = LAYERS["s5-pytorch"].build(D_MODEL)
    found["s5-pytorch"] = lambda x, h: s5(x, state=h, return_state=True)
    model = transformers_mamba(D_MODEL, 1).eval()
    mixer = model.layers[0].mixer

    def read(x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        if cache is None:
            from transformers import DynamicCache

            cache = DynamicCache(config=model.config)
        return mixer(x, cache_params=cache), cache

    found["transformers Mamba"] = read
    return found


def their_row(name: str, read: Reader) -> list[str]:
    """A row for a peer: float32 alone, or what it answers."""
    try:
        cell = f"{difference(read, torch.randn(1, TIME, D_MODEL)):.1e}"
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
        cell = f"{type(error).__name__}"
    return [name, cell, "", "", ""]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixers", nargs="*", default=None, help="all of them by default")
    parser.add_argument("--compiler", default="aot_eager", help="of torch.compile (aot_eager)")
    parser.add_argument("--long", type=int, default=LONG, help="steps of the long test (65536)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = parse(argv)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.mixers or linrnn.mixers.names():
        rows.append(ours(name, options))
        print(rows[-1], file=sys.stderr, flush=True)
    rows += [their_row(name, read) for name, read in peers().items()]
    head = ["layer", "float32", "bfloat16", "compiled", "bfloat16 finite over"]
    packages = ["torch", "transformers", "minGRU-pytorch", "s5-pytorch"]
    lines = ["# Splitting a sequence", "", *conditions(command_line(), packages), ""]
    lines += section("splits", table(head, rows))
    print("\n".join(lines))
    write_lines(options.out / "splits.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
