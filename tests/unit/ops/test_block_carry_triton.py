"""States carried over blocks, and tables of powers, by Triton: numbers, launches, machine code."""

import pytest
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE

INTERPRETED = """
import torch
from linrnn.ops import explain, use_backend
from linrnn.ops.conv import siso
from linrnn.ops.conv._block_carry import carry, carry_back, carry_dense, carry_dense_back
from linrnn.ops.conv.vandermonde import table

def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
"""


@pytest.fixture
def interpreted(warm):
    def run(code):
        return warm(f"{INTERPRETED}{code}", TRITON_INTERPRET="1")

    return run


@pytest.fixture
def offline(warm):
    """Run code where launches compile and do not run."""

    def run(code):
        return warm(OFFLINE + code, TRITON_INTERPRET="0")

    return run


@needs_triton
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_states_and_gradients_are_those_of_the_loop(interpreted, dtype):
    """No blocks, no rows, blocks that fill no group, and more modes than a program has."""
    interpreted(
        f"""
dtype = torch.{dtype}
for sizes in ((3, 2, 5, 4), (2, 3, 0, 4), (2, 0, 3, 4), (1, 3, 9, 140)):
    channels, seqs, blocks, modes = sizes
    left, first = drawn(*sizes, dtype=dtype), drawn(channels, seqs, modes, dtype=dtype, seed=1)
    decay = 0.5 * drawn(channels, modes, dtype=dtype, seed=2)
    into, last = drawn(*sizes, dtype=dtype, seed=3), drawn(*first.shape, dtype=dtype, seed=4)
    found = []
    for backend in ("tree", "triton"):
        states, grads = left.clone(), into.clone()
        with use_backend(backend):
            end = carry(states, first, decay)
            found.append((states, end, grads, *carry_back(grads, states, last, decay)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
result = 1
"""
    )


@needs_triton
def test_states_of_matrices_are_those_of_the_loop(interpreted):
    """No blocks, more sequences than a program has, and sizes that fill no tile."""
    interpreted(
        """
for sizes in ((2, 3, 0, 6), (2, 0, 3, 6), (1, 17, 3, 4), (2, 3, 5, 20)):
    channels, seqs, blocks, numbers = sizes
    left, first = drawn(*sizes), drawn(channels, seqs, numbers, seed=1)
    decay, into = 0.5 * drawn(channels, numbers, numbers, seed=2), drawn(*sizes, seed=3)
    found = []
    for backend in ("tree", "triton"):
        states, grads = left.clone(), into.clone()
        with use_backend(backend):
            end, start = carry_dense(states, first, decay), carry_dense_back(grads, first, decay)
        found.append((states, end, grads, start))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)
result = 1
"""
    )


@needs_triton
def test_states_of_large_matrices_and_in_double_precision_are_operators(interpreted):
    """The kernel declines both: matrices of 128 numbers are the largest that fit on chip."""
    declined = interpreted(
        """
from linrnn.ops.conv import _block_carry_triton as kernels
result = [
    kernels.carries_dense(torch.zeros(1, 1, 1, n, dtype=dtype))
    for n, dtype in ((128, torch.float32), (129, torch.float32), (8, torch.float64))
]
"""
    )
    assert declined == [True, False, False]


@needs_triton
def test_not_a_number_stays_in_its_mode(interpreted):
    interpreted(
        """
left, first = drawn(2, 3, 5, 8, dtype=torch.complex128), drawn(2, 3, 8, dtype=torch.complex128)
left[1, 2, 1, 3] = torch.nan
with use_backend("triton"):
    carry(left, first, torch.full((2, 8), 0.5, dtype=torch.complex128))
bad = left.isnan().nonzero().tolist()
assert bad == [[1, 2, n, 3] for n in (2, 3, 4)], bad
result = 1
"""
    )


@needs_triton
def test_powers_are_those_of_double_precision(interpreted):
    interpreted(
        """
for modes, dtype in ((3, torch.complex128), (70, torch.complex128), (5, torch.float64)):
    a = 0.6 * drawn(2, modes, dtype=dtype)
    a[0, 0] = 0
    for count in (1, 2, 17, 33):
        true = torch.cumprod(torch.stack([torch.ones_like(a), *[a] * (count - 1)], 1), 1)
        with use_backend("triton"):
            exact = table(a, count, dtype)
        torch.testing.assert_close(exact, true, rtol=1e-12, atol=1e-13)
result = 1
"""
    )


