"""A replica, as `torch.nn.DataParallel` makes one for each device, computes what its module does.

It has plain tensors in the places of parameters, and ``parameters()`` of it are none.
"""

import importlib

import pytest
import torch

from linrnn import RNN, SequenceModel, mixers
from linrnn.nn.parameters import parameters_of, working_dtype

WIDTH = 8
replication = importlib.import_module("torch.nn.parallel.replicate")  # a function has its name
MAKERS = {
    "alone": lambda name: mixers.build(name, WIDTH),
    "RNN": lambda name: RNN(name, WIDTH, WIDTH, 2, batch_first=True, bidirectional=True),
    "SequenceModel": lambda name: SequenceModel(WIDTH, 2, mixer=name, d_model=WIDTH, n_layers=2),
}


@pytest.fixture
def replica_of(monkeypatch):
    """PyTorch's own replication, without devices to copy to."""

    def copies(tensors, devices, detach=False):
        return [[t.clone() for t in tensors] for _ in devices]

    monkeypatch.setattr(replication, "_broadcast_coalesced_reshape", copies)
    return lambda module: replication.replicate(module, [0])[0]


def results(module, x):
    """Output and state of a sequence, and of one more step."""
    y, state = module(x)
    with torch.no_grad():
        step = (
            module(x[:, :1], state)[0]
            if isinstance(module, RNN)
            else module.step(x[:, 0], state)[0]
        )
    return y, state, step


@pytest.mark.sampled
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", mixers.names())
def test_a_replica_reads_its_own_weights(name, maker, replica_of):
    module = MAKERS[maker](name).eval()
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(2), requires_grad=True)
    expected = results(module, x)
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(expected[0].sum(), [x, *parameters], allow_unused=True)
    replica = replica_of(module)
    for p in module.parameters():
        p.data.fill_(torch.nan)  # those of a module on another device cannot be read
    found = results(replica, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    back = torch.autograd.grad(found[0].sum(), [x, *parameters], allow_unused=True)
    for ours, theirs in zip(back, gradients, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if ours is None else ours,
            torch.zeros(()) if theirs is None else theirs,
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_a_replica_of_half_precision_reads_it(name, replica_of):
    module = mixers.build(name, WIDTH).eval().bfloat16()
    x = torch.randn(2, 3, WIDTH, dtype=torch.bfloat16)
    replica = replica_of(module)
    assert working_dtype(replica) == torch.bfloat16
    torch.testing.assert_close(replica(x), module(x))


def test_parameters_of_a_replica_are_those_of_the_module(replica_of):
    module = RNN("lstm", 2, 3, 2, proj_size=2)
    replica = replica_of(module)
    assert [*replica.parameters()] == []
    assert [p.shape for p in parameters_of(replica)] == [p.shape for p in module.parameters()]
