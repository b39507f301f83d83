"""The speed of cells on a CPU: the native machine beside the loop, other kernels, and memory.

Prints the median times of everyone, measured in turn in one run: a forward, and a forward with all
gradients; writes ``benchmarks/results/cells-cpu.md``. The floor is `torch.add` over the bytes that
must move: what is read and written once. "C++ for it" is generated for the one cell and compiled
for this processor, on one thread (`_kinds/generated.py`).
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _generated import generated
from _report import RESULTS, command_line, conditions, table, write_lines
from _timing import Candidate, Timing, in_turn
from linrnn.cells import Cell
from linrnn.compute import native as _native
from linrnn.errors import BackendError
from linrnn.ops import cell_scan, gated_scan
from linrnn.ops.cell.cell_scan import _cpu, _newton
from linrnn.ops.cell.cell_scan._arguments import prepare

SHAPES = ((8, 1024, 256), (32, 256, 128), (1, 16384, 256))
OF_MACHINE = ("forward, of the machine's", "with gradients, of the machine's")
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


def _lstm(h, c, xi, xf, xg, xo, Wi, Wf, Wg, Wo):
    i, f = torch.sigmoid(xi + F.linear(h, Wi)), torch.sigmoid(xf + F.linear(h, Wf))
    c = f * c + i * torch.tanh(xg + F.linear(h, Wg))
    h = torch.sigmoid(xo + F.linear(h, Wo)) * torch.tanh(c)
    return h, (h, c)


CELLS = {
    "minGRU": Cell(_mingru, state="h"),
    "minLSTM": Cell(_minlstm, state="h"),
    "sLSTM": Cell(_slstm, state="c n m", start={"n": 1.0}),
    "IndRNN": Cell(_indrnn, state="h", constant="u"),
    "SRU": Cell(_sru, state="c", constant="vf vr"),
    "oscillator": Cell(_oscillator, state="y z", constant="w alpha"),
    "GRU": Cell(_gru, state="h", constant="bn", matrix="Wr Wz Wn"),
    "LSTM": Cell(_lstm, state="h c", matrix="Wi Wf Wg Wo"),
}
PYTORCH = {"GRU": nn.GRU, "LSTM": nn.LSTM}
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


def candidates(
    name: str, shape: tuple[int, int, int], train: bool, loop: bool
) -> dict[str, Candidate]:
    """Everyone who computes a cell."""
    cell, given = CELLS[name], arguments(CELLS[name], shape)
    found = {
        "machine": call(lambda **x: cell_scan(cell, form="native", **x)[0], given, train),
    }
    if loop:
        found["loop"] = call(lambda **x: cell_scan(cell, form="loop", **x)[0], given, train)
    if name in GATED:
        x = torch.randn(*shape[:2], GATED[name], shape[2])
        found["gated_scan"] = call(lambda x: gated_scan(x)[0], {"x": x}, train)
    if not cell.matrices and torch.get_num_threads() == 1:
        found["C++ for it"] = Candidate(generated(cell, given, train))
    if name in PYTORCH:
        layer = PYTORCH[name](shape[2], shape[2], batch_first=True)
        x, some = torch.randn(shape), {n: y for n, y in given.items() if n not in cell.inputs}
        weights = layer.weight_ih_l0.detach()

        def ours(x: Tensor, w: Tensor, **rest: Tensor) -> Tensor:
            parts = F.linear(x, w).chunk(len(cell.inputs), -1)
            named = dict(zip(cell.inputs, parts, strict=True))
            return cell_scan(cell, form="native", **named, **rest)[0]

        def theirs(x: Tensor, **parameters: Tensor) -> Tensor:
            return layer(x)[0]

        own = {n: p.detach() for n, p in layer.named_parameters()}
        found["machine, with projection"] = call(ours, {"x": x, "w": weights, **some}, train)
        found[f"nn.{name}"] = of_layer(layer, theirs, {"x": x, **own}, train)
    return found | {"floor": Candidate(floor(cell, shape, train))}


def of_layer(
    layer: nn.Module, function: Callable[..., Tensor], given: dict[str, Tensor], train: bool
) -> Candidate:
    """The same of a layer, whose parameters are its own."""
    if not train:
        return Candidate(lambda: _without_grad(function, given))
    x = given["x"].clone().requires_grad_()
    into = torch.randn_like(_without_grad(function, given))
    sources = [x, *layer.parameters()]
    return Candidate(lambda: torch.autograd.grad(function(x), sources, into))


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
                    candidates(name, shape, train, threads == 1 and not options.no_loop),
                    seconds=options.seconds,
                    limit=options.limit,
                )
                for train in (False, True)
            ]
            for who in times[0]:
                ahead, both = (some[who] for some in times)
                ratios = [some[who].seconds / some["machine"].seconds for some in times]
                rows.append([name, who, ahead.text(), both.text(), *(f"{x:.2f}" for x in ratios)])
            print(f"{shape} {name}: done", file=sys.stderr, flush=True)
        title = f"(batch, time, channels) = {shape}, {threads} threads"
        header = ["cell", "who", "forward [ms]", "with gradients [ms]", *OF_MACHINE]
        lines += [f"## {title}", "", *table(header, rows), ""]
    return lines


def newton_table(seconds: float) -> list[str]:
    """Newton's method beside the machine, one long sequence, one thread."""
    torch.set_num_threads(1)
    rows = []
    for name in ("minGRU", "SRU", "sLSTM", "IndRNN"):
        given = arguments(CELLS[name], (1, 16384, 64))
        given = {n: x / 2 if n == "u" else x for n, x in given.items()}
        forms = {
            form: Candidate(partial(_only, CELLS[name], form, given))
            for form in ("native", "newton")
        }
        try:
            call = prepare(CELLS[name], given, None, None, None, False, None)
            found = _newton.solve(CELLS[name].program, call.leaves, call.layout)
        except BackendError:
            rows.append([name, "-", "-", "-", "does not converge: an error"])
            continue
        times = in_turn(forms, seconds=seconds, limit=60)
        taken = [times[form].text() for form in forms]
        how = found.convergence
        rows.append([name, *taken, str(how.rounds), f"{how.residual:.1e}"])
    header = ["cell", "native [ms]", "newton [ms]", "rounds", "residual"]
    title = "## Newton's method, (1, 16384, 64), forward, 1 thread"
    return [title, "", *table(header, rows), ""]


