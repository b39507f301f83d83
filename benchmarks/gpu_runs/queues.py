"""How many steps ahead a generated cell should load its rows, forward and with the gradient.

One group of steps ahead, which the package did before, takes turns with more. Registers may allow
fewer than a row says. At 256 channels a step takes a share of a load's latency, until arithmetic
takes longer.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, main
from torch import Tensor

from cells import CELLS, arguments
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _triton_code

SHAPES = ((8, 1024, 256), (8, 8192, 256), (64, 1024, 1024))
NAMES = ("sLSTM", "SRU", "minGRU", "minLSTM", "IndRNN", "oscillator")
#: Steps ahead; 1 is one group of the steps that are computed at once.
AHEAD = (1, 8, 16, 32, 64)
if TINY:
    SHAPES, NAMES, AHEAD = ((2, 9, 5),), ("sLSTM", "minGRU"), (1, 16)


def ahead(steps: int, run: Callable[[], Tensor]) -> Tensor:
    """A run whose kernels load rows so many steps ahead."""
    before = _triton_code.MOST_AHEAD
    try:
        _triton_code.MOST_AHEAD = steps
        return run()
    finally:
        _triton_code.MOST_AHEAD = before


def scan(name: str, given: dict[str, Tensor], form: str | None = None) -> Tensor:
    """The outputs of a cell: by its kernels, or step by step."""
    if form is not None:
        return cell_scan(CELLS[name], **given, form=form)[0]
    return cell_scan(CELLS[name], **given, backend="triton", form="native")[0]


def both(name: str, given: dict[str, Tensor], form: str | None = None) -> Tensor:
    """The gradients of all arguments, side by side."""
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
    y = scan(name, leaves, form)
    grads = torch.autograd.grad(y, list(leaves.values()), torch.ones_like(y))
    return torch.cat([x.flatten() for x in grads])


def case(shape: tuple[int, int, int], name: str) -> Case:
    """All numbers of steps, beside a copy; the numbers are checked on the first 64 steps."""
    torch.manual_seed(0)
    given = {n: x.to(DEVICE) for n, x in arguments(CELLS[name], shape).items()}
    inputs = [given[n] for n in CELLS[name].inputs]
    first = {n: x[:, :64] if n in CELLS[name].inputs else x for n, x in given.items()}
    exact = {n: x.double() for n, x in first.items()}
    true, true_both = scan(name, exact, "loop"), both(name, exact, "loop")
    into = torch.empty_like(inputs[0])
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(inputs[0], inputs[-1], out=into)}
    errors = {}
    for steps in AHEAD:
        label = f"{steps} ahead"
        runs[label] = partial(ahead, steps, partial(scan, name, given))
        runs[f"{label}, both ways"] = partial(ahead, steps, partial(both, name, given))
        errors[label] = error_of(ahead(steps, partial(scan, name, first)), true)
        errors[f"{label}, both ways"] = error_of(
            ahead(steps, partial(both, name, first)), true_both
        )
    return Case(f"{name} {shape}", runs, errors, 1e-4, (len(inputs) + 1) * into.nbytes)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape in SHAPES:
        for name in NAMES:
            yield f"{name} {shape}", partial(case, shape, name)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
