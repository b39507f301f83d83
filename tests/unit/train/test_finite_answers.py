"""Answers and scores that are not finite are an error that says of what, and nothing is written."""

from dataclasses import replace

import pytest
import torch
from untrained_runs import untrained

from linrnn import train
from linrnn.cli import main
from linrnn.errors import DataError, NonFiniteError
from linrnn.tasks.forecast import ForecastOptions
from linrnn.tasks.lm import LMOptions
from linrnn.tasks.mackey_glass import MackeyGlassOptions
from linrnn.tasks.table import TableOptions
from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task

pytestmark = pytest.mark.unchecked

ROWS = "".join(f"{i},{i % 3},{'ab'[i % 2]}\n" for i in range(20))
HUGE = "3e38"


@pytest.fixture
def table(tiny, tmp_path):
    """An untrained classifier whose norm overflows where numbers are huge."""
    return of_rows(tiny, tmp_path, ROWS)


def of_rows(tiny, tmp_path, text):
    (tmp_path / "train.csv").write_text(text)
    options = TableOptions(data=str(tmp_path / "train.csv"), normalise=False)
    return untrained(with_norm(tiny), tmp_path / "run", "mean", task="table", task_options=options)


def with_norm(config):
    return replace(config, model=replace(config.model, norm="layer"))


@pytest.mark.parametrize("place", [0, 1, 300])
@pytest.mark.parametrize("padded", [False, True])
def test_predict_names_the_sequence_and_writes_nothing(table, tmp_path, capsys, place, padded):
    rows = ["1,2"] * 400
    rows[place] = f"{HUGE},-{HUGE}"
    rows[7] = "1,2,3" if padded else rows[7]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    with pytest.raises(NonFiniteError, match=rf"finite, got nan for sequence {place + 1}\. Its"):
        train.predict(table, tmp_path / "x.csv")
    out = tmp_path / "out.csv"
    out.write_text("before")
    assert main(["predict", str(table), str(tmp_path / "x.csv"), "--out", str(out)]) == 1
    assert main(["predict", str(table), str(tmp_path / "x.csv")]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert f"for sequence {place + 1}." in found.err
    assert out.read_text() == "before"


def test_predict_names_the_step_where_each_has_an_answer(tiny, tmp_path):
    options = MackeyGlassOptions(length=4)
    run = untrained(
        with_norm(tiny), tmp_path / "run", "none", task="mackey_glass", task_options=options
    )
    (tmp_path / "x.csv").write_text(f"1,2,3,4\n1,2,{HUGE},4\n")
    with pytest.raises(NonFiniteError, match=r"got nan for sequence 2, step 3\."):
        train.predict(run, tmp_path / "x.csv")


def test_predict_refuses_what_the_scale_of_training_makes_infinite(tiny, tmp_path):
    rows = "".join(f"{i * 1e-3},{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "train.csv").write_text(rows)
    options = TableOptions(data=str(tmp_path / "train.csv"))
    run = untrained(tiny, tmp_path / "run", task="table", task_options=options)
    (tmp_path / "x.csv").write_text(f"1\n{HUGE}\n")
    with pytest.raises(
        DataError, match=r"sequence 2 must be finite in torch\.float32 .* at step 1"
    ):
        train.predict(run, tmp_path / "x.csv")
    (tmp_path / "series.csv").write_text("a\n" + "".join(f"{i * 1e-3}\n" for i in range(60)))
    options = ForecastOptions(data=str(tmp_path / "series.csv"), horizon=2, length=3)
    run = untrained(tiny, tmp_path / "forecast", task="forecast", task_options=options)
    (tmp_path / "x.csv").write_text("a\n1\n2\n1e300\n")
    with pytest.raises(DataError, match=r"sequence 1 must be finite in .* got inf at step 3"):
        train.predict(run, tmp_path / "x.csv")


def test_eval_names_the_batch(tiny, tmp_path, capsys):
    text = "".join(f"{HUGE if i % 2 else i},-{HUGE},{'ab'[i % 2]}\n" for i in range(20))
    assert main(["eval", str(of_rows(tiny, tmp_path, text))]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert (
        "Table: the loss of what the model answers must be finite, got nan in batch 1" in found.err
    )


def test_losses_by_position_name_the_window(tiny, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 99 + "Z" * 200)
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "cache"))
    options = LMOptions(data=(str(tmp_path / "text.txt"),), tokenizer="byte", length=8)
    shape = replace(with_norm(tiny).model, pool="none")
    config = replace(tiny, task="lm", task_options=options, model=shape, mixer_options={})
    task = build_task(config)
    folder = RunFolder.create(tmp_path / "run", config, task.run_files())
    weights = build_model(config, task).state_dict()
    weights["encoder.weight"][ord("Z")] = 3e38
    save_tensors(weights, folder.model)
    with pytest.raises(
        NonFiniteError, match=r"LM: the loss of every token must be finite, got nan"
    ):
        train.loss_by_position(folder.path)


def test_finite_answers_are_as_before(table, tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n3\n")
    assert len(train.predict(table, tmp_path / "x.csv")) == 2
    score, _ = train.evaluate(table)
    assert torch.tensor(score.loss).isfinite()