@needs_triton
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_matrices_of_blocks_and_gradients_are_those_of_operators(interpreted, dtype):
    """Two sizes, more powers and modes than a program has, and results in single precision."""
    interpreted(
        f"""
from linrnn.ops.conv.siso import block_tables, _TABLES
dtype = torch.{dtype}
single = torch.complex64 if dtype.is_complex else torch.float32

def both(backend, modes, sizes, to):
    leaves = [drawn(2, modes, dtype=dtype, seed=i) for i in range(3)]
    leaves[0] /= 1 + leaves[0].abs()
    leaves = [x.requires_grad_() for x in (*leaves, drawn(2, dtype=torch.float64, seed=3))]
    call = block_tables if backend == "tree" else _TABLES
    with use_backend(backend):
        tables = call(*leaves, sizes, to)
    loss = sum((x.real * x.real.cos() + (x.imag if x.is_complex() else 0)).sum() for x in tables)
    return *tables, *torch.autograd.grad(loss, leaves)

for modes, sizes in ((3, (8, 3)), (40, (17,)), (5, (1,))):
    found = [both(backend, modes, sizes, dtype) for backend in ("triton", "tree")]
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-12)
    for rounded, exact in zip(both("triton", modes, sizes, single), found[1], strict=True):
        wide = rounded.to(exact.dtype)
        torch.testing.assert_close(wide, exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())
result = 1
"""
    )


@needs_triton
def test_systems_give_the_numbers_and_gradients_of_operators(interpreted):
    interpreted(
        """
def both(backend):
    system = [0.5 * drawn(3, 4, dtype=torch.complex128, seed=i) for i in range(3)]
    system.append(drawn(3, dtype=torch.float64, seed=3))
    u, h = drawn(2, 80, 3, dtype=torch.float64), drawn(2, 3, 4, dtype=torch.complex128, seed=5)
    leaves = [x.requires_grad_() for x in (*system, u, h)]
    with use_backend(backend):
        y, last = siso.scan(leaves[:4], *leaves[4:], None)
        return y, last, *torch.autograd.grad(y.cos().sum() + last.abs().sum(), leaves)

torch.testing.assert_close(both("triton"), both("tree"), rtol=1e-10, atol=1e-10)
result = 1
"""
    )


@needs_triton
@pytest.mark.slow
def test_what_is_not_finite_stays_where_operators_keep_it(interpreted):
    """In blocks of 32 and of 11 steps, of more channels than a program has, in a slice of time."""
    interpreted(
        """
def both(backend):
    system = [0.5 * drawn(40, 2, dtype=torch.complex128, seed=i) for i in range(3)]
    system.append(drawn(40, dtype=torch.float64, seed=3))
    u, h = drawn(2, 48, 40, dtype=torch.float64), torch.zeros(2, 40, 2, dtype=torch.complex128)
    u[0, 20, 3], u[0, 40, 35], u[1, 45, 39], u[1, 46, 39] = torch.nan, torch.inf, -torch.inf, 1
    leaves = [x.requires_grad_() for x in (*system, u)]
    with use_backend(backend):
        y, last = siso.scan(leaves[:4], leaves[4][:, 5:], h, None)
        return y, last, *torch.autograd.grad(y.nan_to_num().sum(), leaves)

ours, theirs = both("triton"), both("tree")
assert ours[0].isnan().sum() > 30
torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, equal_nan=True)
result = 1
"""
    )


@needs_triton
def test_a_call_says_what_carries_states(interpreted):
    said, cut = interpreted(
        """
system = [torch.rand(3, 4, dtype=torch.complex128)] * 3 + [torch.rand(3)]
u, h = torch.rand(2, 80, 3), torch.zeros(2, 3, 4, dtype=torch.complex64)
with use_backend("triton"):
    result = [explain("siso_scan", system, u, h, x) for x in (None, torch.zeros(2, 80).bool())]
"""
    )
    assert "products of matrices inside of blocks of 32 steps, and between them triton" in said
    assert "a convolution by FFT launches nine times as many" in said
    assert cut == "PyTorch's operators and linear_scan, in blocks of 16 steps"


