"""Scans over pairs of bfloat16 numbers against float64: states, gradients, layouts and bits."""

import pytest
import torch

from linrnn.compute import native
from linrnn.ops import linear_scan, use_backend
from linrnn.ops.linear.pair_scan import pair_scan

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
ROUNDING = 2**-8


def arguments(batch=3, time=75, modes=37, seed=0):
    generator = torch.Generator().manual_seed(seed)
    angle = 6 * torch.rand(modes, generator=generator)
    a = torch.polar(torch.rand(modes, generator=generator), angle)
    b = torch.randn(batch, time, modes, 2, generator=generator).bfloat16()
    h0 = torch.randn(batch, modes, dtype=torch.complex64, generator=generator)
    return a, b, h0, torch.rand(batch, time, generator=generator) < 0.1


def exact(a, b, h0, reset):
    """The same in complex128."""
    pairs = torch.view_as_complex(b.double())
    h, last = linear_scan(a.to(torch.complex128), pairs, h0.to(torch.complex128), reset=reset)
    return torch.view_as_real(h), last


def with_gradients(run, a, b, h0, reset):
    leaves = [x.detach().requires_grad_() for x in (a, b, h0)]
    h, last = run(*leaves, reset)
    generator = torch.Generator().manual_seed(5)
    into = torch.randint(-16, 17, h.shape, generator=generator).to(h.dtype) / 8
    return h, last, *torch.autograd.grad((h, last), leaves, (into, torch.ones_like(last)))


def assert_close(got, true, rounding):
    got, true = got.detach(), true.detach()
    error = float((got.to(true.dtype) - true).abs().max())
    assert error <= rounding * float(true.abs().max()), error


@each_backend
@pytest.mark.parametrize("shape", [(3, 75, 37), (1, 700, 8), (2, 9, 1100), (40, 3, 1)], ids=str)
@pytest.mark.parametrize("resets", [False, True])
def test_states_and_gradients_are_those_of_float64(shape, resets, backend):
    a, b, h0, reset = arguments(*shape)
    reset = reset if resets else None
    with use_backend(backend):
        h, last, *slopes = with_gradients(pair_scan, a, b, h0, reset)
    true_h, true_last, *true_slopes = with_gradients(exact, a, b, h0, reset)
    assert [x.dtype for x in (h, last, *slopes)] == [b.dtype, h0.dtype, a.dtype, b.dtype, h0.dtype]
    assert_close(h, true_h, ROUNDING)
    # a state is not rounded between steps
    assert_close(last, true_last, 1e-5)
    assert_close(slopes[0], true_slopes[0], ROUNDING)
    assert_close(slopes[1], true_slopes[1], ROUNDING)
    assert_close(slopes[2], true_slopes[2], 1e-5)


@each_backend
def test_any_strides(backend):
    a, b, h0, reset = arguments()
    layouts = {
        "time first": b.transpose(0, 1).contiguous().transpose(0, 1),
        "every other step": b.repeat_interleave(2, 1)[:, ::2],
        "parts first": b.movedim(3, 0).contiguous().movedim(0, 3),
        "odd rows": torch.cat([b.flatten(2), b.flatten(2)[..., :1]], 2)[..., :-1].unflatten(
            2, (-1, 2)
        ),
    }
    with use_backend(backend):
        expected = with_gradients(pair_scan, a, b, h0, reset)
        for name, strided in layouts.items():
            assert torch.equal(strided, b), name
            got = with_gradients(pair_scan, a, strided, h0, reset)
            assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_pairs_are_complex_numbers(dtype):
    a, b, h0, reset = arguments()
    b = b.to(dtype)
    kind = torch.view_as_complex(b).dtype
    a, h0 = a.to(kind), h0.to(kind)
    h, last = pair_scan(a, b, h0, reset)
    wanted, final = linear_scan(a, torch.view_as_complex(b), h0, reset=reset)
    assert torch.equal(torch.view_as_complex(h), wanted)
    assert torch.equal(last, final)


def test_decays_of_every_step_and_no_sequence():
    a, b, h0, reset = arguments()
    every = a.expand(3, 75, 37)
    assert_close(pair_scan(every, b, h0, reset)[0], pair_scan(a, b, h0, reset)[0].float(), ROUNDING)
    h, last = pair_scan(a, b[:0], h0[:0], reset[:0])
    assert h.shape == (0, 75, 37, 2)
    assert last.shape == (0, 37)


def test_derivatives_of_second_order():
    a, b, h0, _ = arguments(1, 5, 4)
    a, b = a.requires_grad_(), b.requires_grad_()
    (slope,) = torch.autograd.grad(
        pair_scan(a, b, h0)[0].float().square().sum(), a, create_graph=True
    )
    got = torch.autograd.grad(slope.abs().square().sum(), a)[0]
    wide = a.detach().to(torch.complex128).requires_grad_()
    h = exact(wide, b.detach(), h0, None)[0]
    (slope,) = torch.autograd.grad(h.square().sum(), wide, create_graph=True)
    assert_close(got, torch.autograd.grad(slope.abs().square().sum(), wide)[0], 4 * ROUNDING)


@each_backend
def test_any_threads_give_the_same_bits(backend):
    threads, bits, numbers = torch.get_num_threads(), [], arguments(4, 600, 96)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with use_backend(backend):
                bits.append(with_gradients(pair_scan, *numbers))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))
