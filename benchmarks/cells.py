"""The speed of cells on a CPU: the native machine beside the loop, other kernels, and memory.

Prints the median times of everyone, measured in turn in one run: a forward, and a forward with all
gradients; writes ``benchmarks/results/cells-cpu.md``. The floor is `torch.add` over the bytes that
must move: what is read and written once.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _report import RESULTS, command_line, conditions, table, write_lines
from _timing import Candidate, Timing, in_turn
from linrnn.cells import Cell
from linrnn.ops import cell_scan, gated_scan

SHAPES = ((8, 1024, 256), (32, 256, 128), (1, 16384, 256))
QUICK_SHAPES = ((2, 16, 32),)


def _mingru(h, a, z):
    h = h + torch.sigmoid(z) * (a - h)
    return h, h


def _minlstm(h, a, f, i):
    f, i = torch.sigmoid(f), torch.sigmoid(i)
    h = (f * h + i * a) / (f + i)
    return h, h


def _slstm(c, n, m, i, f, z, o):
    lf = F.logsigmoid(f) + m
    m1 = torch.maximum(lf, i)
    fg, ig = torch.exp(lf - m1), torch.exp(i - m1)
    c, n = fg * c + ig * torch.tanh(z), fg * n + ig
    return torch.sigmoid(o) * c / n, (c, n, m1)


def _indrnn(h, x, u):
    h = torch.relu(x + u * h)
    return h, h


def _sru(c, x, f, r, vf, vr):
    gate, read = torch.sigmoid(f + vf * c), torch.sigmoid(r + vr * c)
    c = gate * c + (1 - gate) * x
    return read * c + (1 - read) * x, c


def _oscillator(y, z, u, w, alpha):
    z = z - 0.1 * (torch.tanh(w * y + u) + alpha * y)
    y = y + 0.1 * z
    return y, (y, z)


def _gru(h, xr, xz, xn, bn, Wr, Wz, Wn):
    r, z = torch.sigmoid(xr + F.linear(h, Wr)), torch.sigmoid(xz + F.linear(h, Wz))
    n = torch.tanh(xn + r * (F.linear(h, Wn) + bn))
    h = n + z * (h - n)
    return h, h


CELLS = {
    "minGRU": Cell(_mingru, state="h"),
    "minLSTM": Cell(_minlstm, state="h"),
    "sLSTM": Cell(_slstm, state="c n m", start={"n": 1.0}),
    "IndRNN": Cell(_indrnn, state="h", constant="u"),
    "SRU": Cell(_sru, state="c", constant="vf vr"),
    "oscillator": Cell(_oscillator, state="y z", constant="w alpha"),
    "GRU": Cell(_gru, state="h", constant="bn", matrix="Wr Wz Wn"),
}
GATED = {"minGRU": 2, "minLSTM": 3}  # parts of gated_scan's input


def arguments(cell: Cell, shape: tuple[int, int, int]) -> dict[str, Tensor]:
    """Random ones, with matrices that neither grow nor forget."""
    n = shape[-1]
    given = {name: torch.randn(shape) for name in cell.inputs}
    given |= {name: torch.randn(n) / 2 for name in cell.constants}
    return given | {name: torch.randn(n, n) / n**0.5 / 2 for name in cell.matrices}


def call(function: Callable[..., Tensor], given: dict[str, Tensor], train: bool) -> Candidate:
    """A forward, or one with all gradients."""
    if not train:
        return Candidate(lambda: _without_grad(function, given))
    given = {n: x.clone().requires_grad_() for n, x in given.items()}
    into = torch.randn_like(_without_grad(function, given))
    return Candidate(lambda: torch.autograd.grad(function(**given), list(given.values()), into))


def _without_grad(function: Callable[..., Tensor], given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return function(**given)


def candidates(name: str, shape: tuple[int, int, int], train: bool) -> dict[str, Candidate]:
    """Everyone who computes a cell."""
    cell, given = CELLS[name], arguments(CELLS[name], shape)
    found = {
        "machine": call(lambda **x: cell_scan(cell, form="native", **x)[0], given, train),
        "loop": call(lambda **x: cell_scan(cell, form="loop", **x)[0], given, train),
    }
    if name in GATED:
        x = torch.randn(*shape[:2], GATED[name], shape[2])
        found["gated_scan"] = call(lambda x: gated_scan(x)[0], {"x": x}, train)
    if name == "GRU":
        layer = nn.GRU(shape[2], shape[2], batch_first=True)
        weights, x = layer.weight_ih_l0.detach(), {"x": torch.randn(shape)}
        some = {n: y for n, y in given.items() if n not in cell.inputs}

        def ours(x: Tensor, w: Tensor, **rest: Tensor) -> Tensor:
            parts = zip(("xr", "xz", "xn"), (x @ w.T).chunk(3, -1), strict=True)
            return cell_scan(cell, form="native", **dict(parts), **rest)[0]

        found["machine, with projection"] = call(ours, {**x, "w": weights, **some}, train)
        found["nn.GRU"] = call(lambda x: layer(x)[0], x, train)
    return found | {"floor": Candidate(floor(cell, shape, train))}


def floor(cell: Cell, shape: tuple[int, int, int], train: bool) -> Callable[[], object]:
    """`torch.add` over as many bytes: it reads two and writes one."""
    n = len(cell.inputs)
    rows = n + 1 + (train and 2 * n + len(cell.states) + 1)  # read and written once
    a, b = (torch.randn(rows * shape[0] * shape[1] * shape[2] // 3) for _ in range(2))
    return lambda: torch.add(a, b)


def measure(options: argparse.Namespace, threads: int) -> list[str]:
    """The tables of one number of threads."""
    torch.set_num_threads(threads)
    lines: list[str] = []
    for shape in QUICK_SHAPES if options.quick else SHAPES:
        rows = []
        for name in CELLS:
            times: list[dict[str, Timing]] = [
                in_turn(
                    candidates(name, shape, train),
                    seconds=options.seconds,
                    limit=options.limit,
                )
                for train in (False, True)
            ]
            for who in times[0]:
                ahead, both = (some[who] for some in times)
                ratio = both.seconds / times[1]["machine"].seconds
                rows.append([name, who, ahead.text(), both.text(), f"{ratio:.2f}"])
            print(f"{shape} {name}: done", file=sys.stderr, flush=True)
        title = f"(batch, time, channels) = {shape}, {threads} threads"
        header = ["cell", "who", "forward [ms]", "with gradients [ms]", "of the machine's"]
        lines += [f"## {title}", "", *table(header, rows), ""]
    return lines


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at for each candidate")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a call may take")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    torch.manual_seed(0)
    lines = ["# Cells on a CPU", "", *conditions(command_line(), ["torch"]), ""]
    for threads in options.threads:
        lines += measure(options, threads)
    write_lines(options.out / "cells-cpu.md", lines)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
