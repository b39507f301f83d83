"""Layers inside `torch.func`, with resets and below a dispatch mode: numbers and gradients."""

import pytest
import torch
from torch.func import functional_call, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from linrnn.mixers import build

# of each op, and of each way to compute a dense cell, one
LAYERS = (
    *("lru", "mingru", "minlstm", "mamba", "delta_net", "gla", "rwkv7", "slstm", "mlstm", "sru"),
    *("gru", "lstm", "tanh_rnn", "relu_rnn", "antisymmetric_rnn", "hgrn", "s4d"),
)


class Seen(TorchDispatchMode):
    """Passes on what it sees."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def each_row(layer, x, reset, around):
    """Answers of rows that are mapped over, and the gradients of their sums."""
    parameters = {n: p.detach() for n, p in layer.named_parameters()}

    def row(x, reset):
        given = {} if reset is None else {"reset": reset[None]}
        y, pull = vjp(lambda some: functional_call(layer, some, (x[None],), given)[0], parameters)
        return y[0], pull(torch.ones_like(y))[0]

    with around:
        return vmap(row, in_dims=(0, None if reset is None else 0))(x, reset)


@pytest.mark.parametrize("mixer", LAYERS)
@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("around", [torch.enable_grad, Seen])
def test_rows_that_are_mapped_over_are_those_of_a_batch(mixer, resets, around):
    torch.manual_seed(0)
    layer = build(mixer, 8, dtype=torch.float64)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    reset = torch.zeros(3, 5, dtype=torch.bool)
    reset[0, 0] = reset[0, 3] = reset[2, 2] = True
    y, gradients = each_row(layer, x, reset if resets else None, around())
    expected, _ = layer(x, reset=reset if resets else None)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)
    expected.sum().backward()
    for name, p in layer.named_parameters():
        whole = torch.zeros_like(p) if p.grad is None else p.grad
        found = gradients[name].sum(0)
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("mixer", ["gru", "lstm", "tanh_rnn"])
def test_a_single_step_may_have_a_mapped_reset(mixer):
    layer = build(mixer, 4, dtype=torch.float64)
    x, reset = torch.randn(3, 1, 4, dtype=torch.float64), torch.tensor([[True], [False], [True]])
    state = torch.utils._pytree.tree_map(torch.ones_like, layer.init_state(3, dtype=torch.float64))

    def row(x, state, reset):
        given = torch.utils._pytree.tree_map(lambda h: h[None], state)
        return layer(x[None], given, reset=reset[None])[0][0]

    torch.testing.assert_close(vmap(row)(x, state, reset), layer(x, state, reset=reset)[0])
