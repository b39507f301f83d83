"""The speed of layers that step one after another, on a CPU, beside the loop and other people's.

Prints the median times of everyone, measured in turn in one run: a forward, and a forward with the
gradients of the input and of all parameters; writes ``benchmarks/results/sequential-cpu.md``. The
loop is the same layer with its recurrence as a loop of PyTorch's operators. One thread.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn
from linrnn import mixers
from linrnn.ops import use_backend

ELEMENTWISE = ("ind_rnn", "gilr", "sru", "qrnn", "hgrn", "gated_lru", "rg_lru", "mingru")
ELEMENTWISE += ("unicornn", "elstm", "para_gru", "para_lstm", "columnar", "constructive")
DENSE = (
    "gru",
    "lstm",
    "slstm",
    "co_rnn",
    "lem",
    "lipschitz_rnn",
    "antisymmetric_rnn",
    "incremental_rnn",
)
DENSE += ("ta_rnn", "noisy_rnn", "wave_machine", "wave_rnn", "ls_lstm", "exp_rnn", "sco_rnn")
DENSE += (
    "plrnn",
    "fast_grnn",
    "reservoir",
    "p_tncn",
    "unitary_rnn",
    "nn_rnn",
    "cfc",
    "neural_ode",
    "ode_rnn",
    "ltc",
    "hippo",
    "lmu",
)


class Size(NamedTuple):
    """The sequences, and the widths of the layers that read them."""

    batch: int
    time: int
    width: int

    def text(self) -> str:
        """As a head."""
        return f"(batch, time, channels) = {self.batch}, {self.time:,}, {self.width}"


LONG, MANY = Size(1, 16384, 256), Size(8, 512, 64)
QUICK = Size(2, 8, 16)
SMALL = {"ltc": 32}  # channels of layers that have a number for each pair of these


def _gru(width: int) -> nn.Module:
    return nn.GRU(width, width, batch_first=True)


def _lstm(width: int) -> nn.Module:
    return nn.LSTM(width, width, batch_first=True)


def _ncps(name: str) -> Callable[[int], nn.Module]:
    def make(width: int) -> nn.Module:
        from ncps.torch import LTC, CfC

        made: nn.Module = {"cfc": CfC, "ltc": LTC}[name](width, width)
        return made

    return make


PEERS: dict[str, tuple[str, str, Callable[[int], nn.Module]]] = {
    "gru": ("nn.GRU", "torch", _gru),
    "lstm": ("nn.LSTM", "torch", _lstm),
    "cfc": ("ncps CfC", "ncps", _ncps("cfc")),
    "ltc": ("ncps LTC", "ncps", _ncps("ltc")),
}
"""Peers of a mixer, their package and constructor; all take and return a sequence."""


def call(layer: nn.Module, x: Tensor, train: bool, backend: str | None) -> Candidate:
    """A forward, or one with all gradients."""

    def forward() -> Tensor:
        with use_backend(backend):
            y: Tensor = layer(x)[0]
        return y

    def without() -> Tensor:
        with torch.no_grad():
            return forward()

    if not train:
        return Candidate(without)
    into = torch.randn_like(without())
    x = x.requires_grad_()
    sources = [x, *(p for p in layer.parameters() if p.requires_grad)]

    def both() -> Any:
        with use_backend(backend):
            y = layer(x)[0]
            return torch.autograd.grad(y, sources, into, allow_unused=True)

    return Candidate(both)


def candidates(name: str, size: Size, train: bool) -> dict[str, Candidate]:
    """Everyone who computes a layer."""
    torch.manual_seed(0)
    width = min(size.width, SMALL.get(name, size.width))
    layer, x = mixers.load(name)(width), torch.randn(*size[:2], width)
    found = {"linrnn": call(layer, x.clone(), train, None)}
    found["loop"] = call(layer, x.clone(), train, "reference")
    if name in PEERS and importlib.util.find_spec(PEERS[name][1]):
        who, _, make = PEERS[name]
        found[who] = call(make(width), x.clone(), train, None)
    return found


def measure(names: tuple[str, ...], size: Size, options: argparse.Namespace) -> list[str]:
    """The table of some layers at a size."""
    rows = []
    for name in names:
        times = [
            in_turn(candidates(name, size, train), seconds=options.seconds, limit=options.limit)
            for train in (False, True)
        ]
        for who in times[0]:
            cells = [some[who].text() for some in times]
            ratios = [some[who].seconds / some["linrnn"].seconds for some in times]
            width = min(size.width, SMALL.get(name, size.width))
            rows.append([name, str(width), who, *cells, *(f"{x:.1f}" for x in ratios)])
        print(f"{size.text()} {name}: done", file=sys.stderr, flush=True)
    head = ["layer", "channels", "who", "forward [ms]", "with gradients [ms]"]
    head += ["forward, times ours", "with gradients, times ours"]
    return [f"## {size.text()}", "", *table(head, rows), ""]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="aimed at for each (0.5)")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds a call may take (20)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", nargs="+", help="these layers alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "sequential-cpu.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for part, names, size in (("elementwise", ELEMENTWISE, LONG), ("dense", DENSE, MANY)):
        chosen = tuple(n for n in names if not options.only or n in options.only)
        if chosen:
            heading, *rows = measure(chosen, QUICK if options.quick else size, options)
            lines += [heading, "", *section(part, rows[1:-1])]
    packages = ["torch", *(p for p in ("ncps",) if importlib.util.find_spec(p))]
    head = ["# Layers that step one after another, on a CPU", ""]
    write_lines(options.output, [*head, *conditions(command_line(), packages), "", *lines])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
