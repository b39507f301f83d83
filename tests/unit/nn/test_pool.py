import pytest
import torch

from linrnn.nn import Pool


@pytest.mark.parametrize("kind", ["mean", "last", "none"])
def test_pool_in_pieces_equals_the_whole(kind):
    x = torch.randn(3, 10, 4, dtype=torch.float64)
    reset = torch.rand(3, 10) < 0.2
    pool = Pool(kind)
    whole, _ = pool(x, reset=reset)
    state, outputs = None, []
    for part, mask in zip(x.split([3, 0, 6, 1], 1), reset.split([3, 0, 6, 1], 1), strict=True):
        y, state = pool(part, state, reset=mask)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1) if kind == "none" else outputs[-1], whole)


def test_mean_counts_only_what_follows_the_last_reset():
    x = torch.tensor([[[1.0], [2.0], [3.0], [7.0]]])
    reset = torch.tensor([[True, False, True, False]])
    y, state = Pool("mean")(x, reset=reset)
    assert y.item() == 5.0
    assert state["count"].item() == 2
    y, _ = Pool("mean")(x, state)  # goes on where it was
    assert y.item() == pytest.approx((3 + 7 + 1 + 2 + 3 + 7) / 6)


def test_last_skips_padding_and_keeps_the_old_value_of_an_empty_row():
    x = torch.arange(6.0).view(2, 3, 1)
    y, _ = Pool("last")(x, {"last": torch.full((2, 1), 9.0)}, lengths=torch.tensor([2, 0]))
    assert y.flatten().tolist() == [1.0, 9.0]


def test_mean_of_nothing_is_zero():
    y, _ = Pool("mean")(torch.zeros(2, 0, 3))
    assert y.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("kind", ["mean", "last", "none"])
def test_a_step_is_a_sequence_of_one(kind):
    pool, x = Pool(kind), torch.randn(3, 4, dtype=torch.float64)
    _, state = pool(torch.randn(3, 5, 4, dtype=torch.float64))
    (y, after), (expected, after_one) = pool.step(x, state), pool(x[:, None], state)
    torch.testing.assert_close(y, expected[:, 0] if kind == "none" else expected)
    torch.testing.assert_close(after, after_one)


def test_what_a_reset_or_padding_hides_may_be_nan():
    x = torch.tensor([[[float("nan")], [2.0], [4.0], [float("nan")]]])
    reset, lengths = torch.tensor([[False, True, False, False]]), torch.tensor([3])
    y, _ = Pool("mean")(x, {"sum": x[:, 0], "count": x[:, 0]}, reset=reset, lengths=lengths)
    assert y.item() == 3.0
