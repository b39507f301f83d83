"""Measure one step of a recurrence that writes its state in place, beside what does the same.

Prints a table of microseconds a call: the native kernel, PyTorch's operators in place (the
definition), and a scan of one step whose state is copied back. Writes
``benchmarks/results/updates-cpu.md``.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn.ops import (
    causal_conv,
    conv_update,
    delta_scan,
    delta_update,
    outer_scan,
    outer_update,
    selective_scan,
    selective_update,
)

CALLS = 100  # of a measurement

Case = tuple[str, Callable[..., Tensor], dict[str, Any], Callable[[], object]]


def conv(batch: int) -> Case:
    """The convolution of Mamba-2 at width 256."""
    x, state = torch.randn(batch, 640), torch.zeros(batch, 640, 4)
    weight, bias = torch.randn(640, 4), torch.randn(640)

    def scan() -> None:
        _, last = causal_conv(x[:, None], weight, bias, state[..., 1:].mT, silu=True)
        state[..., 1:] = last.mT

    call = {"x": x, "state": state, "weight": weight, "bias": bias, "activation": "silu"}
    return "convolution, 640 channels", conv_update, call, scan


def selective(batch: int) -> Case:
    """Mamba at width 256."""
    state, A = torch.zeros(batch, 512, 16), -torch.rand(512, 16)
    x, dt, z = torch.randn(3, batch, 512)
    B, C = torch.randn(2, batch, 16)
    D, dt_bias = torch.randn(2, 512)
    options = {"dt_bias": dt_bias, "dt_softplus": True}

    def scan() -> None:
        sequences = (x[:, None], dt[:, None], A, B[:, None], C[:, None], D, state)
        state.copy_(selective_scan(*sequences, z=z[:, None], **options)[1])

    call = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, **options}
    return "Mamba, 512 × 16", selective_update, call, scan


def outer(batch: int) -> Case:
    """Mamba-2 at width 256."""
    state, A = torch.zeros(batch, 8, 64, 64), -torch.rand(8)
    x, dt = torch.randn(batch, 8, 64), torch.rand(batch, 8)
    B, C = torch.randn(2, batch, 1, 64)
    D = torch.randn(8)

    def scan() -> None:
        value, decay = (dt[..., None] * x)[:, None], (dt * A)[:, None]
        o, last = outer_scan(C[:, None], B[:, None], value, decay, state.mT)
        o[:, 0] + D[:, None] * x
        state.copy_(last.mT)

    call = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D}
    return "Mamba-2, 8 heads of 64 × 64", outer_update, call, scan


def delta(batch: int) -> Case:
    """The gated delta rule."""
    state, v = torch.zeros(batch, 4, 64, 64), torch.randn(batch, 4, 64)
    q, k = torch.nn.functional.normalize(torch.randn(2, batch, 4, 64), dim=-1)
    g, beta = -torch.rand(batch, 4), torch.rand(batch, 4)

    def scan() -> None:
        decay = g[:, None]
        state.copy_(delta_scan(q[:, None], k[:, None], v[:, None], beta[:, None], decay, state)[1])

    call = {"state": state, "q": q, "k": k, "v": v, "g": g, "beta": beta}
    return "delta rule, 4 heads of 64 × 64", delta_update, call, scan


def processor_times(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds a call of the processor, the least of rounds in which all take turns.

    A wall clock would tell of whatever else the machine does in such short calls.
    """
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.process_time() - start) / CALLS)
    return {name: 1e6 * seconds for name, seconds in best.items()}


def measure(case: Case, batch: int, rounds: int) -> list[str]:
    """A row of the table."""
    name, update, call, scan = case
    calls = {
        "in place": lambda: update(**call),
        "operators": lambda: update(**call, backend="tree"),
        "scan": scan,
    }
    with torch.no_grad():
        times = processor_times(calls, rounds)
    ours, others = times["in place"], [times[n] for n in ("operators", "scan")]
    cells = [f"{t:.0f}" for t in (ours, *others)]
    return [name, str(batch), *cells, *(f"{t / ours:.1f}×" for t in others)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls: does everything run?")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="rows (1 8)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (1)")
    parser.add_argument("--rounds", type=int, default=20, help="of all candidates (20)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rounds = 1 if options.quick else options.rounds
    cases = (conv, selective, outer, delta)
    rows = [measure(make(b), b, rounds) for make in cases for b in options.batches]
    lines = ["# Steps in place on a CPU", "", *conditions(command_line(), ["torch"])]
    lines += [f"- float32; processor time, in turn, the least of {rounds} rounds"]
    head = ["step", "batch", "in place [µs]", "operators [µs]", "scan of one step [µs]"]
    head += ["of operators", "of a scan"]
    lines += ["", *section("updates", table(head, rows))]
    print("\n".join(lines))
    write_lines(options.out / "updates-cpu.md", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
