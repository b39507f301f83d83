"""`linrnn.load`: arrays, tensors and tables in the units of the data, streams, plain modules."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from untrained_runs import untrained

import linrnn
from linrnn import train
from linrnn.cli import main
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DTypeError,
    RunFolderError,
    ShapeError,
)
from linrnn.tasks.forecast import ForecastOptions
from linrnn.tasks.induction_heads import InductionHeadsOptions
from linrnn.tasks.table import TableOptions


@pytest.fixture
def classes(tiny, tmp_path):
    """A run on sequences of two channels around 100 and 0.01, in three classes."""
    g = np.random.RandomState(0)
    values = g.randn(40, 6, 2) * [30, 0.01] + [100, 0.01]
    labels = np.array(["low", "middle", "high"])[np.arange(40) % 3]
    np.savez(tmp_path / "data.npz", x=values, y=labels)
    options = TableOptions(data=str(tmp_path / "data.npz"))
    run = untrained(tiny, tmp_path / "run", "mean", task="table", task_options=options)
    return run, values


@pytest.fixture
def forecast(tiny, tmp_path):
    """A run that forecasts two columns of very different sizes."""
    steps = np.stack([np.sin(np.arange(80)) * 50 + 500, np.cos(np.arange(80)) / 9], 1)
    rows = "".join(f"day {i},{a},{b}\n" for i, (a, b) in enumerate(steps.tolist()))
    (tmp_path / "x.csv").write_text("date,load,price\n" + rows)
    options = ForecastOptions(data=str(tmp_path / "x.csv"), horizon=3, length=8)
    run = untrained(tiny, tmp_path / "forecast", task="forecast", task_options=options)
    return run, steps, tmp_path / "x.csv"


def test_classes_are_those_that_a_file_gets(classes, tmp_path):
    run, values = classes
    loaded = linrnn.load(run)
    np.savez(tmp_path / "new.npz", x=values)
    answers = train.predict(run, tmp_path / "new.npz")
    labels, shares = loaded.predict(values), loaded.predict_proba(values)
    assert labels.tolist() == [a.label for a in answers]
    assert shares.max(1) == pytest.approx([a.probability for a in answers], abs=1e-6)
    assert [loaded.class_names[i] for i in shares.argmax(1)] == labels.tolist()
    for given in (torch.tensor(values), values.tolist(), torch.tensor(values).float()):
        assert loaded.predict(given, batch_size=7).tolist() == labels.tolist()


def test_rows_of_different_lengths_are_answered_as_if_alone(classes):
    run, values = classes
    loaded = linrnn.load(run)
    rows = [values[0], values[1, :3], values[2, :5]]
    together = loaded.predict_proba(rows)
    alone = np.concatenate([loaded.predict_proba(row[None]) for row in rows])
    assert together == pytest.approx(alone, abs=1e-6)


def test_a_forecast_is_in_the_units_of_the_columns(forecast):
    run, steps, file = forecast
    loaded = linrnn.load(run)
    answers = train.predict(run, file)
    expected = np.array([list(a.values.values()) for a in answers])
    for given in (steps, torch.tensor(steps), steps[None], steps[-8:]):
        assert loaded.predict(given)[0] == pytest.approx(expected, rel=1e-5)
    assert abs(expected[:, 0] - 500).max() < 200
    windows = np.stack([steps[i : i + 8] for i in range(10)])
    assert loaded.predict(windows, batch_size=3).shape == (10, 3, 2)


def test_tables_of_pandas(forecast, classes, tmp_path):
    pandas = pytest.importorskip("pandas")
    run, steps, _ = forecast
    loaded = linrnn.load(run)
    table = pandas.DataFrame({"price": steps[:, 1], "note": "x", "load": steps[:, 0]})
    found = loaded.predict(table)
    assert list(found.columns) == ["load", "price"]
    assert list(found.index) == [1, 2, 3]
    assert found.to_numpy() == pytest.approx(loaded.predict(steps)[0])
    with pytest.raises(DataError, match=r"8 steps of load, price, got .* without load"):
        loaded.predict(table.drop(columns="load"))


def test_rows_of_a_table_of_pandas(classes):
    pandas = pytest.importorskip("pandas")
    run, values = classes
    loaded = linrnn.load(run)
    table = pandas.DataFrame(values.reshape(40, 12), index=[f"row {i}" for i in range(40)])
    found = loaded.predict(table)
    assert found.index.equals(table.index)
    assert found.tolist() == loaded.predict(values).tolist()
    with pytest.raises(ArgumentError, match="columns of the table must be numbers, got label of"):
        loaded.predict(table.assign(label="a"))
    with pytest.raises(ArgumentError, match="steps of 2 numbers, got 11 columns"):
        loaded.predict(table.iloc[:, 1:])


def test_a_stream_reads_on_in_the_units_of_the_data(classes, tmp_path):
    run, values = classes
    loaded = linrnn.load(run)
    stream = loaded.stream()
    for step in values[0, :4]:
        share = stream.predict_proba(step)
    stream.session.save(tmp_path / "state")
    later = loaded.stream()
    later.session.load(tmp_path / "state")
    for one in (stream, later):
        share = one.predict_proba(values[0, 4:])
        assert share == pytest.approx(loaded.predict_proba(values[:1])[0], abs=1e-5)
    assert loaded.stream().predict(values[0]) == loaded.predict(values[:1])[0]


@pytest.mark.unchecked
def test_an_exported_file_says_what_its_units_are(classes, forecast, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    from linrnn.interop.onnx import initial_state, metadata

    for (run, values), kind in ((classes, "classification"), (forecast[:2], "regression")):
        path = str(tmp_path / "model.onnx")
        assert main(["export", str(run), path, "--sequence"]) == 0
        record, data = metadata(path), values if values.ndim == 3 else values[None, -8:]
        task, state = record["task"], initial_state(record, len(data))
        x = np.array(task["input"]["scale"]) * data + np.array(task["input"]["shift"])
        y, *_ = onnxruntime.InferenceSession(path).run(None, {"x": x.astype("f4"), **state})
        loaded = linrnn.load(run)
        assert task["kind"] == kind
        if kind == "classification":
            names = [task["classes"][i] for i in y.argmax(1)]
            assert names == loaded.predict(data).tolist()
        else:
            scale, shift = (np.array(task["output"][name]) for name in ("scale", "shift"))
            numbers = y.reshape(len(y), *shift.shape) * scale + shift
            assert numbers == pytest.approx(loaded.predict(data), rel=1e-4)


def test_a_plain_module_holds_its_units(classes, forecast, tmp_path):
    run, values = classes
    loaded = linrnn.load(run)
    plain = loaded.to_torch()
    x = torch.tensor(values)
    assert plain(x).softmax(-1).detach().numpy() == pytest.approx(
        loaded.predict_proba(values), abs=1e-5
    )
    run, steps, _ = forecast
    loaded = linrnn.load(run)
    plain = loaded.to_torch()
    windows = torch.tensor(steps[-8:])[None]
    assert plain(windows).detach().numpy() == pytest.approx(loaded.predict(steps), rel=1e-5)
    other = linrnn.load(run).to_torch()
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other(windows), plain(windows))
    torch.save(plain, tmp_path / "plain.pt")
    again = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(again(windows), plain(windows))


def test_images_are_whole_and_steps_are_scaled(tiny, tmp_path):
    pixels = np.random.RandomState(0).randint(0, 17, (3, 64))
    run = untrained(tiny, tmp_path / "run", "mean", task="digits", task_options=None)
    loaded = linrnn.load(run)
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows(pixels.tolist())
    expected = [a.label for a in train.predict(run, tmp_path / "x.csv")]
    assert loaded.predict(pixels).tolist() == expected
    assert loaded.stream().predict(pixels[0][:, None].astype(float)) == expected[0]


def test_tokens(tiny, tmp_path):
    options = InductionHeadsOptions(length=4)
    run = untrained(tiny, tmp_path / "run", task="induction_heads", task_options=options)
    loaded = linrnn.load(run)
    ids = np.array([[1, 2, 3, 0], [2, 2, 2, 2]])
    assert loaded.predict(ids).shape == (2,)
    assert loaded.to_torch()(torch.tensor(ids)).argmax(-1).tolist() == [
        int(v) for v in loaded.predict(ids)
    ]
    with pytest.raises(ArgumentError, match="token ids, integers of 0 to"):
        loaded.predict(ids + 1000)


@pytest.mark.unchecked
def test_errors_name_what_is_wrong(classes, forecast, tmp_path):
    loaded, other = linrnn.load(classes[0]), linrnn.load(forecast[0])
    values = classes[1]
    with pytest.raises(ShapeError, match=r"x must have shape \(sequences, time, channels=2\)"):
        loaded.predict(values[..., :1])
    with pytest.raises(ShapeError, match=r"x must hold a sequence with a step"):
        loaded.predict(values[:0])
    with pytest.raises(DataError, match="predict: sequence 2 must be finite"):
        loaded.predict(np.where(np.arange(40)[:, None, None] == 1, np.nan, values))
    with pytest.raises(ArgumentTypeError, match=r"got the text 'new\.csv'"):
        loaded.predict("new.csv")
    words, mixed = np.array([["a", "b"]]), values.astype(object)
    for wrong, kind in (([["a"]], "<U1"), (words, "<U1"), (mixed, "object"), ([[None]], "object")):
        with pytest.raises(DTypeError, match=f"x must be numbers, got .* of dtype {kind}.*astype"):
            loaded.predict(wrong)
    with pytest.raises(DTypeError, match="parts of different shapes in one sequence"):
        loaded.predict([[1.0, [2.0]], [3.0]])
    with pytest.raises(ArgumentError, match="batch_size must be an integer of at least 1"):
        loaded.predict(values, batch_size=0)
    with pytest.raises(ArgumentError, match="predict_proba: the run must be one of classes"):
        other.predict_proba(forecast[1])
    with pytest.raises(ArgumentError, match="x must have 8 steps at least, got 5"):
        other.predict(forecast[1][:5])
    with pytest.raises(ShapeError, match=r"stream: x must have shape \(channels=2\), got \(3,\)"):
        loaded.stream().predict([1.0, 2.0, 3.0])
    with pytest.raises(RunFolderError, match="a run folder must exist"):
        linrnn.load(tmp_path / "none")


def test_threads_are_chosen_for_a_run(tiny, tmp_path, monkeypatch):
    from linrnn.train import threads

    monkeypatch.setattr(threads, "_said", lambda own: None)
    monkeypatch.setattr(threads, "SECONDS", 0.01)
    told = []

    class Told(train.Reporter):
        def noticed(self, text):
            told.append(text)

        def started(self, plan):
            told.append(plan.threads)

    config = replace(tiny, train=replace(tiny.train, threads="auto"))
    before = torch.get_num_threads()
    train.run(config, out=tmp_path / "run", reporter=Told())
    assert told[0].startswith(f"threads: {told[1]} (")
    assert "in steps/s" in told[0]
    assert torch.get_num_threads() == before
    stored = train.folder.RunFolder(tmp_path / "run").load_config()
    assert stored.train.threads == told[1]


def test_tables_with_a_step_a_row(tiny, tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.RandomState(0)
    table = pandas.DataFrame(
        {
            "who": np.repeat([f"s{i}" for i in range(20)], 5),
            "when": np.tile([0.0, 1.0, 3.0, 3.5, 4.5], 20),
            "a": rng.randn(100),
            "what": np.repeat(["x", "y"] * 10, 5),
        }
    )
    table.loc[::6, "a"] = np.nan
    table.to_csv(tmp_path / "x.csv", index=False)
    options = TableOptions(
        data=str(tmp_path / "x.csv"), id="who", time="when", target="what", missing="mask"
    )
    run = untrained(tiny, tmp_path / "run", "mean", task="table", task_options=options)
    loaded, asked = linrnn.load(run), table.drop(columns="what")
    found = loaded.predict(asked)
    assert loaded.predict(asked.set_index(["who", "when"])).equals(found)
    answers = train.predict(run, tmp_path / "x.csv")
    assert found.tolist() == [answer.label for answer in answers]
    assert found.index.tolist() == [answer.id for answer in answers] == [f"s{i}" for i in range(20)]
    assert loaded.predict(asked[::-1].iloc[::-1]).equals(found)
    values = table["a"].to_numpy().reshape(20, 5)
    dt = np.tile([1.0, 1.0, 2.0, 0.5, 1.0], (20, 1))
    shares = loaded.predict_proba(asked)
    assert loaded.predict_proba(values, dt=dt) == pytest.approx(shares, abs=1e-6)
    even = loaded.predict_proba(values, dt=np.ones_like(dt))
    assert abs(even - shares).max() > 1e-4
    with pytest.raises(ArgumentError, match="dt must be given"):
        loaded.predict_proba(values)
    stream = loaded.stream()
    pieces = [stream.predict_proba(values[0, i : i + 1, None], dt[0, i : i + 1]) for i in range(5)]
    assert pieces[-1] == pytest.approx(shares[0], abs=1e-5)
    with pytest.raises(ArgumentError, match="to_torch: missing must be 'error' or 'ffill'"):
        loaded.to_torch()
    with pytest.raises(ShapeError, match="dt"):
        loaded.predict(values, dt=dt[:, 1:])


def test_a_forecast_has_the_times_of_its_steps(tiny, tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    from linrnn.cli import main

    when = pandas.date_range("2024-01-01", periods=80, freq="h")
    table = pandas.DataFrame({"when": when, "load": np.sin(np.arange(80))})
    table.to_csv(tmp_path / "x.csv", index=False)
    options = ForecastOptions(data=str(tmp_path / "x.csv"), horizon=3, length=8, time="when")
    run = untrained(tiny, tmp_path / "run", task="forecast", task_options=options)
    found = linrnn.load(run).predict(table)
    assert found.index.tolist() == list(pandas.date_range(when[-1], periods=4, freq="h")[1:])
    assert found.index.name == "when"
    indexed = table.set_index("when")
    pandas.testing.assert_frame_equal(linrnn.load(run).predict(indexed), found)
    levels = pandas.concat({"a": indexed, "b": indexed}, names=["id"])
    with pytest.raises(DataError, match=r"must hold one series, got several in .*'id', 'when'"):
        linrnn.load(run).predict(levels)
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "x.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "index,step,time,load"
    assert lines[1].startswith("0,0,2024-01-04 08:00:00,")


TRAINED = {
    "forecast": (
        "hour,a,b\n" + "".join(f"{i},{i * i % 11},{i % 5}\n" for i in range(80)),
        ForecastOptions(data="x.csv", time="hour", length=8, horizon=2),
    ),
    "table": (
        "who,a,b,what\n"
        + "".join(f"s{i},{i + t},{i * t % 7},{'xy'[i % 2]}\n" for i in range(20) for t in range(4)),
        TableOptions(data="x.csv", id="who", target="what"),
    ),
}


@pytest.mark.unchecked  # an export has sizes that are no int to the checker
@pytest.mark.parametrize("task", TRAINED)
def test_a_run_answers_whatever_became_of_its_data(task, tiny, tmp_path, monkeypatch, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("onnx")
    text, options = TRAINED[task]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "x.csv").write_text(text)
    (tmp_path / "new.csv").write_text(text)
    training = replace(tiny.train, epochs=1, batch_size=8, threads=1)
    config = replace(tiny, task=task, task_options=options, train=training)
    run = train.run(config, out=tmp_path / "here" / "run").folder

    def answers(run):
        capsys.readouterr()
        assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 0
        loaded = linrnn.load(run)
        frame = pandas.read_csv(tmp_path / "new.csv")
        stream = loaded.stream().predict(np.array([3.0, 1.0])).tolist()
        return capsys.readouterr().out, loaded.predict(frame).to_csv(), stream

    expected = answers(run)
    (tmp_path / "here" / "x.csv").write_text(text.replace(",3,", ",8,").replace("x", "z"))
    assert answers(run) == expected
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(DataError, match=r"x\.csv: the data must be those the run began with"):
        train.evaluate(run)
    assert main(["train", "--resume", str(run)]) == 0  # it is complete, and left as it is
    assert "nothing to compare with: x.csv: the data must be" in capsys.readouterr().out
    (run / "result.json").unlink()
    with pytest.raises(DataError, match=r"x\.csv: the data must be those the run began with"):
        train.resume(run)
    del before[run / "result.json"]
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    run.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert answers(tmp_path / "elsewhere") == expected
    assert main(["export", str(tmp_path / "elsewhere"), str(tmp_path / "x.onnx")]) == 0


def test_what_is_asked_is_no_step_of_a_table_of_pandas(tiny, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = np.random.RandomState(0).randn(20, 4)
    table = pandas.DataFrame(rows, columns=list("abcd")).assign(kind=np.arange(20) % 2 + 1)
    table.to_csv(tmp_path / "x.csv", index=False)
    options = TableOptions(data=str(tmp_path / "x.csv"))
    run = untrained(tiny, tmp_path / "run", "mean", task="table", task_options=options)
    loaded = linrnn.load(run)
    expected = loaded.predict_proba(rows)
    assert loaded.predict_proba(table) == pytest.approx(expected, abs=1e-7)
    with pytest.raises(DataError, match="must hold 4 numbers, as all in training, got 5 in each"):
        loaded.predict(table.rename(columns={"kind": "other"}))
