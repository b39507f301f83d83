"""GRU and LSTM of bfloat16 numbers by matrix tiles, against loops over time in float64."""

import pytest
import torch
from torch import nn

from linrnn.mixers import GRU, LSTM
from linrnn.ops import use_backend, use_form
from linrnn.ops.cell import dense_recurrence
from linrnn.ops.half_linear import available

needs_tiles = pytest.mark.skipif(not available(), reason="no matrix tiles for bfloat16")
KINDS = {"gru": nn.GRU, "lstm": nn.LSTM}
each_kind = pytest.mark.parametrize("kind", KINDS)
SHAPES = [(1, 181, 96), (3, 67, 128), (16, 33, 96), (17, 31, 160)]


def drawn(kind, batch, time, channels, bias=True):
    """Input, states and weights as `recurrence` takes them inside of autocast, and resets."""
    torch.manual_seed(0)
    layer = KINDS[kind](40, channels, bias=bias)
    weights = [p.detach().clone() for p in layer.parameters()]
    weights = [w.bfloat16() if w.ndim > 1 else w for w in weights]
    states = [0.5 * torch.randn(batch, channels) for _ in range(1 + (kind == "lstm"))]
    reset = torch.rand(batch, time) < 0.1
    return torch.randn(batch, time, 40).bfloat16(), states, weights, reset


def loop(x, state, weights, reset, kind):
    """By PyTorch's cells, step by step."""
    ys = []
    for t in range(x.shape[1]):
        clear = reset[:, t, None] if reset is not None else torch.zeros(len(x), 1).bool()
        state = [torch.where(clear, 0.0, h) for h in state]
        if kind == "gru":
            state = [torch.gru_cell(x[:, t], state[0], *weights)]
        else:
            state = [*torch.lstm_cell(x[:, t], tuple(state), *weights)]
        ys.append(state[0])
    return torch.stack(ys, 1), *state


def with_gradients(run, x, state, weights, reset, kind, dtype=None):
    leaves = [t.to(dtype or t.dtype).clone().requires_grad_() for t in (x, *state, *weights)]
    n = 1 + len(state)
    results = run(leaves[0], leaves[1:n], leaves[n:], reset, kind)
    torch.manual_seed(1)
    into = [torch.randn(y.shape).bfloat16().to(y.dtype) for y in results]
    return [*results, *torch.autograd.grad(results, leaves, into)]


def by_tiles(x, state, weights, reset, kind):
    assert dense_recurrence._by_tiles(x, state, weights, kind)
    return dense_recurrence.recurrence(x, state, weights, reset, kind)


def error(got, true):
    return float((got.detach().double() - true.detach()).norm() / true.detach().norm())


@needs_tiles
@each_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("marked", [True, False], ids=["reset", "whole"])
def test_it_equals_a_loop_in_float64(kind, shape, bias, marked):
    x, state, weights, reset = drawn(kind, *shape, bias=bias)
    call = x, state, weights, reset if marked else None, kind
    true = with_gradients(loop, *call, dtype=torch.float64)
    for got, exact in zip(with_gradients(by_tiles, *call), true, strict=True):
        assert got.shape == exact.shape
        assert error(got, exact) < 6e-3


@needs_tiles
@each_kind
def test_a_long_memory_is_in_float32(kind):
    """Steps add less than bfloat16 tells apart; gates are of biases alone, which it can hold."""
    x, state, weights, _ = drawn(kind, 2, 700, 96)
    for w in weights:
        w.zero_()
    # of the GRU (r, z, n), of the LSTM (i, f, g, o)
    weights[2].copy_(
        torch.tensor({"gru": (0, 7, 0.5), "lstm": (-6, 7, 0.5, 1)}[kind]).repeat_interleave(96)
    )
    with torch.no_grad():
        _, *last = by_tiles(x, state, weights, None, kind)
    exact = loop(x.double(), [h.double() for h in state], [w.double() for w in weights], None, kind)
    for h, true in zip(last, exact[1:], strict=True):
        assert h.dtype is torch.float32
        assert error(h, true) < 1e-4


