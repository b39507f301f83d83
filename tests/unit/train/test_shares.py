"""Shares of a batch: together they are the whole, and their losses weigh as it does."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError
from linrnn.learn import Batch
from linrnn.train import Config, TrainConfig
from linrnn.train._shares import asked_of, own_rows, share_of
from linrnn.train._together import ALONE, Group, _in_turn


def make(rows, *, steps=None):
    torch.manual_seed(rows)
    x = torch.randn(rows, 5, 2)
    target = torch.randint(3, (rows,) if steps is None else (rows, steps))
    return Batch(x, target, torch.arange(1, rows + 1), torch.rand(rows, 5) < 0.5, x[..., 0])


def shares(batch, size):
    return [share_of(batch, Group(rank, size)) for rank in range(size)]


@pytest.mark.parametrize(("rows", "size"), [(8, 2), (7, 3), (3, 3), (2, 4), (1, 2)])
def test_every_row_is_read_once(rows, size):
    batch = make(rows)
    found = shares(batch, size)
    assert sum(share.rows for share in found) == rows
    for rank, share in enumerate(found):
        for part, whole in zip(share.batch, batch, strict=True):
            assert torch.equal(part[: share.rows], whole[rank::size])
            assert len(part) == max(share.rows, 1)


@pytest.mark.parametrize(("rows", "size"), [(8, 2), (7, 3), (2, 4)])
@pytest.mark.parametrize("steps", [None, 6])
def test_the_mean_over_processes_is_the_loss_of_the_whole(rows, size, steps):
    batch = make(rows, steps=steps)
    if steps:
        batch.target[0, 2:] = -100  # rows ask about different numbers of steps
        batch.target[-1] = -100
    scores = torch.randn(*batch.target.shape, 3, dtype=torch.float64)
    whole = loss(scores, batch.target)
    mean = 0.0
    for rank, share in enumerate(shares(batch, size)):
        own = scores[rank::size] if share.weight else torch.zeros(*share.batch.target.shape, 3)
        mean += share.weight * loss(own.double(), share.batch.target) / size
    assert mean == pytest.approx(whole.item(), rel=1e-12)


def loss(scores, target):
    return F.cross_entropy(scores.reshape(-1, 3), target.flatten(), ignore_index=-100)


def test_a_share_in_which_nothing_is_asked_counts_nothing_and_is_finite():
    batch = make(4, steps=3)
    batch.target[1::2] = -100
    first, second = shares(batch, 2)
    assert (first.weight, second.weight) == (2.0, 0.0)
    assert loss(torch.zeros(1, 3, 3), second.batch.target).isfinite()


def test_what_is_asked_in_numbers_is_what_is_known():
    target = torch.tensor([[1.0, torch.nan], [2.0, 3.0], [torch.nan, torch.nan]])
    assert asked_of(target).tolist() == [1, 2, 0]


def test_alone_nothing_is_shared():
    batch = make(3)
    share = share_of(batch, ALONE)
    assert share.batch is batch
    assert (share.rows, share.weight) == (3, 1.0)
    assert ALONE.sums(0.1, 2) == [0.1, 2]
    assert ALONE.decided(True)


@pytest.mark.parametrize(("rows", "size"), [(5, 2), (4, 4), (2, 3)])
def test_a_carried_state_is_dealt_out_and_put_together(rows, size):
    h = torch.randn(rows, 3)
    dealt = [own_rows(h, Group(rank, size)) for rank in range(size)]
    assert torch.equal(_in_turn([part for part in dealt if len(part)]), h)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (5, "train.devices must be at most train.batch_size, 4"),
        (0, "train.devices must be an integer of at least 1"),
    ],
)
def test_each_device_has_rows(devices, text):
    with pytest.raises(ArgumentError, match=text):
        Config(task="digits", train=TrainConfig(devices=devices, batch_size=4))
