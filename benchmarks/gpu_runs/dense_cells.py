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
from typing import Any
from unittest import mock

import torch
from _measure import DEVICE, TINY, Case, Run, equal_times, error_of, main
from torch import Tensor, nn

from cells import CELLS, PYTORCH, arguments
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _triton
from linrnn.ops.cell.cell_scan._triton_form import Form, choose_form

BF16, F32 = torch.bfloat16, torch.float32
STEPS, BATCHES, REPEATS = 1024, (8, 64), 100
#: Channels and dtype: of one instance, then of 4, 16, 4, 16 and 16 that share matrices.
SIZES = ((64, F32), (128, BF16), (128, F32), (256, F32), (256, BF16), (512, BF16))
#: Sequences so many that instances have 32 of them, and spill registers.
MORE = {(256, F32): (256,)}
if TINY:  # programs run one after the other there, so none may wait for another
    STEPS, BATCHES, SIZES, REPEATS = 4, (3,), ((16, F32),), 2


def one_sequence(*_: object) -> Form:
    """The form without matrices on chip."""
    return Form("one sequence an instance")


def eight_warps(*arguments: Any) -> Form:
    """The form with twice the warps where an instance that shares matrices has four."""
    return choose_form(*arguments)._replace(warps=8)


def of_way(way: str, run: Callable[[], Tensor]) -> Tensor:
    """A run in the form of a way; each way has its memory of forms, which are looked up."""
    with (
        mock.patch.object(_triton, "choose_form", WAYS[way]),
        mock.patch.object(_triton, "_forms", FORMS.setdefault(way, {})),
    ):
        return run()


#: How forms are chosen, by name.
WAYS: dict[str, Callable[..., Form]] = {
    "one sequence": one_sequence, "on chip": choose_form, "on chip, 8 warps": eight_warps,
}  # fmt: skip
#: The forms of each way, by program and shape.
FORMS: dict[str, dict[Any, tuple[object, Form]]] = {}


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
    """All forms, beside cuDNN; on the first 64 steps numbers are checked, and which form ran."""
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
    ways = [x for x in WAYS if x != "on chip, 8 warps" or (channels, dtype) == (256, F32)]
    for (more, run), way in itertools.product((("", outputs), (", both ways", both)), ways):
        true, timed = run(name, exact, "loop"), partial(of_way, way, partial(run, name, given))
        runs[f"{way}{more}"] = timed
        errors[f"{way}{more}"] = error_of(of_way(way, partial(run, name, first)), true)
        on_chip = [form.sharers > 0 for _, form in FORMS[way].values()]
        same_bits = way == "one sequence" or equal_times(timed, REPEATS) == 0.0
        if any(on_chip) == (way == "one sequence") or not same_bits:
            errors[f"{way}{more}"] = math.nan
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
    for size, name in itertools.product(SIZES, PYTORCH):
        for batch in (*BATCHES, *MORE.get(size, ())):
            yield named(name, batch, *size), partial(case, name, batch, *size)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
