"""Checks of `make bench-gpu`: a GPU computes the numbers of a loop in double precision.

Kernels are compiled for every kind of call, which takes most of the time: processes share it.
"""

import itertools
import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as OutOfTime  # another in Python 3.10
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import torch
from torch import Tensor

from _memory_calls import MEMORIES, layouts, memory, op_of, options_of
from cells import CELLS
from cells import arguments as of_cell
from linrnn import mixers
from linrnn.cells import Cell
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.op import ALL
from linrnn.ops import cell_scan, linear_scan
from linrnn.testing._devices import same_numbers_on
from linrnn.testing._every_op import cotangent, matches_its_steps

SHAPES = ((8, 2048, 2048), (8, 8192, 1024), (1, 65536, 1024), (1, 1048576, 64), (64, 1024, 256))
# largest ‖got - true‖ / ‖true‖; a loop in the dtype has about a tenth of it
TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
}
CUDA = torch.device("cuda")
NOT_CHECKED = "not checked"
_lost: list[str] = []  # which check made the GPU answer nothing more in this process
Check = Callable[[], list[str]]


def problems(
    tasks: Mapping[str, Check], large: Mapping[str, Check], budget_s: float
) -> Iterator[str]:
    """Errors by tasks, as they come; tasks without time are named, too.

    Those that take much of the device's memory are done here, one after the other, while processes
    do the others.
    """
    waiting, end = {**tasks, **large}, time.monotonic() + budget_s
    workers = max(1, min((os.cpu_count() or 1) - 1, 16))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare) as pool:
        running = {pool.submit(_outcome, name, check): name for name, check in tasks.items()}
        for name, check in large.items():
            if time.monotonic() < end:
                yield from _outcome(name, check)
                del waiting[name]
        try:
            for done in as_completed(running, max(0.0, end - time.monotonic())):
                yield from done.result()
                del waiting[running[done]]
        except OutOfTime:
            pass
        except BrokenProcessPool as error:  # a compiler that aborts takes its process along
            yield f"{running[done]}, or what ran beside it: {error}"
        if waiting:
            yield f"{NOT_CHECKED} in {budget_s:.0f} s: {', '.join(waiting)}"
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _outcome(name: str, check: Check) -> list[str]:
    """Errors of a check; behind one that lost the GPU of its process no check runs."""
    if _lost:
        return [f"{NOT_CHECKED}: {name}; its process lost the GPU in {_lost[0]}"]
    found = []
    try:
        torch.manual_seed(0)
        found += check()
    except Exception as error:  # noqa: BLE001 - the others are checked
        traceback.print_exc()
        found.append(_of(name, error))
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # processes share the device
    except Exception as error:  # noqa: BLE001 - of an address that is not its own, say
        _lost.append(name)
        found = found or [_of(name, error)]
    return found


def _of(name: str, error: Exception) -> str:
    return f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:600]}"


def checks() -> Iterator[tuple[str, Check]]:
    """Checks that can run apart from the others, by name."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    for name in sorted(set(ALL) - {"linear_scan", "outer_scan", "delta_scan"}):  # they come below
        yield name, partial(check_property, partial(matches_its_steps, name, "auto", "cuda"))
    for dtype, constant in itertools.product(TOLERANCE, (False, True)):
        what = f"layouts {dtype}{' constant' if constant else ''}"
        yield what, partial(check_layouts, dtype, constant)
    for name, dtype in itertools.product(CELLS, dtypes):
        yield f"{name} {dtype}", partial(check_cell, name, dtype)
    for name in mixers.names():
        yield name, partial(check_property, partial(same_numbers_on, "cuda", mixers.load(name)))
    for name, dtype in itertools.product(MEMORIES, (torch.float32, torch.bfloat16)):
        yield f"{name} {dtype}", partial(check_memory, name, dtype)


def large_checks() -> Iterator[tuple[str, Check]]:
    """Checks that take much of the device's memory, by name."""
    for shape, dtype, constant in cases():
        what = f"{shape} {dtype}{' constant' if constant else ''}"
        yield what, partial(check_shape, shape, dtype, constant)


def check_property(law: Callable[[], None]) -> list[str]:
    """A law of `linrnn.testing` on this GPU."""
    law()
    return []


