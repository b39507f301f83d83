"""`block_scan`: what its laws do not say. They run in the contract tests."""

import pytest
import torch

from linrnn.compute import native
from linrnn.compute.op import ALL
from linrnn.errors import ArgumentError, BackendError, DTypeError, ShapeError
from linrnn.ops import block_scan, explain, linear_scan
from linrnn.ops.linear import matrix_scan

B, T, C = 2, 9, 3


def randn(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype)


def test_diagonal_blocks_are_linear_scan():
    a, b = 0.9 * randn(B, T, 2 * C), randn(B, T, 2 * C)
    h, final = block_scan(torch.diag_embed(a.view(B, T, C, 2)), b.view(B, T, C, 2))
    expected, last = linear_scan(a, b)
    torch.testing.assert_close(h.flatten(2), expected)
    torch.testing.assert_close(final.flatten(1), last)


@pytest.mark.parametrize("backend", ["cpu", "tree", "reference"])
def test_a_permutation_of_two_columns_to_one_row(backend):
    """Scattered, the numbers of both add up; gathered, both places read one of them."""
    scale, to = torch.tensor([0.5, 0.25]), torch.tensor([1, 1])
    start, none = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2, 2)
    h, _ = block_scan(scale, none, start, rows=to, backend=backend)
    assert h[0].tolist() == [[0.0, 0.5], [0.0, 0.125]]
    h, _ = block_scan(scale, none, start.flip(1), columns=to, backend=backend)
    assert h[0].tolist() == [[0.5, 0.25], [0.125, 0.0625]]


@pytest.mark.parametrize("side", [1, 2, 5])
@pytest.mark.parametrize("axes", [(), (C,), (2, C)])
@pytest.mark.parametrize("varying", [False, True])
def test_one_step_equals_a_sequence_of_one(side, axes, varying):
    A = randn(*((B, 1) if varying else ()), *axes, side, side)
    b, h0 = randn(B, 1, *axes, side), randn(B, *axes, side)
    reset = torch.tensor([[True], [False]])
    for more in ({}, {"reset": reset}):
        step = block_scan(A, b, h0, **more)
        for got, expected in zip(
            step, block_scan(A, b, h0, backend="reference", **more), strict=True
        ):
            torch.testing.assert_close(got, expected)


def test_axes_of_size_one_broadcast():
    A, b = randn(1, T, 1, 2, 2), randn(B, T, C, 2)
    h, _ = block_scan(A, b)
    expected, _ = block_scan(A.expand(B, T, C, 2, 2).contiguous(), b)
    assert torch.equal(h, expected)


def test_large_constant_matrices_go_by_products():
    A, b = 0.1 * randn(1, 70, 70), randn(B, T, 1, 70)
    assert "side 70" in explain(block_scan, A, b)
    torch.testing.assert_close(block_scan(A, b)[0], block_scan(A, b, backend="reference")[0])


def test_matrix_scan_is_the_same_op():
    re, im, b, h0 = randn(C), randn(C), randn(B, T, C, 2), randn(B, C, 2)
    A = torch.stack([torch.stack([re, -im], -1), torch.stack([im, re], -1)], -2)
    assert torch.equal(matrix_scan.block_scan(re, im, b, h0, None)[0], block_scan(A, b, h0)[0])
    A, b, h0 = randn(4, 4), randn(B, T, 4), randn(B, 4)
    for scan in (matrix_scan.dense_scan, matrix_scan.dense_loop):
        torch.testing.assert_close(scan(A, b, h0, None), block_scan(A, b, h0))


@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("constant", [False, True])
def test_the_number_of_threads_changes_no_bit(side, dtype, constant, monkeypatch):
    """Threads divide the blocks of a sequence, in vectors and what stands behind their end."""
    A = 0.1 * randn(*(() if constant else (1, 900)), 131, side, side, dtype=dtype)
    leaves = [x.requires_grad_() for x in (A, randn(1, 900, 131, side, dtype=dtype))]
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(native, "threads", lambda threads=threads: threads)
        h, final = block_scan(*leaves)
        results.append((h, final, *torch.autograd.grad(h.abs().sum(), leaves)))
    for several in results[1:]:
        assert all(map(torch.equal, several, results[0]))


def test_the_kernel_refuses_an_index_outside_of_its_block():
    """A graph does not look at values, and comes to the kernel."""
    index = torch.full((B, T, C, 2), 2)
    with pytest.raises(BackendError, match="an index is outside of its block"):
        ALL["block_scan"](
            randn(B, T, C, 2), randn(B, T, C, 2), None, index, None, None, False, False
        )


@pytest.mark.unchecked
def test_errors():
    A, b, index = randn(C, 2, 2), randn(B, T, C, 2), torch.zeros(C, 2, dtype=torch.long)
    with pytest.raises(ShapeError, match=r"A must have shape \(2, 9, 3, 2, 2\), or, constant in"):
        block_scan(A[:2], b)
    with pytest.raises(ShapeError, match=r"b must have shape \(batch, time, \*blocks, n\), got"):
        block_scan(A, b[0, :, 0])
    with pytest.raises(ArgumentError, match="rows and columns must not both be given"):
        block_scan(A[..., 0], b, rows=index, columns=index)
    with pytest.raises(ArgumentError, match="must be from 0 to 1, the places of a block, got 2"):
        block_scan(A[..., 0], b, rows=index + 2)
    with pytest.raises(DTypeError, match=r"must be torch.int64, got torch.int32"):
        block_scan(A[..., 0], b, rows=index.int())
    with pytest.raises(DTypeError, match="initial_state must be real like A and b"):
        block_scan(A, b, randn(B, C, 2, dtype=torch.complex128))
