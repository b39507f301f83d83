import numpy as np
import pytest
import torch
from untrained_runs import untrained

from linrnn import tasks, train
from linrnn.tasks.forecast import ForecastOptions
from linrnn.tasks.induction_heads import InductionHeadsOptions
from linrnn.tasks.mackey_glass import MackeyGlassOptions
from linrnn.tasks.table import TableOptions


def test_sequences_of_different_lengths_are_answered_as_if_alone(tiny, tmp_path):
    rows = "".join(f"{'7,' * (1 + i % 5)}{i},{'ab'[i % 2]}\n" for i in range(30))
    (tmp_path / "train.csv").write_text(rows)
    options = TableOptions(data=str(tmp_path / "train.csv"))
    run = untrained(tiny, tmp_path / "run", pool="mean", task="table", task_options=options)
    (tmp_path / "both.csv").write_text("1,2,3,4,5,6\n3,-2\n")
    (tmp_path / "one.csv").write_text("3,-2\n")
    _, padded = train.predict(run, tmp_path / "both.csv")
    (alone,) = train.predict(run, tmp_path / "one.csv")
    assert padded.label == alone.label
    assert padded.probability == pytest.approx(alone.probability, abs=1e-6)
    assert (padded.index, padded.step) == (1, None)


def test_numbers_come_in_the_units_of_the_data(tiny, tmp_path):
    (tmp_path / "x.csv").write_text("".join(f"{i},{1000 * i}\n" for i in range(30)))
    options = TableOptions(data=str(tmp_path / "x.csv"), kind="regression")
    run = untrained(tiny, tmp_path / "run", task="table", task_options=options)
    (tmp_path / "new.csv").write_text("3\n4\n")
    answers = train.predict(run, tmp_path / "new.csv")
    model, task, _ = train.load_model(run)
    with torch.no_grad():
        y = model(task.read(tmp_path / "new.csv"))[0]
    train_targets = np.array([float(v) for v in task._parts[0].y])
    expected = y[:, 0].numpy() * train_targets.std() + train_targets.mean()
    assert [a.values["y"] for a in answers] == pytest.approx(expected.tolist())


def test_a_forecast_has_a_row_for_each_step_and_a_number_for_each_column(tiny, tmp_path):
    rows = "".join(f"{i},{2 * i}\n" for i in range(60))
    (tmp_path / "x.csv").write_text("a,b\n" + rows)
    options = ForecastOptions(data=str(tmp_path / "x.csv"), horizon=3, length=5)
    run = untrained(tiny, tmp_path / "run", task="forecast", task_options=options)
    answers = train.predict(run, tmp_path / "x.csv")
    assert [(a.index, a.step) for a in answers] == [(0, 0), (0, 1), (0, 2)]
    assert all(list(a.values) == ["a", "b"] for a in answers)


def test_one_number_a_step(tiny, tmp_path):
    options = MackeyGlassOptions(length=6)
    run = untrained(tiny, tmp_path / "run", "none", task="mackey_glass", task_options=options)
    np.save(tmp_path / "x.npy", np.zeros((2, 6)))
    answers = train.predict(run, tmp_path / "x.npy")
    assert [(a.index, a.step) for a in answers] == [(i, t) for i in range(2) for t in range(6)]


def test_tokens_are_answered_by_their_ids(tiny, tmp_path):
    options = InductionHeadsOptions(length=4)
    run = untrained(tiny, tmp_path / "run", task="induction_heads", task_options=options)
    np.savetxt(tmp_path / "x.csv", [[15, 2, 3, 15]], delimiter=",", fmt="%d")
    (answer,) = train.predict(run, tmp_path / "x.csv")
    assert answer.label in set(map(str, range(tasks.load("induction_heads")().d_output)))
    assert answer.step is None