def _only(cell: Cell, form: str, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return cell_scan(cell, form=form, **given)[0]


def step_table() -> list[str]:
    """Cost of one step of one sequence: all of the call, and the native part of it."""
    torch.set_num_threads(1)
    rows = []
    for name in CELLS:
        given = arguments(CELLS[name], (1, 1, 64))
        whole = _microseconds(partial(_only, CELLS[name], "native", given))
        native = _microseconds(partial(_native.run, "machine", _record(CELLS[name], given)))
        rows.append([name, f"{native:.1f}", f"{whole:.1f}"])
    header = ["cell", "native part [us]", "whole call [us]"]
    return ["## One step, (1, 1, 64), forward, 1 thread", "", *table(header, rows), ""]


def _record(cell: Cell, given: dict[str, Tensor]) -> bytes:
    """The record with which the machine is called; its tensors stay until the end."""
    found: list[bytes] = []
    true = _native.run
    _native.run = lambda kernel, record: found.append(record) or true(kernel, record)
    try:
        leaves, layout, _ = prepare(cell, given, None, None, None, False, None)
        _held.append((leaves, _cpu.forward(cell.program, leaves, layout, False)))
    finally:
        _native.run = true
    return found[0]


_held: list[object] = []


def _microseconds(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(100):
            function()
        best = min(best, time.perf_counter() - start)
    return best * 1e4


def of_isa(isa: str, options: argparse.Namespace) -> list[str]:
    """The tables of another instruction set, by a process of its own, on one thread."""
    command = [sys.executable, __file__, "--isas", "--threads", "1", "--out", "-", "--no-loop"]
    command += ["--seconds", str(options.seconds), "--limit", str(options.limit)]
    command += ["--quick"] if options.quick else []
    done = subprocess.run(
        command,
        env={**os.environ, "LINRNN_ISA": isa},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return [x.replace("## (", f"## {isa}: (") for x in done.stdout.splitlines()]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at for each candidate")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a call may take")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isas", nargs="*", default=["avx2", "baseline"], help="others as well")
    parser.add_argument("--no-loop", action="store_true", help="without the slowest")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", default=str(RESULTS), help="folder of the result; -: none")
    parser.add_argument("--note", default="", help="what ran beside, for the table's head")
    options = parser.parse_args()
    torch.manual_seed(0)
    lines = []
    for threads in options.threads:
        lines += measure(options, threads)
    if options.out == "-":
        print("\n".join(lines))
        return 0
    lines += newton_table(options.seconds) + step_table()
    for isa in options.isas:
        lines += of_isa(isa, options)
    head = ["# Cells on a CPU", "", *conditions(command_line(), ["torch"])]
    jax = importlib.util.find_spec("jax") is not None
    head += ["- jax's `lax.scan` is not in the tables" + ("" if jax else ": it is not installed")]
    head += [f"- {options.note}"] if options.note else []
    write_lines(Path(options.out) / "cells-cpu.md", [*head, "", *lines])
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
