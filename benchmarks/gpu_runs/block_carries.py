"""Time of the kernels around long convolutions of S4D and S4, beside operators and an FFT.

States carried over blocks, by a number a mode and by a matrix; tables of powers; discrete steps of
parameters; and both layers whole, forward and both ways, in blocks and as a convolution by FFT.
"""

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, main
from torch import Tensor

from linrnn import mixers
from linrnn.nn.diagonal import diagonal_steps
from linrnn.ops import use_backend
from linrnn.ops.conv import _block_carry_triton
from linrnn.ops.conv._block_carry import carry, carry_back, carry_dense, carry_dense_back
from linrnn.ops.conv.vandermonde import table

#: Channels, sequences, blocks and numbers of a state: 1,024 steps of S4D and S4, and 16,384.
CARRIED = ((256, 32, 32, 32), (256, 2, 512, 32), (64, 8, 32, 256))
DENSE = ((256, 32, 16, 64), (256, 2, 256, 64), (64, 8, 16, 128))
#: Blocks at once, and groups of them whose rows are on their way.
QUEUES = ((2, 4), (1, 8), (2, 8), (4, 2))
#: Rows, steps and channels of layers.
LAYERS = ((32, 1024, 256), (2, 16384, 256), (8, 1024, 64))
PARAMETERS = ((256, 32), (1024, 256))
if TINY:
    CARRIED, DENSE, QUEUES = ((2, 3, 5, 4),), ((2, 3, 4, 6),), ((1, 2), (2, 2))
    LAYERS, PARAMETERS = ((1, 70, 3),), ((2, 5),)