@needs_triton
def test_blocks_cost_no_launches(offline):
    """S4D's scan of 2 blocks and of 32: kernels for states, matrices of blocks and the layout."""
    few, many = offline("""
offline.launch_uncompiled()
result = [counts(lambda t=t: calls.systems((2, t, 8, 4))) for t in (64, 1024)]
""")
    assert few == many
    kernels, operators, kernels_both, operators_both = many
    assert (kernels, kernels_both) == (4, 7)
    assert operators <= 10  # of which copies inside of products count
    assert operators_both <= 29


@needs_triton
def test_blocks_of_s4_cost_no_launches(offline):
    """Powers are computed for one size of blocks, and what is left of time is none."""
    few, many = offline("""
offline.launch_uncompiled()
result = [counts(lambda t=t: calls.layer("s4", (2, t, 8))) for t in (256, 512)]
""")
    assert few == many
    assert few[::2] == [5, 9]


@needs_triton
def test_matrices_of_s4_stay_on_chip_and_spill_nothing(offline):
    """With 64 numbers a state, as S4 has them by default, and as many as a program takes."""
    codes = offline("""
from linrnn.ops.conv import _block_carry_triton as kernels
for numbers in (64, 128):
    left, decay = torch.zeros(64, 32, 8, numbers), torch.zeros(64, numbers, numbers)
    for back in (False, True):
        kernels.carry_dense(left, left[:, :, 0].contiguous(), decay, back=back)
result = [offline.code(x.cubin) for x in offline.LAUNCHES]
""")
    assert len(codes) == 4
    for registers, spills, widest, _, _, loop_barriers, *_ in codes:
        assert (spills, widest) == (0, 128)
        assert loop_barriers <= 6
        assert registers <= 255


@needs_triton
def test_blocks_are_turned_without_spills_a_line_of_memory_at_a_time(offline):
    """With blocks of 32 and 64 steps: a warp reads or writes 128 bytes of a row at once."""
    codes = offline("""
from linrnn.ops.conv import _block_layout_triton as kernels
for size in (32, 64):
    u = torch.zeros(32, 4 * size, 256)
    x, _, first = kernels.cut(u, size)
    kernels.join(x, first, None, u.shape)
    kernels.join(x, None, u, u.shape)
result = [[x.name, *offline.code(x.cubin)] for x in offline.LAUNCHES]
""")
    assert [x[0] for x in codes] == ["run_cut", "run_join", "run_join"] * 2
    for name, registers, spills, widest, _, barriers, *_ in codes:
        assert (spills, widest) == (0, 128), name
        assert (registers <= 64, barriers <= 9) == (True, True), name


@needs_triton
def test_matrices_of_blocks_are_written_and_read_128_bits_wide_without_spills(offline):
    """With 32 steps and 32 modes, as S4D has them by default."""
    codes = offline("""
from linrnn.ops.conv import _siso_tables_triton as kernels
a = torch.zeros(64, 32, dtype=torch.complex128)
arguments = a, a, a.to(torch.complex64), torch.zeros(64), (32,), torch.complex64
tables = kernels.forward(*arguments)
kernels.backward(*arguments, *tables)
result = [[x.name, *offline.code(x.cubin)] for x in offline.LAUNCHES]
""")
    assert [x[0] for x in codes] == ["run_forward", "run_backward"]
    for name, _, spills, widest, _, barriers, *_ in codes:
        assert (spills, widest, barriers) == (0, 128, 0), name


@needs_triton
def test_they_load_128_bits_and_spill_nothing(offline):
    """With 256 channels and 32 rows, as an S4D layer has them by default."""
    codes = offline("""
from linrnn.ops.conv import _block_carry_triton as kernels
left = torch.zeros(256, 32, 8, 32, dtype=torch.complex64)
state, decay = left[:, :, 0], left[:, 0, 0]
kernels.forward(left, state, decay)
kernels.backward(left, left, state, decay)
kernels.powers(decay.to(torch.complex128), 33, left.dtype)
result = [[x.name, *offline.code(x.cubin)] for x in offline.LAUNCHES]
""")
    assert [x[0] for x in codes] == ["run_forward", "run_backward", "run_powers"]
    for name, registers, spills, widest, _, barriers, *_ in codes:
        assert (spills, widest, barriers) == (0, 128, 0), name
        assert registers <= 168, name  # 12 programs a multiprocessor
