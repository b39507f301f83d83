"""Newton's method on the cells of every layer that is not linear: agreement, rounds, residual.

Each mixer of the library whose cell no linear scan computes, as it is initialised, reads one
sequence of noise, step by step and by Newton's method; all that decides is a mixer's own. Prints
the table and writes ``benchmarks/results/newton.md``. The error is the largest difference over the
largest number, of outputs and of the gradient of the input.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import mixers
from linrnn.errors import BackendError, LinrnnError
from linrnn.mixers import Mixer
from linrnn.ops import use_form

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Found(NamedTuple):
    """Results of a form, (y, gradient of x), with rounds and residuals of Newton's method."""

    y: Tensor
    grad: Tensor
    rounds: list[int]
    residuals: list[float]


def nonlinear() -> list[str]:
    """The mixers that have a cell which linear scans do not compute."""
    found = []
    for name in mixers.names():
        layer = mixers.load(name)(4).eval()
        try:
            with torch.no_grad(), use_form("scan"):
                layer(torch.randn(1, 3, 4))
        except BackendError:
            found.append(name)
    return found


def read(layer: Mixer, x: Tensor, form: str) -> Found:
    """One sequence, and back."""
    x, weight = x.clone().requires_grad_(), torch.linspace(-3, 4, x.numel(), dtype=x.dtype).sin()
    with use_form(form) as noted:
        y, _ = layer(x)
        (grad,) = torch.autograd.grad((y * weight.view(y.shape)).mean(), x)
    return Found(y.detach(), grad, [n.rounds for n in noted], [n.residual for n in noted])


def difference(got: Tensor, want: Tensor) -> str:
    """The largest, over the largest number."""
    return f"{float((got - want).abs().amax() / want.abs().amax()):.1e}"


def row(name: str, dtype: str, time: int, width: int) -> list[str]:
    """One mixer's."""
    torch.manual_seed(0)
    layer = mixers.load(name)(width, dtype=DTYPES[dtype]).eval()
    x = torch.randn(1, time, width, dtype=DTYPES[dtype])
    truth = read(layer, x, "loop")
    try:
        found = read(layer, x, "newton")
    except LinrnnError as error:
        return [name, dtype, "-", "-", "-", "-", f"`{error}`"]
    errors = [difference(found.y, truth.y), difference(found.grad, truth.grad)]
    rounds = " + ".join(map(str, found.rounds))
    return [name, dtype, *errors, rounds, f"{max(found.residuals):.1e}", "found"]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=int, default=1024, help="steps (1024)")
    parser.add_argument("--width", type=int, default=16, help="channels (16)")
    parser.add_argument("--only", nargs="+", help="these mixers alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "newton.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.only or nonlinear():
        rows += [row(name, dtype, options.time, options.width) for dtype in DTYPES]
        print(f"{name}: done", file=sys.stderr, flush=True)
    head = ["mixer", "dtype", "error of outputs", "error of gradients", "rounds", "residual", ""]
    size = f"(batch, time, channels) = 1, {options.time:,}, {options.width}"
    solved = sum(x[-1] == "found" for x in rows)
    lines = [f"{size}: {solved} of {len(rows)} solved.", "", *table(head, rows)]
    title = ["# Newton's method on the cells of layers", ""]
    start = [*title, *conditions(command_line(), ["torch"]), ""]
    write_lines(options.output, [*start, *section("newton", lines)])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
