"""Time of norms, gates, token shifts and rates by generated kernels, beside PyTorch's operators.

Each forward and both ways, and layers that have them whole. LinOSS walks along time in a kernel,
or is a tree of operators: the lengths say where one overtakes the other.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, main
from torch import Tensor

from linrnn import mixers
from linrnn.nn.heads import l2_normalise
from linrnn.ops import use_backend
from linrnn.ops.conv.token_mix import token_mix
from linrnn.ops.gated_norm import gated_norm
from linrnn.ops.matrix.low_rank_keys import low_rank_keys

#: Rows, steps, channels and heads.
SHAPES = ((8, 1024, 256, 4), (8, 2048, 2048, 16), (32, 1024, 512, 8))
LAYERS = ("lru", "mamba2", "gla", "gated_delta_net", "kda", "rwkv6", "rwkv7", "hgrn", "mlstm")
LAYER_SHAPE = (32, 1024, 256)
#: Rows, steps and channels of LinOSS.
OSCILLATORS = ((32, 1024, 256), (8, 4096, 256), (1, 16384, 256), (1, 65536, 64))
if TINY:
    SHAPES, LAYERS, LAYER_SHAPE = ((2, 5, 12, 3),), ("lru", "mamba2"), (2, 5, 16)
    OSCILLATORS = ((2, 7, 4),)
MOST = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def results_and_gradients(run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> list[Tensor]:
    """Results of a function, and gradients of its tensors."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    results = run(*leaves)
    grads = torch.autograd.grad(results, leaves, [torch.ones_like(y) for y in results])
    return [*results, *grads]


def without_gradient(
    run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """The results alone."""
    with torch.no_grad():
        return run(*tensors)


def by(backend: str, way: Callable[..., object], run: object, *tensors: Tensor) -> object:
    """A way to run a function, on a backend."""
    with use_backend(backend):
        return way(run, *tensors)


def worst(found: object, true: object) -> float:
    """The largest of the errors of tensors."""
    assert isinstance(found, (list, tuple))
    assert isinstance(true, (list, tuple))
    return max(error_of(x, y) for x, y in zip(found, true, strict=True))


def compared(
    name: str,
    run: Callable[..., tuple[Tensor, ...]],
    tensors: tuple[Tensor, ...],
    most: float,
) -> Case:
    """Operators and kernels, forward and both ways."""
    runs: dict[str, Run] = {}
    errors = {}
    for more, way in (("", without_gradient), (", both ways", results_and_gradients)):
        true = by("tree", way, run, *(x.double() for x in tensors))
        for backend, what in (("tree", "operators"), ("triton", "kernels")):
            runs[what + more] = partial(by, backend, way, run, *tensors)
            errors[what + more] = worst(runs[what + more](), true)
    return Case(name, runs, errors, most, sum(x.nbytes for x in tensors))


def functions(
    heads: int,
) -> dict[str, tuple[Callable[..., tuple[Tensor, ...]], int, int]]:
    """By name, with how many tensors differ from step to step and how many do not."""

    def gated(x: Tensor, z: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (gated_norm(x, z, weight, groups=heads, eps=1e-5, gate="silu"),)

    def keys(key: Tensor, rate: Tensor, decay: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        return low_rank_keys(key, rate, decay, *more, heads=heads, scale=-0.6)

    def mixed(x: Tensor, *mu: Tensor) -> tuple[Tensor, ...]:
        return token_mix(x, torch.zeros_like(x[:, :1]), torch.stack(mu))

    def of_length_1(x: Tensor) -> tuple[Tensor]:
        return (l2_normalise(x.unflatten(-1, (heads, -1))),)

    return {
        "gated norm": (gated, 2, 1),
        "keys of RWKV-7": (keys, 3, 2),
        "six token shifts": (mixed, 1, 6),
        "keys of length 1": (of_length_1, 1, 0),
    }


def function(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Case:
    """One of `functions`."""
    torch.manual_seed(0)
    run, rows, channels = functions(shape[3])[name]
    by_row = (torch.randn(shape[:3], device=DEVICE, dtype=dtype) for _ in range(rows))
    by_channel = (torch.randn(shape[2], device=DEVICE, dtype=dtype) for _ in range(channels))
    return compared(f"{name} {shape} {dtype}", run, (*by_row, *by_channel), MOST[dtype])


def layer(name: str, shape: tuple[int, int, int]) -> Case:
    """A whole layer; in double precision a single row is compared."""
    torch.manual_seed(0)
    module, x = mixers.load(name)(shape[2]).to(DEVICE), torch.randn(shape, device=DEVICE)
    exact = copy.deepcopy(module).double()
    runs: dict[str, Run] = {}
    errors = {}
    for more, way in (("", without_gradient), (", both ways", results_and_gradients)):
        true = by("tree", way, lambda x: exact(x)[:1], x[:1].double())
        for backend, what in (("tree", "operators"), ("triton", "kernels")):
            one = partial(by, backend, way, lambda x: module(x)[:1])
            runs[what + more] = partial(one, x)
            errors[what + more] = worst(one(x[:1]), true)
    return Case(f"{name} {shape}", runs, errors, 1e-3, 2 * x.nbytes)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape in SHAPES:
        for dtype in MOST:
            for name in functions(shape[3]):
                yield f"{name} {shape} {dtype}", partial(function, name, shape, dtype)
    for name in LAYERS:
        yield f"{name} {LAYER_SHAPE}", partial(layer, name, LAYER_SHAPE)
    for sizes in OSCILLATORS:
        yield f"linoss {sizes}", partial(layer, "linoss", sizes)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