MOST = 1e-5


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def wide(x: Tensor) -> Tensor:
    """In double precision."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def by(backend: str, run: Callable[..., object], *tensors: Tensor) -> object:
    """A run on a backend."""
    with use_backend(backend):
        return run(*tensors)


def queued(queue: tuple[int, int], run: Callable[[], object]) -> object:
    """A run of kernels that load rows so far ahead."""
    names = dict(zip(("UNROLL", "AHEAD"), queue, strict=True))
    with mock.patch.multiple(_block_carry_triton, **names):
        return run()


def written(run: Callable[..., object], left: Tensor, *tensors: Tensor) -> Tensor:
    """A copy of ``left``, over which a run has written."""
    left = left.clone()
    run(left, *tensors)
    return left


def carried(sizes: tuple[int, int, int, int]) -> Case:
    """All queues, beside a copy; a run reads what the one before it wrote, which stays small."""
    channels, seqs, _, modes = sizes
    left, first = (
        drawn(*sizes, dtype=torch.complex64),
        drawn(channels, seqs, modes, dtype=torch.complex64),
    )
    decay = torch.polar(torch.full((channels, modes), 0.5, device=DEVICE), drawn(channels, modes))
    states = written(partial(by, "tree", carry), left, first, decay)
    exact = [wide(x) for x in (left, first, decay)]
    true = written(partial(by, "tree", carry), *exact)
    back = (wide(states), exact[1], exact[2])
    true_back = written(partial(by, "tree", carry_back), exact[0], *back)
    into = torch.empty_like(left)
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(left, states, out=into)}
    errors = {}
    for queue in QUEUES:
        name, again = "blocks {}, ahead {}".format(*queue), left.clone()
        for more, run, tensors, truth in (
            ("", carry, (first, decay), true),
            (", backward", carry_back, (states, first, decay), true_back),
        ):
            kernel = partial(by, "triton", run)
            runs[name + more] = partial(queued, queue, partial(kernel, again, *tensors))
            found = queued(queue, partial(written, kernel, left, *tensors))
            assert isinstance(found, Tensor)
            errors[name + more] = error_of(found, truth)
    return Case(f"carry {sizes}", runs, errors, MOST, 2 * left.nbytes)


def dense(sizes: tuple[int, int, int, int]) -> Case:
    """A kernel, beside two operators a block."""
    channels, seqs, _, numbers = sizes
    left, first = drawn(*sizes), drawn(channels, seqs, numbers)
    decay = 0.4 * numbers**-0.5 * drawn(channels, numbers, numbers)
    exact = [wide(x) for x in (left, first, decay)]
    runs: dict[str, Run] = {}
    errors = {}
    for backend in ("tree", "triton"):
        for more, run in (("", carry_dense), (", backward", carry_dense_back)):
            name, timed = backend + more, partial(by, backend, run)
            truth = written(partial(by, "tree", run), *exact)
            errors[name] = error_of(written(timed, left, first, decay), truth)
            runs[name] = partial(timed, left.clone(), first, decay)
    return Case(f"matrices {sizes}", runs, errors, MOST, 2 * left.nbytes)


def powers(shape: tuple[int, int]) -> Case:
    """A table of 33 powers, beside operators."""
    a = torch.polar(torch.full(shape, 0.99, device=DEVICE), drawn(*shape)).to(torch.complex128)
    true = a[:, None] ** torch.arange(33, device=DEVICE)[:, None]
    runs: dict[str, Run] = {}
    errors = {}
    for backend in ("tree", "triton"):
        runs[backend] = partial(by, backend, partial(table, a, 33, torch.complex64))
        found = runs[backend]()
        assert isinstance(found, Tensor)
        errors[backend] = error_of(found, true)
    return Case(f"powers {shape}", runs, errors, MOST, 33 * a.nbytes // 2)


def steps(*parameters: Tensor) -> Tensor:
    """Discrete steps and gradients of the parameters, side by side."""
    leaves = [x.detach().requires_grad_() for x in parameters]
    results = diagonal_steps(*leaves)
    grads = torch.autograd.grad(results, leaves, [torch.ones_like(x) for x in results])
    return torch.cat(
        [torch.view_as_real(x).flatten() for x in results] + [g.flatten() for g in grads]
    )


def parameters(shape: tuple[int, int]) -> Case:
    """Parameters of S4D in steps, both ways, beside operators."""
    given = [drawn(*shape), drawn(*shape), drawn(shape[0], 1) - 3]
    true = steps(*(x.double() for x in given))
    runs: dict[str, Run] = {x: partial(by, x, steps, *given) for x in ("tree", "triton")}
    errors = {}
    for name, run in runs.items():
        found = run()
        assert isinstance(found, Tensor)
        errors[name] = error_of(found, true)
    return Case(f"steps {shape}", runs, errors, MOST, 6 * given[0].nbytes)


def read(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """The outputs."""
    with torch.no_grad():
        y: Tensor = layer(x)[0]
    return y


def both(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """The gradient of the input; those of parameters are computed, too."""
    leaf = x.detach().requires_grad_()
    y = layer(leaf)[0]
    return torch.autograd.grad(y, [leaf, *layer.parameters()], torch.ones_like(y))[0]


def layer(name: str, shape: tuple[int, int, int]) -> Case:
    """A layer in blocks by kernels and by operators, and as a convolution by FFT."""
    torch.manual_seed(0)
    module, x = mixers.load(name)(shape[2]).to(DEVICE), drawn(*shape)
    rows = x[:1]
    exact, conv = copy.deepcopy(module).double(), copy.deepcopy(module)
    conv.form = "conv"
    runs: dict[str, Run] = {}
    errors = {}
    for more, run in (("", read), (", both ways", both)):
        true = by("tree", run, exact, rows.double())
        assert isinstance(true, Tensor)
        ways = {
            "FFT": ("triton", conv),
            "operators": ("tree", module),
            "kernels": ("triton", module),
        }
        for way, (backend, one) in ways.items():
            runs[way + more] = partial(by, backend, run, one, x)
            found = by(backend, run, one, rows)
            assert isinstance(found, Tensor)
            errors[way + more] = error_of(found, true)
    return Case(f"{name} {shape}", runs, errors, 1e-4, 2 * x.nbytes)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for what, run, shapes in (
        ("carry", carried, CARRIED), ("matrices", dense, DENSE),
        ("powers", powers, PARAMETERS), ("steps", parameters, PARAMETERS),
    ):  # fmt: skip
        for sizes in shapes:
            yield f"{what} {sizes}", partial(run, sizes)
    for name, shape in itertools.product(("s4d", "s4"), LAYERS):
        yield f"{name} {shape}", partial(layer, name, shape)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
