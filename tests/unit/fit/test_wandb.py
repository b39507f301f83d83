"""Weights & Biases in its offline mode takes what `linrnn.fit` logs."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from linrnn import SequenceModel, fit

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")

pytestmark = [pytest.mark.slow, pytest.mark.unchecked]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fit_logs_to_an_offline_run(tmp_path, monkeypatch):
    from lightning.pytorch.loggers import WandbLogger

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    torch.manual_seed(0)
    x = torch.randn(32, 10, 2)
    loader = DataLoader(TensorDataset(x, (x.sum((1, 2)) > 0).long()), 8)
    logger = WandbLogger(project="linrnn", save_dir=str(tmp_path), offline=True)
    found = fit(
        SequenceModel(2, 2, d_model=8, n_layers=1),
        loader,
        loader,
        loss="cross_entropy",
        metrics=["accuracy"],
        epochs=3,
        logger=logger,
        threads=None,
        trainer={"enable_progress_bar": False, "log_every_n_steps": 1},
    )
    summary = dict(logger.experiment.summary)
    wandb.finish()
    last = found.history[-1]
    for name in ("val_loss", "val_accuracy"):
        assert summary[name] == pytest.approx(last[name], rel=1e-5), json.dumps(
            summary, default=str
        )
    assert summary["trainer/global_step"] == 3 * 4 - 1
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(folder.glob("*.wandb"))
