"""Powers of S4's transition by Triton: numbers, gradients, launches, machine code."""

import pytest
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE

INTERPRETED = """
import torch
from linrnn.ops import use_backend
from linrnn.ops.conv._dplr_powers import _PRODUCT

def drawn(*shape, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.complex128, generator=draw)

def both(backend, rank, modes, steps, rest, dtype):
    leaves = [drawn(2, modes, seed=i) for i in range(3)]
    leaves += [0.2 * drawn(2, rank, modes, seed=i) for i in (3, 4)]
    leaves[0] = 0.9 * torch.sgn(leaves[0])
    for x in leaves:
        x.requires_grad_()
    with use_backend(backend):
        matrices = _PRODUCT(*leaves, steps, rest, dtype)
    loss = sum((x.double() * x.double().cos()).sum() for x in matrices)
    return *matrices, *torch.autograd.grad(loss, leaves)
"""


@needs_triton
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numbers_and_gradients_are_those_of_operators(warm, dtype):
    """One rank and two, modes and steps that fill no tile, with and without a shorter block."""
    sizes = ((1, 5, 4, 3), (2, 3, 2, 0), (1, 17, 1, 0))
    sizes = sizes if dtype == "float64" else sizes[:1]
    warm(
        f"""{INTERPRETED}
for sizes in {sizes}:
    results = both("triton", *sizes, torch.{dtype})
    expected = both("tree", *sizes, torch.float64)
    for x, y in zip(results, expected, strict=True):
        if y.numel():
            error = (x - y).abs().max() / y.abs().max()
            assert error < {1e-11 if dtype == "float64" else 1e-5}, (sizes, error)
result = 1
""",
        TRITON_INTERPRET="1",
    )


@needs_triton
def test_they_spill_nothing_and_load_128_bits(warm, tmp_path):
    """With 256 channels, 32 modes and blocks of 64 steps, as an S4 layer has them by default."""
    codes = warm(
        f"""{OFFLINE}
from linrnn.ops.conv import _dplr_powers_triton as kernels
vectors = [torch.zeros(256, 32, dtype=torch.complex128) for _ in range(3)]
thin = [torch.zeros(256, 1, 32, dtype=torch.complex128) for _ in range(2)]
arguments = (*vectors, *thin, 64, 8, torch.float32)
*matrices, walks = kernels.forward(*arguments, keep=True)
kernels.backward(*arguments, walks, *matrices)
result = [[x.name, *offline.code(x.cubin)] for x in offline.LAUNCHES]
""",
        TRITON_CACHE_DIR=str(tmp_path),
        TRITON_INTERPRET="0",
    )
    names = [name for name, *_ in codes]
    assert names[:2] == ["run_walks", "run_dense_powers"]
    assert names[2:] == ["run_dense_powers_backward", "run_walks_backward"]
    for name, registers, spills, widest, _, _, loop_barriers, _ in codes:
        assert (spills, loop_barriers) == (0, 0), name
        assert registers <= 184, name
        assert widest == (64 if name == "run_dense_powers_backward" else 128), name
