"""Native streaming steps against the same layers read as sequences, and when they stand aside."""

import pytest
import torch
from torch import nn

from linrnn import SequenceModel
from linrnn.mixers import RWKV4
from linrnn.nn import ChannelMix
from linrnn.ops import _native, _native_step
from linrnn.state import leaves, map_state

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F64: {"rtol": 1e-10, "atol": 1e-11}, F32: {"rtol": 1e-4, "atol": 1e-5}}

needs_native = pytest.mark.skipif(
    _native.load()[0] is None, reason=f"no native kernels: {_native.load()[1]}"
)


def lively(layer):
    """Weights at which every part matters: with the initial ones the output is zero."""
    for part in layer.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
    return layer


def rwkv(width, dtype):
    return lively(RWKV4(width, d_state=2 * width + 1, dtype=dtype))


def bare_rwkv(width, dtype):
    return lively(RWKV4(width, token_shift=False, dtype=dtype))


def channel_mix(width, dtype):
    return lively(ChannelMix(width, d_inner=3 * width + 2, dtype=dtype))


LAYERS = pytest.mark.parametrize("make", [rwkv, bare_rwkv, channel_mix])


@needs_native
@LAYERS
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (1, 33), (3, 16), (9, 5)])
def test_steps_equal_a_sequence_and_change_no_state(make, dtype, batch, width):
    layer, x, ys = make(width, dtype), torch.randn(batch, 7, width, dtype=dtype), []
    expected, last = layer(x, layer.init_state(batch))
    with torch.no_grad():
        state = layer.init_state(batch)
        for x_t in x.transpose(0, 1):
            before = map_state(torch.clone, state)
            y, after = layer.step(x_t, state)
            assert all(map(torch.equal, leaves(before), leaves(state)))
            ys.append(y)
            state = after
    torch.testing.assert_close(torch.stack(ys, 1), expected.detach(), **TOLERANCE[dtype])
    for got, want in zip(leaves(state), leaves(last), strict=True):
        torch.testing.assert_close(got, want.detach(), **TOLERANCE[dtype])


@needs_native
@LAYERS
def test_steps_of_any_threads_have_the_same_bits(make, monkeypatch):
    layer = make(257, F32)
    x, state = torch.randn(1, 257), layer.init_state(1)
    with torch.no_grad():
        alone = layer.step(x, state)
        monkeypatch.setattr(_native, "threads", lambda: 2)
        both = layer.step(x, state)
    assert all(map(torch.equal, leaves(list(alone)), leaves(list(both))))


@needs_native
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_keys_are_no_overflow(size):
    layer = rwkv(4, F32)
    with torch.no_grad():
        layer.key.weight.mul_(size)
        x = torch.randn(2, 5, 4)
        expected, _ = layer(x)
        state = layer.init_state(2)
        for t in range(5):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, expected[:, t], rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_head_of_a_step_is_its_matrix_product(bias, batch):
    weight, x = torch.randn(7, 19), torch.randn(19, batch).T
    b = torch.randn(7) if bias else None
    y = _native_step.linear_step(x, weight, b)
    torch.testing.assert_close(y, nn.functional.linear(x, weight, b))


@needs_native
@LAYERS
def test_a_kernel_computes_where_it_can_and_nowhere_else(make, monkeypatch):
    calls = []
    run = _native.run
    monkeypatch.setattr(
        _native, "run", lambda kernel, record: (calls.append(kernel), run(kernel, record))
    )
    layer, x = make(6, F32), torch.randn(2, 6)
    with torch.no_grad():
        y, _ = layer.step(x, layer.init_state(2))
        assert [name.endswith("_mix_step") for name in calls] == [True]
        calls.clear()
        wide = torch.randn(2, 12)[:, ::2]
        state = layer(torch.randn(2, 9, 6), layer.init_state(2))[1]
        apart = map_state(lambda h: h.expand(3, *h.shape).movedim(0, -1)[..., 0], state)
        calls.clear()
        torch.testing.assert_close(layer.step(wide, apart), layer.step(wide.clone(), state))
        assert len(calls) == 2
        calls.clear()
        nn.utils.parametrizations.weight_norm(layer.value)
        again, _ = layer.step(x, layer.init_state(2))
    torch.testing.assert_close(again, y)
    layer.step(x.requires_grad_(), layer.init_state(2))[0].sum().backward()
    assert x.grad is not None
    assert not any(name.endswith("_step") for name in calls)


@needs_native
def test_hooks_of_the_head_see_a_step():
    model = SequenceModel(3, 2, d_model=4, n_layers=1, pool="none").eval()
    seen = []
    model.head.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        model.step(torch.randn(1, 3), model.init_state(1))
    assert seen == [1]
