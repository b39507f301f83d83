"""Random directions: what they estimate, and what they are drawn from."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.nn.directions import RandomDirections

KINDS = [{}, {"orthogonal": True}, {"orthogonal": True, "regularised": True}]


def drawn(n, size, n_heads=1, **options):
    torch.manual_seed(0)
    return RandomDirections(n, size, n_heads, dtype=torch.float64, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_covariance_are_those_of_normal_numbers(kind):
    w = drawn(4 * 5000, 4, **kind).weight[0]
    # four standard errors of a mean of 20,000
    assert w.mean(0).abs().max() < 4 * 20_000**-0.5
    covariance = w.T @ w / len(w)
    assert (covariance - torch.eye(4)).abs().max() < 4 * (2 / 20_000) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind):
    squares = drawn(4 * 5000, 4, **kind).weight[0].square().sum(-1)
    if kind.get("regularised"):
        torch.testing.assert_close(squares, torch.full_like(squares, 4))
    else:
        assert squares.mean().item() == pytest.approx(4, abs=4 * (8 / 20_000) ** 0.5)
        assert squares.var().item() == pytest.approx(8, rel=0.1)


def test_blocks_are_orthogonal():
    w = drawn(10, 4, 3, orthogonal=True, regularised=True).weight
    for block in (w[:, :4], w[:, 4:8], w[:, 8:]):
        gram = block @ block.mT
        torch.testing.assert_close(gram, 4 * torch.eye(block.shape[1]).double().expand_as(gram))
    assert not torch.equal(w[0], w[1])


def test_they_are_projected_on():
    layer, x = drawn(5, 4, 3), torch.randn(2, 7, 3, 4, dtype=torch.float64)
    for h in range(3):
        torch.testing.assert_close(layer(x)[:, :, h], x[:, :, h] @ layer.weight[h].T)
    shared = drawn(5, 4)
    torch.testing.assert_close(shared(x), x @ shared.weight[0].T)


def test_what_is_drawn_next_follows_from_the_checkpoint():
    layer, other = drawn(5, 4), RandomDirections(5, 4, dtype=torch.float64)
    layer.redraw()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    before = torch.random.get_rng_state()
    kept = layer.weight
    layer.redraw()
    other.redraw()
    assert torch.equal(other.weight, layer.weight)
    assert not torch.equal(kept, layer.weight)
    assert layer.draws == 2
    assert torch.equal(before, torch.random.get_rng_state())


def test_half_precision_is_kept_in_single():
    assert RandomDirections(5, 4, dtype=torch.bfloat16).weight.dtype == torch.float32


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"RandomDirections: n .* got 0"):
        RandomDirections(0, 4)
