import pytest
import torch

from linrnn.nn import make_norm


@pytest.mark.parametrize("shape", [(4, 5, 3), (6, 3), (0, 3)])
def test_batch_norm_is_torchs_over_all_but_the_last_axis(shape):
    torch.manual_seed(0)
    ours, theirs = make_norm("batch", 3), torch.nn.BatchNorm1d(3)
    for norm in (ours, theirs):
        torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
    for training in (True, False):
        x = torch.randn(7, 5, 3) * 3 + 1
        a, b = ours.train(training)(x), theirs.train(training)(x.flatten(0, 1))
        assert torch.equal(a.flatten(0, 1), b)
    y = torch.randn(shape)
    expected = theirs(y.reshape(-1, 3)).view(shape) if y.numel() else y
    assert torch.equal(ours(y), expected)
    assert torch.equal(ours.running_var, theirs.running_var)
