"""The causal convolution against torch.nn.Conv1d, in pieces and with resets."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.nn import CausalConv, recall
from linrnn.ops import causal_conv


def convolved(x, past, weight, bias, reset, silu, backend=None):
    return causal_conv(x, weight, bias, past, reset=reset, silu=silu, backend=backend)[0]


def definition(*arguments):
    return convolved(*arguments, backend="reference")


def make(width=4, bias=True):
    return CausalConv(3, width, bias=bias, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_equals_conv1d_with_padding_on_the_left(width, bias):
    conv, peer = make(width, bias), torch.nn.Conv1d(3, 3, width, groups=3, bias=bias).double()
    with torch.no_grad():
        peer.weight.copy_(conv.weight[:, None])
        if bias:
            peer.bias.copy_(conv.bias)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    padded = torch.nn.functional.pad(x.mT, (width - 1, 0))
    torch.testing.assert_close(conv(x, conv.init_state(2))[0], peer(padded).mT)


@pytest.mark.parametrize("cut", [0, 1, 2, 8, 9])
def test_pieces_and_steps_equal_one_call(cut):
    conv, x = make(), torch.randn(2, 9, 3, dtype=torch.float64)
    past = torch.randn(2, 3, 3, dtype=torch.float64)
    whole, end = conv(x, past)
    first, middle = conv(x[:, :cut], past)
    second, last = conv(x[:, cut:], middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(last, end)
    for t in range(9):
        y, past = conv.step(x[:, t], past)
        torch.testing.assert_close(y, whole[:, t])
    torch.testing.assert_close(past, end)


def test_packed_sequences_equal_separate_ones():
    conv, x = make(), torch.randn(1, 9, 3, dtype=torch.float64)
    past = torch.randn(1, 3, 3, dtype=torch.float64)
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[:, [2, 3, 7]] = True
    y, last = conv(x, past, reset)
    parts = [conv(x[:, :2], past)]
    parts += [conv(part, conv.init_state(1)) for part in x[:, 2:].split([1, 4, 2], 1)]
    torch.testing.assert_close(y, torch.cat([p[0] for p in parts], 1))
    torch.testing.assert_close(last, parts[-1][1])


def test_nothing_passes_a_reset():
    x = torch.full((1, 4, 1), float("nan"))
    x[:, 2:] = 1
    reset = torch.tensor([[False, False, True, False]])
    assert recall(x, torch.zeros(1, 2, 1), 2, reset)[:, 2:].eq(0).all()


def test_width_must_be_positive():
    with pytest.raises(ArgumentError, match="width"):
        CausalConv(3, 0)


def inputs(batch, time, channels, width, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((batch, time, channels), (batch, width - 1, channels), (channels, width), (channels,))
    tensors = [torch.randn(s, generator=g, dtype=torch.float64) for s in shapes]
    reset = torch.rand(batch, time, generator=g) < 0.2
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    return [t.to(dtype if i == 0 else wide) for i, t in enumerate(tensors)], reset


def gradients(run, tensors, *rest):
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = run(*tensors, *rest)
    into = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [y, *torch.autograd.grad(y, tensors, into.to(y.dtype), materialize_grads=True)]


# shorter than the taps; a chunk of steps and its neighbours; one block of channels, and more
@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (1, 33, 70, 4), (3, 70, 64, 3), (2, 32, 5, 1)])
@pytest.mark.parametrize("silu", [False, True])
def test_kernel_equals_the_definition(shape, silu):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        tensors, mask = inputs(*shape, dtype)
        exact = [t.double() for t in tensors]
        for reset in (None, mask):
            expected = gradients(definition, exact, reset, silu)
            got = gradients(convolved, tensors, reset, silu)
            for value, want in zip(got, expected, strict=True):
                allowed = 64 * torch.finfo(tensors[0].dtype).eps
                error = (value.double() - want).abs()
                assert not error.numel() or error.max() <= allowed * max(1, want.abs().max())


def test_kernel_reads_any_strides():
    (x, *rest), _ = inputs(2, 9, 6, 4)
    wide = torch.randn(9, 2, 12, dtype=torch.float64).transpose(0, 1)
    part = wide[..., 3:9]
    part.copy_(x)
    expected = gradients(definition, [x, *rest], None, True)
    for value, want in zip(gradients(convolved, [part, *rest], None, True), expected, strict=True):
        torch.testing.assert_close(value, want)


def test_gradients_of_both_orders():
    tensors, reset = inputs(2, 5, 2, 3)
    tensors = [t.requires_grad_() for t in tensors]
    for silu in (False, True):

        def run(*tensors, silu=silu):
            return convolved(*tensors, reset, silu)

        assert torch.autograd.gradcheck(run, tensors, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


def test_nan_stops_at_a_reset_in_both_directions():
    (x, *rest), _ = inputs(1, 8, 2, 4)
    reset = torch.zeros(1, 8, dtype=torch.bool)
    reset[:, 4] = True
    x[:, 3] = torch.nan
    x.requires_grad_()
    y = convolved(x, *rest, reset, False)
    assert y[:, 3].isnan().all()
    assert y[:, 4:].isfinite().all()
    into = torch.ones_like(y)
    into[:, 4:] = torch.nan
    (grad,) = torch.autograd.grad(y, x, into)
    assert grad[:, :4].isfinite().all()


def test_calls_repeat_bit_by_bit():
    tensors, _ = inputs(3, 200, 40, 4, torch.float32)
    first, second = (gradients(convolved, tensors, None, True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.unchecked
def test_compiled():
    conv = CausalConv(3, 4, silu=True)
    x, past = torch.randn(2, 9, 3, requires_grad=True), conv.init_state(2)
    torch._dynamo.reset()
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    for got, want in zip(compiled(x, past), conv(x, past), strict=True):
        torch.testing.assert_close(got, want)
    weights = [x, *conv.parameters()]
    got = torch.autograd.grad(compiled(x, past)[0].sum(), weights)
    for value, want in zip(got, torch.autograd.grad(conv(x, past)[0].sum(), weights), strict=True):
        torch.testing.assert_close(value, want)
