import csv

import numpy as np
import pytest
import torch

from linrnn.cli import main
from linrnn.tasks import load


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict") / "run"
    tiny = ["--model.d-model", "6", "--model.n-layers", "1", "--train.epochs", "1"]
    assert main(["train", "digits", *tiny, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    x = load("digits")().datasets().test[:7][0].flatten(1)
    np.savetxt(path, 16 * x.numpy(), delimiter=",")
    return path


def test_predict_reads_pixels_as_scikit_learn_has_them(run, tmp_path, capsys):
    """The answers for raw images are those the model gives for the task's own inputs."""
    from sklearn.datasets import load_digits

    from linrnn.train import load_model

    np.savetxt(tmp_path / "raw.csv", load_digits().data[:20], delimiter=",")
    assert main(["predict", str(run), str(tmp_path / "raw.csv")]) == 0
    got = [r["class"] for r in csv.DictReader(capsys.readouterr().out.splitlines())]
    model, _, _ = load_model(run)
    x = torch.from_numpy(load_digits().data[:20, :, None] / 16).float()
    assert got == [str(k) for k in model(x)[0].argmax(-1).tolist()]


@pytest.mark.unchecked
@pytest.mark.parametrize("scale", [1 / 16, 2, -1])
def test_predict_refuses_pixels_of_another_scale(run, tmp_path, capsys, scale):
    np.savetxt(tmp_path / "x.csv", np.arange(64)[None] / 63 * 16 * scale, delimiter=",")
    assert main(["predict", str(run), str(tmp_path / "x.csv")]) == 1
    assert "pixels must lie in 0..16, as sklearn" in capsys.readouterr().err


def test_predict_prints_a_line_for_each_row(run, rows, capsys):
    assert main(["predict", str(run), str(rows)]) == 0
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [r["index"] for r in table] == [str(i) for i in range(7)]
    assert {r["class"] for r in table} <= set("0123456789")
    assert all(0.1 <= float(r["probability"]) <= 1 for r in table)


def test_predict_writes_the_same_to_a_file(run, rows, capsys, tmp_path):
    assert main(["predict", str(run), str(rows)]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "predictions.csv"
    assert main(["predict", str(run), str(rows), "--out", str(out)]) == 0
    assert out.read_text() == printed
    assert capsys.readouterr().out == f"{out} holds 7 predictions\n"


@pytest.mark.unchecked
def test_predict_bad_file_exits_with_1(run, tmp_path, capsys):
    (tmp_path / "x.csv").write_text("1,2,oops\n")
    assert main(["predict", str(run), str(tmp_path / "x.csv")]) == 1
    assert "got 'oops' in line 1, column 3" in capsys.readouterr().err


@pytest.mark.unchecked
def test_predict_unwritable_out_exits_with_1(run, rows, tmp_path, capsys):
    out = str(tmp_path / "none" / "x.csv")
    assert main(["predict", str(run), str(rows), "--out", out]) == 1
    assert "x.csv: the file must be writable" in capsys.readouterr().err