def cases() -> Iterator[tuple[tuple[int, int, int], torch.dtype, bool]]:
    """Every shape, real and complex, constant and varying; the same bytes for both dtypes."""
    for dtype, constant, shape in itertools.product(
        (torch.float32, torch.complex64), (False, True), SHAPES
    ):
        batch, steps, channels = shape
        yield (batch, steps, channels // 2 if dtype.is_complex else channels), dtype, constant


def inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, constant: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Decays of modulus 0.9 to 1, inputs and a cotangent, all random."""
    b = torch.randn(shape, dtype=dtype, device=device)
    modulus = 0.9 + 0.1 * torch.rand(shape[2:] if constant else shape, device=device)
    a = torch.polar(modulus, 6.28 * torch.rand_like(modulus)) if dtype.is_complex else modulus
    return a.to(dtype).requires_grad_(), b.requires_grad_(), torch.randn_like(b)


def check_layouts(
    dtype: torch.dtype,
    constant: bool,
    times: tuple[int, ...] = (1, 63, 300),
    device: torch.device = CUDA,
) -> list[str]:
    """Small scans of every layout against the float64 loop on the CPU."""
    wrong = []
    flags = itertools.product(times, ("rows", "packed"), (False, True))
    for steps, layout, reverse in flags:
        packed, channels = layout == "packed", 37
        a, b, _ = inputs((1 if packed else 3, steps, channels), dtype, constant, device)
        cuts = torch.tensor([0, 0, steps // 3, steps]) if packed else None
        state = torch.randn(3, channels, device=device).to(accumulator_dtype(dtype))
        state.requires_grad_()
        reset = torch.rand(b.shape[:2], device=device) < 0.01
        what = f"T={steps} {dtype} {layout} constant={constant} reverse={reverse}"
        wrong += disagreements(
            what, (a, b, state), "reference", torch.device("cpu"), reset, cuts, reverse
        )
    return wrong


def check_shape(
    shape: tuple[int, int, int], dtype: torch.dtype, constant: bool, device: torch.device = CUDA
) -> list[str]:
    """A shape that is timed, against PyTorch's own operations in double precision."""
    a, b, _ = inputs(shape, dtype, constant, device)
    return disagreements(f"{shape} {dtype} constant={constant}", (a, b, None), "tree", device)


def disagreements(
    what: str,
    arguments: tuple[Tensor, Tensor, Tensor | None],
    other: str,
    where: torch.device,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> list[str]:
    """Compare outputs and gradients with backend ``other`` in double precision on ``where``."""
    dtype = arguments[1].dtype
    double = torch.complex128 if dtype.is_complex else torch.float64

    def run(backend: str, args: tuple[Any, ...], mask: Tensor | None) -> list[Tensor]:
        leaves = [x for x in args if x is not None]
        a, b, state = args
        h, final = linear_scan(
            a, b, state, reset=mask, cu_seqlens=cu_seqlens, reverse=reverse, backend=backend
        )
        return [h, final, *torch.autograd.grad([h, final], leaves, [*map(cotangent, (h, final))])]

    got = run("triton", arguments, reset)
    exact = tuple(
        None if x is None else x.detach().to(where, double).requires_grad_() for x in arguments
    )
    true = run(other, exact, None if reset is None else reset.to(where))
    names = ("h", "final state", "grad of a", "grad of b", "grad of the state")
    return distances(what, names, got, true, dtype)


def distances(
    what: str, names: Iterable[str], got: list[Tensor], true: list[Tensor], dtype: torch.dtype
) -> list[str]:
    """Numbers farther from the truth than their dtype allows."""
    wrong = []
    for name, x, y in zip(names, got, true, strict=False):
        y = y.detach()
        error = float((x.detach().to(y) - y).norm() / y.norm().clamp(min=1e-300))
        if not error <= TOLERANCE[dtype]:
            wrong.append(f"{what}: {name} differs by {error:.1e}, allowed {TOLERANCE[dtype]:.0e}")
    return wrong


def check_cell(
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int] = (3, 100, 64),
    device: torch.device = CUDA,
) -> list[str]:
    """A cell with resets, against its loop in double precision on the CPU."""
    cell, wide = CELLS[name], accumulator_dtype(dtype)
    given = of_cell(cell, shape)
    given = {n: x.to(dtype if n in cell.inputs else wide) for n, x in given.items()}
    reset = torch.rand(shape[:2]) < 0.05
    there = {n: x.to(device) for n, x in given.items()}
    exact = {n: x.double() for n, x in given.items()}
    got = cell_and_gradients(cell, there, reset.to(device), "triton")
    true = cell_and_gradients(cell, exact, reset, "reference")
    names = ("output", *cell.states, *(f"grad of {n}" for n in given))
    return distances(f"{name} {dtype}", names, [x.cpu() for x in got], true, dtype)


def cell_and_gradients(
    cell: Cell, given: dict[str, Tensor], reset: Tensor, backend: str
) -> list[Tensor]:
    """The output, the final states, and the gradients of all arguments."""
    leaves = {n: x.clone().requires_grad_() for n, x in given.items()}
    y, last = cell_scan(cell, **leaves, reset=reset, reverse=True, backend=backend)
    flat = [y, *(last if isinstance(last, tuple) else [last])]
    return [*flat, *torch.autograd.grad(flat, list(leaves.values()), [*map(cotangent, flat)])]


def check_memory(
    name: str,
    dtype: torch.dtype,
    times: tuple[int, ...] = (2, 63, 200),
    device: torch.device = CUDA,
) -> list[str]:
    """A matrix memory against its chunks in double precision.

    Keys and values are no powers of two; those of 128 channels come beside.
    """
    wrong = []
    sizes = [(steps, 2, 20, 37) for steps in times] + [(130, 1, 128, 48)]
    for size in sizes:
        for layout in layouts(size[0]):
            rows = 1 if "cu_seqlens" in layout else 3
            given, wide = memory(name, (rows, *size), 3), accumulator_dtype(dtype)
            stored = ("q", "k", "v", "a", "b")
            given = {n: x.to(dtype if n in stored else wide) for n, x in given.items()}
            there = {n: x.to(device) for n, x in given.items()}
            mask = {"reset": layout["reset"].to(device)}
            got = memory_and_gradients(name, there, layout | mask, "triton")
            exact = {n: x.double() for n, x in given.items()}
            true = memory_and_gradients(name, exact, layout, "tree")
            names = ("output", "final state", *(f"grad of {n}" for n in given))
            what = f"{name} {dtype} {size} {list(layout)}"
            wrong += distances(what, names, [x.cpu() for x in got], true, dtype)
    return wrong


def memory_and_gradients(
    name: str, given: dict[str, Tensor], layout: dict[str, Any], backend: str
) -> list[Tensor]:
    """The output, the final state, and the gradients of all arguments."""
    leaves = {n: x.clone().requires_grad_() for n, x in given.items()}
    found = op_of(name)(**leaves, **options_of(name), **layout, backend=backend)
    return [*found, *torch.autograd.grad(found, list(leaves.values()), [*map(cotangent, found)])]
