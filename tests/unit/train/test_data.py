import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from linrnn.errors import DataError
from linrnn.train.data import eval_loader, train_loader


def numbers(size):
    return TensorDataset(torch.arange(size)[:, None], torch.arange(size))


class Squares(Dataset):
    """Map-style, one example at a time."""

    def __len__(self):
        return 5

    def __getitem__(self, i):
        return torch.tensor([float(i)]), i * i


def seen(loader):
    return [target.tolist() for _, target in loader]


def flat(batches):
    return [target for batch in batches for target in batch]


def test_train_loader_shuffles_each_epoch_anew_and_leaves_nothing_out():
    first, second = (seen(train_loader(numbers(10), 4, 0, step)) for step in (0, 3))
    assert [len(b) for b in first] == [4, 4, 2]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(10))
    assert first != second
    assert first != seen(train_loader(numbers(10), 4, 1, 0))


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 5])
def test_train_loader_continues_an_epoch_where_it_stood(step):
    whole = seen(train_loader(numbers(10), 4, 0, step - step % 3))
    assert seen(train_loader(numbers(10), 4, 0, step)) == whole[step % 3 :]
    assert len(train_loader(numbers(10), 4, 0, step)) == 3 - step % 3


def test_loaders_take_map_style_data_sets():
    ((x, target), last) = eval_loader(Squares(), 4)
    assert x.shape == (4, 1)
    assert target.tolist() == [0, 1, 4, 9]
    assert last[1].tolist() == [16]
    assert sorted(flat(seen(train_loader(Squares(), 2, 0, 0)))) == [0, 1, 4, 9, 16]


def test_loader_refuses_an_empty_data_set():
    with pytest.raises(DataError, match="must hold at least one example, got none"):
        train_loader(numbers(0), 4, 0, 0)
