"""Data in a run folder is enough: answers are the same without the dataset."""

import json
from dataclasses import fields, replace

import pytest
import torch
from made_data import options, write_all

from linrnn import tasks
from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._reading.known import checksum, kept_text
from linrnn.tasks.forecast import Forecast, ForecastOptions
from linrnn.tasks.table import Table, TableOptions

OF_A_USER = [
    name for name in tasks.names() if "data" in {f.name for f in fields(tasks.load(name).Options)}
]


def answered(task):
    """All that a trained model asks of its task."""
    g = torch.Generator().manual_seed(0)
    found = {
        "sizes": (task.d_input, task.d_output, task.sequence_length, task.channels),
        "names": (task.class_names, task.number_names),
        "chance": task.chance,
        "numbers": task.numbers(torch.randn(2, task.d_output, generator=g)).tolist(),
    }
    if task.encoder == "linear":
        x = torch.randn(2, task.sequence_length, task.channels, generator=g)
        for name in ("scaled", "arranged"):
            try:
                found[name] = getattr(task, name)(x).tolist()
            except ArgumentError as error:
                found[name] = str(error)
    return found


@pytest.mark.parametrize("name", OF_A_USER)
def test_a_model_needs_what_is_kept_and_not_its_data(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    write_all(tmp_path / "data")
    cls = tasks.load(name)
    task = cls(cls.Options(**options(name, tmp_path / "data")))
    task.datasets()
    (tmp_path / "run").mkdir()
    for file, text in task.run_files().items():
        (tmp_path / "run" / file).write_text(text)
    expected = answered(task)
    (tmp_path / "data").rename(tmp_path / "gone")
    assert answered(cls.of_run(task.options, tmp_path / "run")) == expected


LONG = "who,when,a,b,what\n" + "".join(
    f"s{i},{t + t * t},{i + t},{i * t % 7},{'xy'[i % 2]}\n" for i in range(20) for t in range(4)
)
WIDE = "one,two,three,what\n" + "".join(f"{i},{i * i % 7},3,{i % 2 + 1}\n" for i in range(20))
SERIES = "hour,a,b\n" + "".join(f"{i},{i * i % 11},{i % 5}\n" for i in range(80))
STEPS = {"id": "who", "target": "what", "time": "when"}
#: the text of a file, its task, and what its answers are asked of
DATA = {
    "rows": (WIDE, Table, {}),
    "regression": (WIDE, Table, {"kind": "regression"}),
    "steps": (LONG, Table, STEPS),
    "steps marked": (LONG, Table, STEPS | {"missing": "mask", "times": "column"}),
    "series": (SERIES, Forecast, {"time": "hour", "length": 8, "horizon": 2}),
    "series marked": (SERIES, Forecast, {"missing": "mask", "length": 8, "horizon": 2}),
}
CHANGES = {
    "a number": (",3,", ",2,"),
    "a name": (",b", ",c"),
    "a class": ("x\n", "z\n"),
    "a label": ("2\n", "1\n"),
}


def made(kind, path):
    text, cls, given = DATA[kind]
    path.write_text(text)
    return cls(cls.Options(data=str(path), **given))


def kept_in(task, folder):
    folder.mkdir()
    for file, text in task.run_files().items():
        (folder / file).write_text(text)
    return folder


@pytest.mark.parametrize("kind", DATA)
def test_answers_to_a_file_are_those_of_the_training(kind, tmp_path):
    task = made(kind, tmp_path / "x.csv")
    folder = kept_in(task, tmp_path / "run")
    (tmp_path / "new.csv").write_text(DATA[kind][0])
    expected = task.read_given(tmp_path / "new.csv")
    for change in ("other", "none"):
        (tmp_path / "x.csv").write_text(DATA[kind][0].replace("3", "9"))
        if change == "none":
            (tmp_path / "x.csv").unlink()
        again = type(task).of_run(task.options, folder)
        found = again.read_given(tmp_path / "new.csv")
        for ours, theirs in zip(found, expected, strict=True):
            same = torch.equal if isinstance(ours, torch.Tensor) else lambda a, b: a == b
            assert same(ours, theirs)
        assert again.run_files() == task.run_files()


CHANGED = [
    (kind, change)
    for kind, (text, *_) in DATA.items()
    for change, (before, _) in CHANGES.items()
    if before in text and not (text is WIDE and change == "a name")  # no name of theirs is kept
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("kind", "change"), CHANGED)
def test_training_goes_on_with_the_same_data_alone(kind, change, tmp_path):
    task = made(kind, tmp_path / "x.csv")
    folder = kept_in(task, tmp_path / "run")
    for part, other in zip(
        task.datasets(), type(task).of_run(task.options, folder).datasets(), strict=True
    ):
        assert len(part) == len(other)
    text = DATA[kind][0].replace(*CHANGES[change])
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=r"x\.csv: the data must be those the run began with"):
        type(task).of_run(task.options, folder).datasets()


