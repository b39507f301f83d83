"""`linrnn.fit` on two processes of the CPU, with Gloo: the numbers are those of one."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, Sampler, TensorDataset

from linrnn import SequenceModel, fit

QUIET = {"enable_progress_bar": False, "use_distributed_sampler": False}
ROWS = 32

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Share(Sampler):
    """Every second row on each of two processes, in order; Lightning's own would shuffle."""

    def __iter__(self):
        ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        return iter(range(ranks[0], ROWS, ranks[1]))

    def __len__(self):
        return ROWS // (dist.get_world_size() if dist.is_initialized() else 1)


def make():
    """A model and its data, of which two processes see every other row."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, 10, 2)
    model = SequenceModel(2, 2, d_model=8, n_layers=2, norm="layer")
    return model, TensorDataset(x, (x.sum((1, 2)) > 0).long())


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.2)


def train(model, data, rows, **options):
    loaders = [DataLoader(data, rows, sampler=Share()) for _ in range(2)]
    shared = {"loss": "cross_entropy", "epochs": 2, "optim": sgd, "metrics": ["accuracy"]}
    return fit(model, *loaders, trainer=QUIET, accelerator="cpu", **(shared | options))


def check_equal(found, expected):
    for name, x in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], x, rtol=1e-5, atol=1e-6)
    for one, other in zip(found.history, expected.history, strict=True):
        for name in ("step", "train_loss", "val_loss", "train_accuracy", "val_accuracy"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), name


@pytest.mark.parametrize("out", [False, True])
def test_two_processes_train_as_one(tmp_path, out):
    model, data = make()
    expected = train(copy.deepcopy(model), data, 8)
    folder = tmp_path / "out" if out else None
    found = train(model, data, 4, devices=2, strategy="ddp_fork", out=folder)
    check_equal(found, expected)
    if out:
        again = train(copy.deepcopy(model), data, 4, out=folder)
        assert again.trainer is None
        check_equal(again, expected)


def test_what_is_not_finite_on_one_process_is_left_out_on_both():
    model, data = make()
    x, y = data.tensors
    x[9] = torch.nan  # in the second batch of the second process
    loader = DataLoader(TensorDataset(x, y), 4, sampler=Share())
    options = {"devices": 2, "strategy": "ddp_fork", "trainer": QUIET, "accelerator": "cpu"}
    found = fit(model, loader, loss="cross_entropy", epochs=1, on_nan="skip", optim=sgd, **options)
    assert all(p.isfinite().all() for p in found.model.parameters())
    assert found.history[0]["train_loss"] < 2


def test_a_carried_state_needs_one_process():
    model, data = make()
    with pytest.raises(Exception, match="carry_state must be False in a trainer of several"):
        train(model, data, 4, devices=2, strategy="ddp_fork", carry_state=True)


PROGRAM = """
import sys, torch
from lightning.pytorch.strategies import ModelParallelStrategy
sys.path.insert(0, sys.argv[2])
from test_several_processes import make, train

if __name__ == "__main__":
    strategy = sys.argv[1]
    if strategy == "fsdp2":
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    model, data = make()
    found = train(model, data, 4, devices=2, strategy=strategy)
    weights = {
        name: x.full_tensor() if hasattr(x, "full_tensor") else x
        for name, x in found.model.state_dict().items()
    }
    if found.trainer.is_global_zero:
        torch.save([weights, found.history], sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "fsdp2"])
def test_programs_of_two_processes_train_as_one(tmp_path, strategy):
    model, data = make()
    expected = train(model, data, 8)
    program, made = tmp_path / "program.py", tmp_path / "found.pt"
    program.write_text(PROGRAM)
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, program, strategy, here, made], check=True, timeout=400)
    weights, history = torch.load(made)
    for name, x in expected.model.state_dict().items():
        torch.testing.assert_close(weights[name], x, rtol=1e-5, atol=1e-6)
    for one, other in zip(history, expected.history, strict=True):
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-5)
