"""Linear maps inside of autocast: outputs as PyTorch's, gradients of weights against float64."""

import pytest
import torch
import torch.nn.functional as F

import linrnn
from linrnn.ops import use_backend
from linrnn.ops.half_linear import (
    available,
    half_cast,
    half_linear,
    half_outer_sum,
    half_outer_sums,
)

needs_tiles = pytest.mark.skipif(not available(), reason="no matrix tiles for bfloat16")
SHAPES = [
    (2, 300, 96, 80),
    (1, 1031, 97, 70),
    (7, 100, 300, 65),
    (4, 700, 512, 3),
    (3, 900, 5, 400),
]


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def leaves(batch, time, n_in, n_out):
    tensors = drawn(batch, time, n_in), drawn(n_out, n_in, seed=1), drawn(n_out, seed=2)
    return [x.requires_grad_() for x in tensors]


def gradients(run, tensors):
    with autocast():
        y = run(*tensors)
    into = drawn(*y.shape, seed=3).bfloat16()
    return y.detach(), torch.autograd.grad(y, tensors, into)


def exact(tensors):
    """Gradients of the weight and bias of the rounded factors, in float64."""
    x, weight, _ = tensors
    into = drawn(*x.shape[:2], len(weight), seed=3).bfloat16().double().flatten(0, 1)
    return into.mT @ x.detach().bfloat16().double().flatten(0, 1), into.sum(0)


def error(got, true):
    return float((got.double() - true).norm() / true.norm())


@needs_tiles
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_have_gradients_in_float32(shape):
    tensors = leaves(*shape)
    y, got = gradients(half_linear, tensors)
    theirs, wanted = gradients(F.linear, tensors)
    assert torch.equal(y, theirs)
    assert [g.dtype for g in got] == [torch.float32] * 3
    torch.testing.assert_close(got[0], wanted[0], rtol=2**-7, atol=1e-2)
    for slope, rounded, true in zip(got[1:], wanted[1:], exact(tensors), strict=True):
        assert error(slope, true) < 1e-6
        assert error(rounded, true) > 1e-4  # what the kernel is for


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_tiles_gradients_are_those_of_autocast(shape):
    tensors = leaves(*shape)
    with use_backend("tree"):
        y, got = gradients(half_linear, tensors)
    theirs, wanted = gradients(F.linear, tensors)
    assert torch.equal(y, theirs)
    for slope, other in zip(got, wanted, strict=True):
        assert slope.dtype is torch.float32
        torch.testing.assert_close(slope, other, rtol=2**-7, atol=1e-2)


def test_outside_of_autocast_it_is_linear():
    tensors = leaves(2, 300, 96, 80)
    assert torch.equal(half_linear(*tensors), F.linear(*tensors))
    with autocast(), torch.no_grad():
        assert torch.equal(half_linear(*tensors), F.linear(*tensors))


@needs_tiles
def test_any_strides_of_the_gradient_and_of_the_input():
    x, weight, bias = leaves(4, 200, 96, 80)
    with autocast():
        whole = half_linear(x, weight, bias)
        turned = half_linear(x.detach().transpose(0, 1).contiguous().transpose(0, 1), weight, bias)
    into = drawn(4, 1, 80).bfloat16().expand(4, 200, 80)  # as of a mean over time
    (first,) = torch.autograd.grad(whole, weight, into)
    (second,) = torch.autograd.grad(turned, weight, into)
    assert torch.equal(first, second)
    rows = into.double().flatten(0, 1)
    assert error(first, rows.mT @ x.detach().bfloat16().double().flatten(0, 1)) < 1e-6


@needs_tiles
def test_any_threads_give_the_same_bits():
    threads, bits, tensors = torch.get_num_threads(), [], leaves(4, 700, 256, 96)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            bits.append(gradients(half_linear, tensors)[1][1])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*bits)


@needs_tiles
def test_only_gradients_that_are_needed_are_computed():
    x, weight, bias = leaves(2, 300, 96, 80)
    with autocast():
        y = half_linear(x.detach(), weight, bias)
        frozen = half_linear(x, weight, bias.detach())
    into = drawn(2, 300, 80, seed=3).bfloat16()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as calls:
        (slope,) = torch.autograd.grad(y, weight, into)
    assert not any(event.key == "aten::mm" for event in calls.key_averages())
    assert torch.equal(slope, torch.autograd.grad(frozen, weight, into)[0])


@needs_tiles
def test_the_gradient_of_a_bfloat16_weight_is_rounded_once():
    x, weight, bias = (t.detach().bfloat16().requires_grad_() for t in leaves(2, 300, 96, 80))
    into = drawn(2, 300, 80, seed=3).bfloat16()
    _, *got = torch.autograd.grad(half_linear(x, weight, bias), (x, weight, bias), into)
    for slope, true in zip(got, exact((x, weight, bias)), strict=True):
        assert torch.equal(slope, true.bfloat16())


