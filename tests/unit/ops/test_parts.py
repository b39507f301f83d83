"""Parts of a projection: their gradients go back together without a copy."""

import pytest
import torch

from linrnn.cells import cell
from linrnn.compute import native
from linrnn.compute.parts import like_parts, parts, sections
from linrnn.ops import cell_scan, outer_scan
from linrnn.testing._derivatives import check_derivatives


@cell(state="h")
def gated(h, a, z):
    h = h + torch.sigmoid(z) * (a - h)
    return h, h


def scanned(x, form=None, reset=None):
    a, z = parts(x, 2)
    return cell_scan(gated, a=a, z=z, form=form, reset=reset)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_parts_equal_those_of_the_loop(dtype):
    x = torch.randn(2, 70, 2 * 36, dtype=torch.float64).to(dtype).requires_grad_()
    reset = torch.rand(2, 70) < 0.1
    weights = torch.randn(2, 70, 36, dtype=torch.float64).to(dtype)
    found, true = (
        torch.autograd.grad(scanned(x, form, reset), x, weights)[0] for form in ("native", "loop")
    )
    rtol = 2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, true, rtol=rtol, atol=rtol)


def test_the_machine_writes_them_side_by_side():
    seen = []
    x = torch.randn(2, 5, 2 * 8, requires_grad=True)
    a, z = parts(x, 2)
    for part in (a, z):
        part.register_hook(lambda g: seen.append(g.data_ptr()))
    y, _ = cell_scan(gated, a=a, z=z, form="native")
    (whole,) = torch.autograd.grad(y.sum(), x)
    assert sorted(seen) == [whole.data_ptr(), whole.data_ptr() + 8 * 4]


@pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(8, 8, 24), (5, 5, 3), (32, 32, 64)])
def test_so_do_memories_with_those_of_queries_keys_and_values(sizes, dtype):
    heads, seen = 3, []
    x = torch.randn(4, 70, heads * sum(sizes), dtype=torch.float64).to(dtype).requires_grad_()
    g = -torch.rand(4, 70, heads, sizes[0])
    into = torch.randn(4, 70, heads, sizes[2], dtype=torch.float64).to(dtype)
    gradients = []
    for copied in (False, True):
        parts = [p.unflatten(-1, (heads, -1)) for p in sections(x, [heads * n for n in sizes])]
        parts = [p.clone() if copied else p for p in parts]
        for part in parts:
            part.register_hook(lambda slope: seen.append(slope.untyped_storage().data_ptr()))
        o, _ = outer_scan(*parts, g.to(dtype), backend="cpu")
        gradients += torch.autograd.grad(o, x, into)
    assert len(set(seen[:3])) == 1
    assert seen[0] == gradients[0].data_ptr()
    assert torch.equal(*gradients)


def test_gradients_that_lie_apart_are_put_together():
    x = torch.randn(3, 2 * 4, dtype=torch.float64, requires_grad=True)
    a, b = parts(x, 2)
    (grad,) = torch.autograd.grad((2 * a).sum() + (b * b).sum(), x)
    want = torch.cat([torch.full((3, 4), 2.0), 2 * x.detach()[:, 4:]], -1)
    torch.testing.assert_close(grad, want)


def test_sections_are_those_of_pytorch():
    x = torch.randn(3, 9, requires_grad=True)
    for widths in ([2, 3, 4], [9], [0, 9]):
        assert all(map(torch.equal, sections(x, widths), x.split(widths, -1)))
    a, b, _ = sections(x, [2, 3, 4])
    (grad,) = torch.autograd.grad(2 * a.sum() + 3 * b.sum(), x)
    assert torch.equal(grad, torch.tensor([2.0] * 2 + [3.0] * 3 + [0.0] * 4).expand(3, 9))


def test_what_lies_otherwise_is_not_taken_for_parts():
    x = torch.randn(2, 3, 8)
    assert like_parts(list(x.chunk(2, -1))) is not None
    for wrong in ([x, x.clone()], list(x.chunk(2, -1))[::-1], list(x.chunk(4, -1))[:2], [x]):
        assert like_parts(wrong) is None
    assert like_parts(list(x.transpose(0, 1).chunk(2, -1))) is None


@pytest.mark.unchecked
def test_derivatives():
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    check_derivatives("parts", scanned, {"x": x}, singly=False)
