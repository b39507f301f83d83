"""Checkpoints under a right checksum that hold something else than a run has written."""

import shutil
from pathlib import Path

import pytest
import torch

from linrnn import train
from linrnn.errors import RunFolderError
from linrnn.train.checkpoint import load_tree, save_tree

pytestmark = pytest.mark.unchecked

LAST = "checkpoints/last.safetensors"


@pytest.fixture
def stopped(root, tmp_path, monkeypatch):
    """A language model that was stopped after the first of two epochs."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    golden = root / "tests" / "golden"
    monkeypatch.chdir(golden)
    return Path(shutil.copytree(golden / "language", tmp_path / "run"))


def at(tree, *path):
    for key in path[:-1]:
        tree = tree[key]
    return tree, path[-1]


MOMENTS = ("optimizer_states", 0, "state", 0)
CHANGES = [
    *((("run", "step"), value) for value in ("6", 6.0, True, -1, 2**31, 2**63, None)),
    *((("run", "seconds"), value) for value in ("1", float("nan"), 10**400, -1.0, None)),
    *((("run", "best"), value) for value in ([], "x", {"step": 6}, {"step": "6"})),
    *((("run", "best", "step"), value) for value in ("6", 0, 2**64, None)),
    *((("run", "best", "metric"), value) for value in ("4", None, [1])),
    *((("run", "train_mean"), value) for value in (None, [], {"loss": "x"}, {"other": 1.0})),
    *((("run", "train_scores"), value) for value in (1.0, [], {"0": torch.zeros(1)})),
    *((("run", "carried"), value) for value in ([], {"0": 1}, {"0": torch.zeros(1, 99)})),
    *((("run", "not_finite"), value) for value in ([], {"skipped": "1"}, {"skipped": -1})),
    *((("state_dict",), value) for value in (None, [], {}, {"model.x": torch.zeros(1)})),
    (("state_dict", "model.head.bias"), torch.zeros(15, dtype=torch.int64)),
    (("state_dict", "model.head.bias"), torch.zeros(1)),
    *((("optimizer_states",), value) for value in (None, [], [1], [{}], [{"state": []}])),
    *(((*MOMENTS[:3],), value) for value in (None, [], {"0": {}}, {99: {}})),
    *((MOMENTS, value) for value in (None, [], {})),
    *(((*MOMENTS, "exp_avg"), value) for value in (1.0, torch.zeros(1), torch.zeros(15, 4).int())),
    *(((*MOMENTS, "step"), torch.tensor(value)) for value in (-1.0, float("nan"), 1)),
    *((("lr_schedulers",), value) for value in (None, [], [{}], [{"last_epoch": 1}])),
    *((("lr_schedulers", 0, "last_epoch"), value) for value in ("6", 2**63, None)),
    *((("lr_schedulers", 0, "_last_lr"), value) for value in (["x", 0.1], [0.1], "ab", None)),
    *((("metrics",), value) for value in (1, ["x"])),
    *((("epoch",), value) for value in ("0", 1.5)),
]


@pytest.mark.parametrize(("path", "value"), CHANGES, ids=range(len(CHANGES)))
def test_a_value_that_no_run_writes_is_refused(stopped, path, value):
    tree = load_tree(stopped / LAST)
    node, key = at(tree, *path)
    node[key] = value
    save_tree(tree, stopped / LAST)
    with pytest.raises(RunFolderError, match=r"last\.safetensors: |must be 0, as many") as caught:
        train.resume(stopped)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["betas", "lr", "eps", "fused", "params", "name"])
def test_settings_of_the_optimiser_come_from_the_configuration(stopped, key, monkeypatch):
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
    tree = load_tree(stopped / LAST)
    expected = tree["optimizer_states"][0]["param_groups"][0][key]
    tree["optimizer_states"][0]["param_groups"][0][key] = "wrong"
    tree["pytorch-lightning_version"] = "\ud800"
    save_tree(tree, stopped / LAST)
    train.resume(stopped)
    found = load_tree(stopped / LAST)["optimizer_states"][0]["param_groups"][0][key]
    assert found == expected or key == "lr"
    assert isinstance(found, type(expected))


def test_rows_of_metrics_that_are_none_are_refused(stopped):
    text = (stopped / "metrics.csv").read_text()
    for row in (
        "x,1,1,1,1,1,1,1",
        "1,1",
        "0,1,1,1,1,1,1,1",
        "1,1,1,1,1,1,inf,1",
        "9" * 30 + ",1" * 7,
    ):
        (stopped / "metrics.csv").write_text(f"{text}{row}\n")
        with pytest.raises(RunFolderError, match=r"metrics\.csv: the file must hold the numbers"):
            train.resume(stopped)