@needs_tiles
@each_kind
def test_any_threads_and_no_gradient_give_the_same_bits(kind):
    call = (*drawn(kind, 18, 41, 96), kind)
    threads, bits = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            bits.append(with_gradients(by_tiles, *call))
            with torch.no_grad():
                bits[-1] += by_tiles(*call)
    finally:
        torch.set_num_threads(threads)
    for others in bits[1:]:
        assert all(map(torch.equal, bits[0], others))
    n = 2 + (kind == "lstm")
    assert all(map(torch.equal, bits[0][:n], bits[0][-n:]))


@needs_tiles
@each_kind
def test_nothing_passes_a_reset(kind):
    x, state, weights, _ = drawn(kind, 2, 100, 96)
    reset = torch.zeros(2, 100, dtype=torch.bool)
    reset[0, 50] = True
    x[0, 10] = torch.nan
    y, *last = by_tiles(x, state, weights, reset, kind)
    assert y[0, 10:50].isnan().all()
    for finite in (y[0, :10], y[0, 50:], y[1], *last):
        assert finite.isfinite().all()


@needs_tiles
@each_kind
def test_gradients_of_some_arguments_and_of_some_results(kind):
    """Each is as if all were asked for."""
    x, state, weights, reset = drawn(kind, 3, 67, 128)
    every = [x, *state, *weights]
    for wanting in every:
        wanting.requires_grad_()
    results = by_tiles(x, state, weights, reset, kind)
    whole = torch.autograd.grad(results[0].float().sum(), every)
    for i, wanting in enumerate(every):
        rest = [t.detach() for t in every]
        rest[i] = wanting
        n = 1 + len(state)
        y, *_ = by_tiles(rest[0], rest[1:n], rest[n:], reset, kind)
        assert torch.equal(torch.autograd.grad(y.float().sum(), wanting)[0], whole[i])


@needs_tiles
def test_derivatives_of_second_order():
    x, state, weights, _ = drawn("gru", 2, 90, 96)
    weights[1].requires_grad_()
    y, _ = by_tiles(x, state, weights, None, "gru")
    (slope,) = torch.autograd.grad(y.float().square().sum(), weights[1], create_graph=True)
    (curvature,) = torch.autograd.grad(slope.float().square().sum(), weights[1])
    assert curvature.isfinite().all()
    assert curvature.abs().max() > 0


@needs_tiles
def test_which_calls_are_for_it():
    x, state, weights, _ = drawn("gru", 3, 67, 128)

    def taken(x=x, state=state, weights=weights, kind="gru"):
        return dense_recurrence._by_tiles(x, state, weights, kind)

    assert taken()
    assert not taken(kind="tanh")
    assert not taken(x=x.float(), weights=[w.float() for w in weights])
    assert not taken(state=[h.double() for h in state])
    assert not taken(*drawn("gru", 3, 67, 104)[:3])  # whole tiles only
    assert not taken(*drawn("gru", 3, 67, 64)[:3])
    assert not taken(*drawn("gru", 1, 1, 128)[:3])
    with use_form("loop"):
        assert not taken()
    for backend in ("reference", "tree"):
        with use_backend(backend):
            assert not taken()


@needs_tiles
@pytest.mark.parametrize("layer", [GRU, LSTM])
def test_layers_inside_of_autocast_have_float32_gradients(layer):
    torch.manual_seed(0)
    mixer, x = layer(96), torch.randn(2, 100, 96, requires_grad=True)

    def results(**options):
        with torch.autocast("cpu", torch.bfloat16, **options):
            y, _ = mixer(x)
        leaves = [x, *mixer.parameters()]
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    for half, single in zip(results(), results(enabled=False), strict=True):
        assert half.dtype is torch.float32
        assert error(half, single.double()) < 2e-2
