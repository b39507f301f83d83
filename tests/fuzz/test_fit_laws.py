"""`linrnn.fit`: whatever is in the place of an argument, a finite answer or an error of ours."""

import pytest
import torch
from entries import try_argument
from torch.utils.data import DataLoader, TensorDataset

from linrnn import SequenceModel, fit

X = torch.randn(8, 5, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, (X.sum((1, 2)) > 0).long())
ARGUMENTS = (
    *("model", "train_loader", "val_loader", "loss", "metrics", "epochs", "optim", "learner"),
    *("learner_options", "carry_state", "on_nan", "prepare_batch", "monitor", "mode"),
    *("callbacks", "out", "seed", "threads", "accelerator", "precision", "trainer"),
)


def trained(**options):
    """The history of a small training, as rows of numbers."""
    torch.manual_seed(0)
    usual = {
        "model": SequenceModel(2, 2, d_model=2, n_layers=1, mixer="mingru"),
        "train_loader": DataLoader(DATA, 4),
        "loss": "cross_entropy",
        "epochs": 1,
        "accelerator": "cpu",
        "threads": None,
        "trainer": {"enable_progress_bar": False},
    }
    result = fit(**{**usual, **options})
    return [list(row.values()) for row in result.history]


def is_longer_or_their_own(name, value):
    """Many epochs take their time, and a function of the caller's may raise what it likes."""
    long = name == "epochs" and isinstance(value, int) and value > 10
    return long or callable(value)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try_argument(
        lambda value: trained(**{name: value}),
        name,
        without=lambda value: is_longer_or_their_own(name, value),
    )
