"""Kernelised hash functions: their formula, and what fitting makes better."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.nn import l2_normalise
from linrnn.nn.kernel_hash import KernelHash, sign


def make(**options):
    torch.manual_seed(0)
    return KernelHash(4, 2, **{"n_points": 5, "dtype": torch.float64, **options})


def vectors(count=120):
    """Around six centres, of two heads."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(6, 2, 4, generator=random)
    noise = 0.5 * torch.randn(count, 2, 4, generator=random)
    chosen = centres[torch.randint(6, (count,), generator=random)]
    return l2_normalise((chosen + noise).double())


def written_out(layer, x):
    z = torch.empty(len(x), 2, layer.weight.shape[1], dtype=torch.float64)
    for h in range(2):
        distance = torch.cdist(x[:, h], layer.points[h]).square()
        kernel = torch.exp(-distance / (2 * layer.width[h]))
        z[:, h] = (kernel - layer.mean[h]) @ layer.weight[h].T
    return z


def misfit(layer, x, pairs):
    """``|bits targets - codes codes^T|^2`` of each head."""
    codes = sign(layer(x)).transpose(0, 1)
    rows = x.transpose(0, 1)
    rank = (rows @ rows.mT).argsort(-1).argsort(-1)
    targets = (rank >= len(x) - pairs).double() - (rank < pairs).double()
    return (codes.shape[-1] * targets - codes @ codes.mT).square().mean((1, 2))


def test_is_what_the_formula_says():
    layer, x = make(), vectors()
    torch.testing.assert_close(layer(x), written_out(layer, x))
    layer.fit(x, steps=3)
    torch.testing.assert_close(layer(x), written_out(layer, x))
    torch.testing.assert_close(layer(x.view(2, 60, 2, 4)).flatten(0, 1), layer(x))


def test_starts_balanced():
    layer = make(bits=400)
    z = layer(l2_normalise(torch.randn(400, 2, 4, dtype=torch.float64)))
    assert (z > 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert 0.1 < z.std().item() < 2  # signs have slopes where z is below 1
    assert layer.points.norm(dim=-1).sub(1).abs().max() < 1e-5


def test_points_mean_and_width_come_from_the_data():
    layer, x = make(), vectors()
    layer.fit(x, steps=1)
    for h in range(2):
        assert torch.cdist(layer.points[h], x[:, h]).min(1).values.max() < 1e-7
        distance = torch.cdist(x[:, h], x[:, h]).square()
        torch.testing.assert_close(layer.width[h], distance.mean())
    torch.testing.assert_close(layer(x).mean(0), torch.zeros(2, 16).double(), atol=1e-9, rtol=0)
    assert layer.fits == 1


@pytest.mark.parametrize(("pairs", "lr", "share"), [(10, 5e-4, 1.0), (20, 0.05, 0.95)])
def test_fitting_the_weights_makes_codes_better(pairs, lr, share):
    x = vectors()
    errors = []
    for rate in (0.0, lr):  # the same points
        layer = make(bits=6)
        layer.fit(x, pairs=pairs, lr=rate)
        errors.append(misfit(layer, x, pairs))
    assert (errors[1] < share * errors[0]).all()


def test_a_bit_descends_as_torch_does():
    x, layer, start = vectors(), make(bits=1), make(bits=1).weight[:, 0]
    layer.fit(x, steps=4, lr=0.3)
    assert not torch.equal(layer.weight[:, 0], start)
    for h in range(2):
        weight = start[h].clone().requires_grad_()
        descent = torch.optim.SGD([weight], lr=0.3, momentum=0.9, nesterov=True)
        kernel = torch.cdist(x[:, h], layer.points[h]).square() / (-2 * layer.width[h])
        rank = (x[:, h] @ x[:, h].T).argsort(-1).argsort(-1)
        targets = (rank >= 110).double() - (rank < 10).double()
        for _ in range(4):
            y = 2 * ((kernel.exp() - layer.mean[h]) @ weight).sigmoid() - 1
            descent.zero_grad()
            (-(y @ targets @ y) / 120).backward()
            descent.step()
        torch.testing.assert_close(layer.weight[h, 0], weight.detach())


def test_a_bit_that_would_be_worse_stays_as_it_was():
    layer, start = make(bits=1), make(bits=1).weight
    layer.fit(vectors(), lr=-1.0)  # uphill
    assert torch.equal(layer.weight, start)


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match="x must hold at least 5 vectors, got 4"):
        make().fit(vectors(4))
    with pytest.raises(ArgumentError, match=r"KernelHash.fit: pairs .* got 0"):
        make().fit(vectors(), pairs=0)
    with pytest.raises(ArgumentError, match=r"KernelHash: bits .* got 0"):
        make(bits=0)
