"""Parts of a projection: their gradients go back together without a copy."""

import pytest
import torch

from linrnn.cells import cell
from linrnn.compute.parts import like_parts, parts
from linrnn.ops import cell_scan
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


def test_gradients_that_lie_apart_are_put_together():
    x = torch.randn(3, 2 * 4, dtype=torch.float64, requires_grad=True)
    a, b = parts(x, 2)
    (grad,) = torch.autograd.grad((2 * a).sum() + (b * b).sum(), x)
    want = torch.cat([torch.full((3, 4), 2.0), 2 * x.detach()[:, 4:]], -1)
    torch.testing.assert_close(grad, want)


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
