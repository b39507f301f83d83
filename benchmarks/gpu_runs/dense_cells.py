"""Time of a step of LSTMs and GRUs whose matrices stay on chip, forward and both ways.

Beside cuDNN's layer, which also multiplies its inputs, and the package's other form, of which an
instance has one sequence and reads its matrices at every step. Where instances share matrices, a
hundred runs must have the same bits.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, equal_times, error_of, main
from torch import Tensor, nn

from cells import CELLS, PYTORCH, arguments
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _triton
from linrnn.ops.cell.cell_scan._triton_form import Form

BF16, F32 = torch.bfloat16, torch.float32
STEPS, BATCHES, REPEATS = 1024, (8, 64), 100
#: Channels and dtype: of one instance, then of 4, 16, 4, 16 and 16 that share matrices.
SIZES = ((64, F32), (128, BF16), (128, F32), (256, F32), (256, BF16), (512, BF16))
if TINY:  # programs run one after the other there, so none may wait for another
    STEPS, BATCHES, SIZES, REPEATS = 4, (3,), ((16, F32),), 2


def one_sequence(*_: object) -> Form:
    """The form without matrices on chip."""
    return Form("one sequence an instance")


def without_groups(run: Callable[[], Tensor]) -> Tensor:
    """A run in that form."""
    before = _triton.choose_form
    try:
        _triton.choose_form = one_sequence
        return run()
    finally:
        _triton.choose_form = before


def outputs(name: str, given: dict[str, Tensor], form: str = "native") -> Tensor:
    """The outputs of a cell."""
    backend = "triton" if form == "native" else None
    return cell_scan(CELLS[name], **given, form=form, backend=backend)[0]


def both(name: str, given: dict[str, Tensor], form: str = "native") -> Tensor:
    """The gradients of all arguments, side by side."""
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
    y = outputs(name, leaves, form)
    grads = torch.autograd.grad(y, list(leaves.values()), torch.ones_like(y))
    return torch.cat([x.flatten() for x in grads])


def case(name: str, batch: int, channels: int, dtype: torch.dtype) -> Case:
    """Both forms, beside cuDNN; the numbers are checked on the first 64 steps."""
    torch.manual_seed(0)
    shape, cell = (batch, STEPS, channels), CELLS[name]
    given = {n: x.to(DEVICE, dtype) for n, x in arguments(cell, shape).items()}
    first = {n: x[:, :64] if n in cell.inputs else x for n, x in given.items()}
    exact = {n: x.double() for n, x in first.items()}
    runs: dict[str, Run] = {}
    if not TINY:
        layer = PYTORCH[name](channels, channels, batch_first=True, device=DEVICE, dtype=dtype)
        runs["cuDNN"] = torch.no_grad()(partial(layer, given[cell.inputs[0]]))
        runs["cuDNN, both ways"] = partial(of_layer, layer, given[cell.inputs[0]])
    errors = {}
    for way, run in (("", outputs), (", both ways", both)):
        true, ours = run(name, exact, "loop"), partial(run, name, given)
        runs[f"one sequence{way}"] = partial(without_groups, ours)
        runs[f"on chip{way}"] = ours
        errors[f"one sequence{way}"] = error_of(without_groups(partial(run, name, first)), true)
        errors[f"on chip{way}"] = error_of(run(name, first), true)
        if equal_times(ours, REPEATS) != 0.0:
            errors[f"on chip{way}"] = math.nan
    size = (len(cell.inputs) + 1) * given[cell.inputs[0]].nbytes
    return Case(
        named(name, batch, channels, dtype), runs, errors, 2e-2 if dtype == BF16 else 1e-4, size
    )


def of_layer(layer: nn.Module, x: Tensor) -> object:
    """Gradients of a layer's weights."""
    y = layer(x)[0]
    return torch.autograd.grad(y, list(layer.parameters()), torch.ones_like(y))


def named(name: str, batch: int, channels: int, dtype: torch.dtype) -> str:
    """The name of a row."""
    return f"{name} ({batch}, {STEPS}, {channels}) {str(dtype).removeprefix('torch.')}"


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for size, batch, name in itertools.product(SIZES, BATCHES, PYTORCH):
        yield named(name, batch, *size), partial(case, name, batch, *size)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
