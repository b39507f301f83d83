"""Models of pairs of documents: `SequenceModel(..., documents=2)`."""

import pytest
import torch

from linrnn import SequenceModel
from linrnn.errors import ArgumentError, ShapeError
from linrnn.nn import Pair


def make(**options):
    torch.manual_seed(0)
    model = SequenceModel(
        9, 2, d_model=8, n_layers=2, encoder="tokens", documents=2, norm="layer", **options
    )
    return model.eval()


@pytest.fixture
def x():
    return torch.randint(9, (3, 2, 12), generator=torch.Generator().manual_seed(1))


def test_pair_computes_its_equation():
    pair = Pair(4)
    a, b = torch.randn(2, 3, 4)
    features = torch.cat([a, b, a * b, a - b], 1)
    expected = (features @ pair.linear.weight.T + pair.linear.bias).clamp_min(0)
    assert torch.allclose(pair(torch.stack([a, b], 1)), expected, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"pool": "last"}])
def test_documents_are_read_alone_by_the_same_layers(x, options):
    model = make(**options)
    with torch.no_grad():
        y, _ = model(x)
        swapped, _ = model(x.flip(1))
        alone = torch.cat([model(x[i : i + 1])[0] for i in range(3)])
    assert y.shape == (3, 2)
    assert torch.allclose(y, alone, atol=1e-6)
    assert not torch.allclose(y, swapped, atol=1e-3)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_of_either_document_is_not_read(x, bidirectional):
    model = make(bidirectional=bidirectional)
    lengths = torch.tensor([[12, 5], [1, 12], [7, 3]])
    other = x.clone()
    other[torch.arange(12) >= lengths[..., None]] = 8
    with torch.no_grad():
        y, z = (model(v, lengths=lengths)[0] for v in (x, other))
    assert torch.allclose(y, z, atol=1e-6)


def test_a_state_goes_on_in_both_documents(x):
    model = make()
    with torch.no_grad():
        whole, _ = model(x)
        _, state = model(x[..., :5])
        y, _ = model(x[..., 5:], state)
    assert torch.allclose(y, whole, atol=1e-5)


def test_every_parameter_gets_a_gradient(x):
    model = make()
    model(x)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.pair.linear.weight.grad.abs().sum() > 0


@pytest.mark.unchecked
def test_wrong_inputs(x):
    model = make()
    with pytest.raises(ShapeError, match=r"x must have shape \(batch, documents=2, time\), got"):
        model(x[:, 0])
    with pytest.raises(ShapeError, match=r"lengths must have shape \(batch=3, documents=2\), got"):
        model(x, lengths=torch.tensor([1, 2, 3]))
    with pytest.raises(ArgumentError, match="documents must be 1 to read step by step, got 2"):
        model.step(x[:, 0, 0], model.init_state(3))
    for options in ({"documents": 3}, {"documents": 2, "pool": "none"}):
        with pytest.raises(ArgumentError, match="documents must be 1, or 2 with a pool over time"):
            SequenceModel(1, 1, **options)
