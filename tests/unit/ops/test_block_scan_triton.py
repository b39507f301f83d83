"""`block_scan` on Triton: numbers in its interpreter, and machine code for a GPU."""

import pytest
import torch
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE

from linrnn.ops.linear.block_scan import _triton


@pytest.fixture
def interpreted(warm):
    def run(code):
        return warm(code, TRITON_INTERPRET="1")

    return run


@needs_triton
@pytest.mark.parametrize(
    "law",
    [
        "matches_its_steps('block_scan', 'triton', in_turns=True, one_dtype=True)",
        "empty_sizes('block_scan', 'triton')",
        pytest.param("any_memory('block_scan', 'triton')", marks=pytest.mark.slow),
        "nothing_passes_a_cut('block_scan', 'triton')",
        pytest.param("pieces_equal_one_pass('block_scan', 'triton')", marks=pytest.mark.slow),
    ],
    ids=lambda law: law.partition("(")[0],
)
def test_law(interpreted, law):
    interpreted(f"from linrnn.testing._every_op import *\n{law}\nresult = 1")


SIZES = """
import torch
from linrnn.compute.op import ALL
from linrnn.ops import block_scan
torch.set_num_threads(1)

def drawn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))

def evaluated(backend, tensors, **layout):
    leaves = [x.clone().requires_grad_() for x in tensors]
    h, final = block_scan(*leaves, **layout, backend=backend)
    into = [torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype) for x in (h, final)]
    return [h, final, *torch.autograd.grad((h, final), leaves, into)]
"""


@needs_triton
@pytest.mark.parametrize(
    ("side", "blocks", "constant", "is_complex"),
    [(4, 70, False, False), (3, 9, True, True), (20, 2, False, True), (64, 1, False, False)],
)
def test_any_side_and_number_of_blocks(interpreted, side, blocks, constant, is_complex):
    """Packed, backward, with resets; a program has one block, or some of them."""
    sizes = f"{blocks}, {side}, {side}"
    interpreted(
        f"""{SIZES}
time, dtype = 7, torch.{"complex128" if is_complex else "float64"}
A = 0.5 * drawn({sizes if constant else f"1, time, {sizes}"}, dtype=dtype) / {side}**0.5
b, start = drawn(1, time, {blocks}, {side}, dtype=dtype), drawn(3, {blocks}, {side}, dtype=dtype)
layout = {{"cu_seqlens": torch.tensor([0, 3, 3, time]), "reverse": True}}
layout |= {{"reset": torch.tensor([[False, True, False, False, False, False, True]])}}
blocks = A, b, start, None, None, None, False, True
assert ALL["block_scan"].kernels(b, blocks, "triton").__name__.endswith("_triton")
ours, again, exact = (evaluated(x, (A, b, start), **layout)
                      for x in ("triton", "triton", "reference"))
for x, y, z in zip(ours, again, exact):
    assert torch.equal(x, y)
    torch.testing.assert_close(x, z, rtol=1e-12, atol=1e-12)
result = 1
"""
    )


def test_long_sequences_large_sides_and_permutations_are_left_to_a_tree():
    A, b = torch.zeros(1, 4, 2, 2, 2), torch.zeros(1, 4, 2, 2)
    layout = (None, None, False, False)
    assert _triton.declines(A, b, None, None, *layout) is None
    assert "rows or columns" in _triton.declines(b, b, None, b.long(), *layout)
    assert "side 65" in _triton.declines(torch.zeros(1, 65, 65), b, None, None, *layout)
    long = torch.zeros(1, 4097, 1, 1)
    assert "4097 steps" in _triton.declines(A, long, None, None, *layout)
    packed = (None, torch.tensor([0, 2000, 4097]), False, False)
    assert _triton.declines(A, long, None, None, *packed) is None


@needs_triton
@pytest.mark.parametrize(
    ("shape", "widest"),
    [
        ((2, 64, 64, 4), 128),
        pytest.param((2, 64, 16, 16), 128, marks=pytest.mark.slow),
        pytest.param((2, 64, 4, 64), 128, marks=pytest.mark.slow),
        pytest.param((2, 64, 64, 2), 64, marks=pytest.mark.slow),
    ],
)
def test_walks_load_wide_and_spill_nothing(warm, shape, widest):
    codes = warm(
        f"""{OFFLINE}
from linrnn.ops import block_scan

def blocks(*shape):
    A, b = calls._leaf(*shape, shape[-1]), calls._leaf(*shape)
    return (lambda: block_scan(A, b, backend="triton")[0]), (A, b)

result = codes(lambda: blocks(*{shape}))
""",
        TRITON_INTERPRET="0",
    )
    assert [name for name, *_ in codes] == ["run_forward", "run_backward"]
    for name, registers, spills, load, *_ in codes:
        assert (spills, load) == (0, widest), name
        assert registers <= 168, name  # 12 programs of a warp on a multiprocessor
