"""Rotary positions against complex exponentials and an independent implementation."""

import pytest
import torch

from linrnn.nn.rotary import rotate


def test_is_a_product_of_complex_numbers():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    position = torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1, 100_000, 2]])
    speed = 50.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    turn = torch.polar(
        torch.ones(2, 5, 1, 4, dtype=torch.float64), position[..., None, None] * speed
    )
    expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn).flatten(-2)
    torch.testing.assert_close(rotate(x, position, 50.0), expected, rtol=1e-12, atol=1e-12)


def test_equals_roformer():
    roformer = pytest.importorskip("transformers.models.roformer.modeling_roformer")
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 3, 7, 6, dtype=torch.float64)  # (B, H, T, K)
    angle = torch.arange(7)[:, None] * 10_000.0 ** -(torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    table = torch.cat([angle.sin(), angle.cos()], -1).expand(2, 3, 7, 6)
    theirs = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(table, q, k)
    for x, expected in zip((q, k), theirs, strict=True):
        got = rotate(x.transpose(1, 2), torch.arange(7)[None]).transpose(1, 2)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_products_depend_on_the_difference_of_positions():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 4, 16, dtype=torch.float64)
    near = rotate(q, torch.tensor([[3, 5, 9, 2]])) * rotate(k, torch.tensor([[1, 5, 2, 4]]))
    shift = 12_345
    far = rotate(q, torch.tensor([[3, 5, 9, 2]]) + shift)
    far = far * rotate(k, torch.tensor([[1, 5, 2, 4]]) + shift)
    torch.testing.assert_close(near.sum(-1), far.sum(-1), rtol=1e-9, atol=1e-9)


def test_single_precision_is_accurate_at_large_positions():
    """Angles in float32 would be wrong by 4e-3 here."""
    x, position = torch.ones(1, 1, 2), torch.tensor([[65_535]])
    expected = rotate(x.double(), position)
    assert (rotate(x, position) - expected).abs().max() < 2e-7


def test_channels_that_are_no_pairs_in_memory_are_turned_alike():
    """From an odd place on, of rows at the same places and at others."""
    torch.manual_seed(0)
    wide = torch.randn(3, 5, 9, dtype=torch.float64, requires_grad=True)
    for position in (torch.arange(5).expand(3, -1), torch.randint(9, (3, 5))):
        odd, even = rotate(wide[..., 1:], position), rotate(wide[..., 1:].contiguous(), position)
        torch.testing.assert_close(odd, even, rtol=1e-14, atol=1e-14)
        rows = zip(wide[..., 1:].split(1), position.split(1), strict=True)
        alone = torch.cat([rotate(*row) for row in rows])
        torch.testing.assert_close(odd, alone, rtol=1e-14, atol=1e-14)
        weight = torch.randn(3, 5, 8, dtype=torch.float64)
        grads = [torch.autograd.grad((y * weight).sum(), wide)[0] for y in (odd, even)]
        torch.testing.assert_close(*grads, rtol=1e-14, atol=1e-14)
