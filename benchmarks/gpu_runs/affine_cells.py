"""Time of affine cells in tiles of time, beside walks, a composition of operators, and a copy.

Tiles compute decays on chip and are parallel along time. A walk has one program a sequence and
block of channels. The composition computes decays with PyTorch's operators, and `linear_scan`
reads them from memory.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from _measure import DEVICE, TINY, Case, Run, equal_times, error_of, main
from torch import Tensor

from cells import CELLS
from linrnn.mixers.hgrn import hgrn
from linrnn.mixers.rg_lru import rg_lru
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _triton, _triton_form
from linrnn.ops.linear.linear_scan import triton_plan

STEPS = {name: CELLS[name] for name in ("minGRU", "minLSTM")} | {"RG-LRU": rg_lru, "HGRN": hgrn}
SHAPES = ((8, 2048, 2048), (8, 1024, 256), (1, 65536, 1024), (64, 1024, 1024))
DTYPES = (torch.float32, torch.bfloat16)
#: Steps of the shortest sequence in tiles; and what forms were chosen, which are looked up.
SHORTEST, FORMS = _triton_form.SHORTEST, dict[str, dict[Any, Any]]()
#: Runs that must have the same bits.
REPEATS = 2 if TINY else 50
if TINY:
    SHAPES, DTYPES, SHORTEST = ((2, 9, 5),), (torch.float32,), 1
    triton_plan.ROW = 128


def scan(name: str, given: dict[str, Tensor], way: str) -> Tensor:
    """The outputs of a cell: by kernels, by operators, or step by step."""
    if way in ("composed", "loop"):
        y = cell_scan(STEPS[name], **given, form="scan" if way == "composed" else way)[0]
    else:
        y = cell_scan(STEPS[name], **given, backend="triton", form="native")[0]
    return y if isinstance(y, Tensor) else torch.stack(y)


def both(name: str, given: dict[str, Tensor], way: str) -> Tensor:
    """The gradients of all arguments, side by side; pairs of real numbers of complex ones."""
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
    y = scan(name, leaves, way)
    grads = torch.autograd.grad(y, list(leaves.values()), torch.ones_like(y))
    real = [torch.view_as_real(x) if x.is_complex() else x for x in grads]
    return torch.cat([x.flatten() for x in real])


Ways = Callable[[str, dict[str, Tensor], str], Tensor]


def of_form(run: Ways, name: str, given: dict[str, Tensor], way: str) -> Tensor:
    """A run whose kernels, of its gradient too, are those of a way."""
    shortest = sys.maxsize if way == "walk" else SHORTEST
    with (
        mock.patch.object(_triton_form, "SHORTEST", shortest),
        mock.patch.object(_triton, "_forms", FORMS.setdefault(way, {})),
    ):
        return run(name, given, way)


def arguments(name: str, shape: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Tensor]:
    """Random inputs, and constants in float32: a turn of modulus 1, biases and decays."""
    torch.manual_seed(0)
    step = STEPS[name]
    given = {n: torch.randn(shape, device=DEVICE).to(dtype) for n in step.inputs}
    constants = {n: torch.randn(shape[2], device=DEVICE) / 2 for n in step.constants}
    turned = {n: torch.polar(torch.ones_like(x), x) for n, x in constants.items()}
    return given | {n: turned[n] if n in step.is_complex else x for n, x in constants.items()}


def case(shape: tuple[int, int, int], name: str, dtype: torch.dtype) -> Case:
    """All ways beside a copy; the first 64 steps are checked, and that runs give equal bits."""
    given, inputs = arguments(name, shape, dtype), STEPS[name].inputs
    first = {n: x[:, :64] if n in inputs else x for n, x in given.items()}
    exact = {
        n: x.to(torch.complex128 if x.is_complex() else torch.float64) for n, x in first.items()
    }
    one, other = given[inputs[0]], given[inputs[-1]]
    into = torch.empty_like(one)
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(one, other, out=into)}
    errors = {}
    for more, run in (("", scan), (", both ways", both)):
        true = run(name, exact, "loop")
        for way in ("composed", "walk", "tiles"):
            runs[f"{way}{more}"] = partial(of_form, run, name, given, way)
            errors[f"{way}{more}"] = error_of(of_form(run, name, first, way), true)
        errors[f"tiles{more}"] += equal_times(partial(of_form, run, name, first, "tiles"), REPEATS)
    most = 1e-4 if dtype == torch.float32 else 2e-2
    return Case(f"{name} {shape} {dtype}", runs, errors, most, (len(inputs) + 1) * one.nbytes)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape in SHAPES:
        for dtype in DTYPES:
            for name in STEPS:
                yield f"{name} {shape} {dtype}", partial(case, shape, name, dtype)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