def test_a_sum_of_outer_products():
    left, right = drawn(500, 96).bfloat16(), drawn(500, 100, seed=1).bfloat16()
    true = left.double().mT @ right.double()
    whole = half_outer_sum(left, right)
    assert error(whole, true) < (1e-6 if available() else 1e-2)
    assert (
        error(half_outer_sum(left[:4], right[:4]), left[:4].double().mT @ right[:4].double()) < 1e-2
    )


@needs_tiles
def test_the_sum_of_rows_beside_it():
    left, right = drawn(1031, 97).bfloat16(), drawn(1031, 100, seed=1).bfloat16()
    product, sums = half_outer_sums(left, right)
    assert torch.equal(product, half_outer_sum(left, right))
    assert sums.dtype is torch.float32
    assert error(sums, left.double().sum(0)) < 1e-6
    few, sums = half_outer_sums(left[:4], right[:4])
    assert torch.equal(few, half_outer_sum(left[:4], right[:4]))
    assert error(sums, left[:4].double().sum(0)) < 1e-6


def test_derivatives_of_second_order():
    x, weight, bias = leaves(1, 600, 96, 80)
    with autocast():
        y = half_linear(x, weight, bias)
    (slope,) = torch.autograd.grad(y.float().square().sum(), weight, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.square().sum(), weight)
    rows = x.detach().double().flatten(0, 1)
    gram = rows.mT @ rows
    true_slope = 2 * (
        weight.detach().double() @ gram + bias.detach().double()[:, None] * rows.sum(0)
    )
    assert error(slope.detach(), true_slope) < 1e-2
    assert error(curvature, 4 * true_slope @ gram) < 1e-2


#: Layers, and maps of theirs with a sequence.
LEARN = {
    "mingru": ["in_proj"],
    "mamba2": ["in_proj", "out_proj"],
    "gated_delta_net": ["qkv.heads.proj", "out.out_proj"],
    "gla": ["out.out_proj"],
    "rwkv4": ["key", "value", "receptance", "output"],
}


@needs_tiles
@pytest.mark.parametrize("name", LEARN)
def test_layers_learn_with_it(name):
    torch.manual_seed(0)
    mixer = linrnn.mixers.build(name, 128, {})
    with autocast():
        y, _ = mixer(drawn(4, 128, 128))
    y.float().square().sum().backward()
    for path in LEARN[name]:
        slope = mixer.get_submodule(path).weight.grad
        assert slope.dtype is torch.float32
        assert not torch.equal(slope, slope.bfloat16().float()), path


#: The last one is larger than caches, and so is written past them.
CASTS = [(1, 1 << 16), (3, 70_001), (1, 200_003), (5, 700_001)]


@needs_tiles
@pytest.mark.parametrize("shape", CASTS, ids=str)
def test_casts_give_the_numbers_of_pytorch(shape):
    x = drawn(*shape)
    x[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    x[0, 4:6] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8])  # ties
    y = half_cast(x, torch.bfloat16)
    torch.testing.assert_close(y, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(half_cast(y[:, 4:], torch.float32), y[:, 4:].float())
    back = half_cast(y.contiguous(), torch.float32)
    torch.testing.assert_close(back, y.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(half_cast(x.mT[4:], torch.bfloat16), x.mT[4:].bfloat16())


@needs_tiles
def test_a_cast_has_gradients_of_any_order_in_the_dtype_of_its_input():
    x = drawn(2, 1 << 16).requires_grad_()
    for dtype, start in ((torch.bfloat16, x), (torch.float32, x.detach().bfloat16())):
        start = start.detach().requires_grad_()
        (slope,) = torch.autograd.grad(
            half_cast(start, dtype).square().sum(), start, create_graph=True
        )
        assert slope.dtype is start.dtype
        torch.testing.assert_close(slope, 2 * start, rtol=2**-7, atol=0)
        (curvature,) = torch.autograd.grad(slope.sum(), start)
        assert torch.equal(curvature, torch.full_like(start, 2))


@needs_tiles
def test_small_casts_and_those_under_another_backend_are_pytorchs():
    x = drawn(2, 1 << 16)
    tiny = torch.full((1, 1 << 16), 1e-39)
    assert not half_cast(tiny, torch.bfloat16).any()  # what the kernel does with subnormals
    with use_backend("reference"):
        assert torch.equal(half_cast(tiny, torch.bfloat16), tiny.bfloat16())
    assert torch.equal(half_cast(tiny[:, :9], torch.bfloat16), tiny[:, :9].bfloat16())
    assert half_cast(x, torch.float32) is x
    assert half_cast(x, torch.float64).dtype is torch.float64
