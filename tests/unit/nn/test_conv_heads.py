"""Queries, keys and values behind a convolution, whole and in two calls; random step sizes."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest

from linrnn.nn import ConvHeads, softplus_steps


def test_heads_are_convolved_side_by_side_and_go_on_from_call_to_call():
    heads, x = ConvHeads(6, 2, (3, 4), d_conv=3), torch.randn(2, 9, 6)
    z = F.pad(heads.heads.proj(x).mT, (2, 0))
    z = F.silu(F.conv1d(z, heads.conv1d.weight[:, None], groups=14)).mT
    start = torch.zeros(2, *heads.state_spec().shape)
    (a, b), last = heads(x, start)
    torch.testing.assert_close(torch.cat([a.flatten(-2), b.flatten(-2)], -1), z)
    assert (a.shape, b.shape) == ((2, 9, 2, 3), (2, 9, 2, 4))
    _, past = heads(x[:, :4], start)
    (later, _), end = heads(x[:, 4:], past)
    torch.testing.assert_close(later, a[:, 4:])
    torch.testing.assert_close(end, last)


def test_softplus_of_random_steps_is_log_uniform():
    torch.manual_seed(0)
    dt = F.softplus(softplus_steps(4096, 1e-3, 0.1))
    assert kstest(dt.log() / torch.tensor(100.0).log() + 1.5, "uniform").pvalue > 0.01
    floored = F.softplus(softplus_steps(64, 1e-6, 1e-5, 1e-4))
    assert floored.tolist() == pytest.approx([1e-4] * 64)