def test_data_written_in_another_way_are_the_same(tmp_path):
    task = made("series", tmp_path / "x.csv")
    folder = kept_in(task, tmp_path / "run")
    lines = SERIES.replace(",", ";").replace("7;", "7,0;").splitlines()
    (tmp_path / "x.csv").write_text("\r\n".join(lines))
    type(task).of_run(task.options, folder).datasets()


def test_a_folder_of_an_earlier_version_reads_the_data(tmp_path):
    for kind in DATA:
        task = made(kind, tmp_path / "x.csv")
        assert answered(type(task).of_run(task.options, tmp_path)) == answered(task)


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", ["rows", "series"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("mean", []), ("std", [0.0]), ("std", ["a"]), ("unit", 0.0), ("sha256", 3), ("chance", None)],
)
def test_a_damaged_record_is_refused(kind, field, value, tmp_path):
    task = made(kind, tmp_path / "x.csv")
    folder = kept_in(task, tmp_path / "run")
    (name,) = task.run_files()
    record = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(record | {field: value}))
    with pytest.raises(DataError, match=rf"{name}: the file must hold what is known of the"):
        type(task).of_run(task.options, folder)


def test_another_length_is_of_the_same_series(tmp_path):
    task = made("series", tmp_path / "x.csv")
    folder = kept_in(task, tmp_path / "run")
    (tmp_path / "x.csv").write_text(SERIES.replace(",3,", ",2,"))
    longer = Forecast.of_run(task.options, folder).at_length(10)
    assert longer.sequence_length == 10
    with pytest.raises(DataError, match="those the run began with"):
        longer.datasets()


@pytest.mark.unchecked
def test_what_is_not_finite_is_not_kept(tmp_path):
    (tmp_path / "x.csv").write_text("a\n" + "".join(f"{i % 2}e200\n" for i in range(80)))
    task = Forecast(ForecastOptions(data=str(tmp_path / "x.csv"), length=4, horizon=2))
    with pytest.raises(
        DataError, match="statistics of the data must be finite, got an infinite or undefined std"
    ):
        kept_text(task.known)


def test_a_checksum_tells_shapes_and_texts_apart(tmp_path):
    x = torch.arange(4.0).double().numpy()
    parts = ([x], [x.reshape(2, 2)], [x[:2], x[2:]], ["ab"], ["a", "b"], [x, "a"], [-x])
    assert len({checksum(part) for part in parts}) == len(parts)


def test_a_constant_channel_is_left_alone_whatever_its_mean_rounds_to(tmp_path):
    text = "a,b\n" + "".join(f"0.1,{i}\n" for i in range(83))
    (tmp_path / "x.csv").write_text(text)
    task = Forecast(ForecastOptions(data=str(tmp_path / "x.csv"), length=4, horizon=2))
    assert (task.known.mean[0], task.known.std[0]) == (0.1, 1.0)
    wide = "".join(f"0.1,{i},{i % 2}\n" for i in range(20))
    (tmp_path / "y.csv").write_text(wide)
    table = Table(replace(TableOptions(), data=str(tmp_path / "y.csv"), channels=2))
    assert (table.known.mean[0], table.known.std[0]) == (0.1, 1.0)


def test_the_former_name_of_a_task_of_a_user_warns_and_works(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{i},{-i}\n" for i in range(83)))

    class Mine(Forecast):
        run_files = tasks.Task.run_files

        def kept(self):
            return {"mine.json": "{}"}

    task = Mine(ForecastOptions(data=str(tmp_path / "x.csv"), length=4, horizon=2))
    with pytest.warns(FutureWarning, match="Mine.kept is called run_files"):
        assert task.run_files() == {"mine.json": "{}"}
