"""Waiting on a GPU: numbers read back, or copied there, within a call.

A CUDA graph records no call that waits. So this is also the law of who runs inside of one.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linrnn import mixers
from linrnn.compute import modes
from linrnn.ops import use_backend

#: A number that Python looks at, one that is copied from it, sizes that depend on values.
WAITING = ("aten._local_scalar_dense", "aten.lift_fresh", "aten.nonzero", "aten.masked_select")

#: These ask once a call where rows are in their segments, whose number sets what is computed.
ASK_WHERE_ROWS_ARE = {
    *("block_recurrent", "block_state", "compressive_transformer", "infini_transformer"),
    *("memformer", "recurrent_attention_network", "rmt", "tlb", "token_turing_machine"),
}
#: These look at times or resets, for a shorter way to the same numbers, but not in a graph.
LOOK_OUTSIDE_OF_GRAPHS = {"hippo"}
LOOK_AT_RESETS = {"gru", "lstm", "relu_rnn", "tanh_rnn"}


class Waits(TorchDispatchMode):
    """Notes every operator that makes the processor wait for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if str(function).startswith(WAITING):
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


def waits_of(name, **options):
    """Operators of a call and its gradients that wait."""
    mixer = mixers.load(name)(8)
    x = torch.randn(2, 20, 8, requires_grad=True)
    with use_backend("tree"), Waits() as waits:
        y, _ = mixer(x, **options)
        y.square().sum().backward()
    return waits.found


@pytest.mark.parametrize("name", mixers.names())
def test_a_call_and_its_gradients_never_wait(name):
    found = waits_of(name)
    assert bool(found) == (name in ASK_WHERE_ROWS_ARE | LOOK_OUTSIDE_OF_GRAPHS), found


@pytest.fixture
def in_a_graph(monkeypatch):
    """Tensors that seem to lie on a GPU whose calls are recorded."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setattr(modes, "captured", lambda x: True)


@pytest.mark.parametrize("name", mixers.names())
def test_a_call_with_resets_runs_in_a_graph(name, in_a_graph):
    reset = torch.zeros(2, 20, dtype=torch.bool).index_fill(1, torch.tensor([7]), True)
    found = waits_of(name, reset=reset)
    assert bool(found) == (name in ASK_WHERE_ROWS_ARE), found


@pytest.mark.parametrize("name", sorted(LOOK_AT_RESETS | LOOK_OUTSIDE_OF_GRAPHS))
def test_a_graph_gives_the_same_numbers(name, monkeypatch):
    mixer, x = mixers.load(name)(8), torch.randn(2, 20, 8)
    reset = torch.rand(2, 20) < 0.2
    with torch.no_grad():
        outside, _ = mixer(x, reset=reset)
        monkeypatch.setattr(modes, "captured", lambda x: True)
        inside, _ = mixer(x, reset=reset)
    torch.testing.assert_close(inside, outside, rtol=1e-5, atol=1e-6)
