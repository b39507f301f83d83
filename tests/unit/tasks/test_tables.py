"""Tables with a step in each row, times, missing values and more kinds of files."""

import datetime
from dataclasses import replace

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks.forecast import Forecast, ForecastOptions
from linrnn.tasks.table import Table, TableOptions

LONG = {"id": "who", "target": "what"}


@pytest.fixture
def write(tmp_path):
    def put(text, name="x.csv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return put


def long(path, **options):
    return Table(TableOptions(data=path, **(LONG | options)))


def rows(steps=lambda i: 3 + i % 2, cell=lambda i, t: f"{i}.5,{t}", times=None):
    """Twenty sequences whose rows alternate, as text."""
    lines = ["who,a,b,what" + (",when" if times else "")]
    for t in range(max(map(steps, range(20)))):
        for i in range(20):
            if t < steps(i):
                when = f",{times(i, t)}" if times else ""
                lines.append(f"s{i},{cell(i, t)},{'xy'[i % 2]}{when}")
    return "\n".join(lines) + "\n"


def everything(task):
    """All items of all parts."""
    return [part[i] for part in task.datasets() for i in range(len(part))]


def test_sequences_are_those_of_an_id_in_the_order_of_their_rows(write):
    task = long(write(rows()), normalise=False)
    assert (task.d_input, task.sequence_length, task.class_names) == (2, 4, ("x", "y"))
    found = {}
    for x, label, length in everything(task):
        found[x[0, 0].item()] = (x[: int(length)].tolist(), int(label))
    assert len(found) == 20
    for i in range(20):
        steps = [[i + 0.5, t] for t in range(3 + i % 2)]
        assert found[i + 0.5] == (steps, i % 2)


def test_columns_are_named_or_all_that_hold_numbers(write):
    path = write(rows())
    assert long(path, columns=("b",)).d_input == 1
    with pytest.raises(UnknownNameError, match="c"):
        long(path, columns=("c",))
    noted = write(rows(cell=lambda i, t: f"{i},note {t}"), "noted.csv")
    with pytest.raises(DataError, match=r"hold numbers, got 'b' with 'note 0'.*--task\.columns"):
        long(noted)
    assert long(noted, columns=("a",)).d_input == 1
    lines = rows().splitlines()
    counted = "\n".join(f"{'' if i == 0 else i},{line}" for i, line in enumerate(lines))
    with pytest.raises(DataError, match="must have a name"):
        long(write(counted, "counted.csv"))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (("s3,", ","), r"which sequence it belongs to, got '' in line 5, column who"),
        (("s1,1.5,2,y", "s1,1.5,2,x"), r"must have the same label, got 'x' in line 43"),
        (("s1,1.5,2,y", "s1,1.5,,y"), r"got '' in line 43, column b\. Fill .*--task\.missing"),
        (("s1,1.5,2,y", "s1,1.5,1_000,y"), r"got '1_000' in line 43, column b\. Correct it"),
        (("s1,1.5,2,y", "s1,1.5,1e400,y"), r"got '1e400' in line 43, column b"),
        (("s1,1.5,2,y", "s1,1.5,1e300,y"), r"values must be finite, got inf in sequence 2, step 3"),
    ],
)
def test_what_cannot_be_read_is_named(write, broken, says):
    with pytest.raises(DataError, match=says):
        long(write(rows().replace(*broken, 1)))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            rows(),
            r"text in column 1 \('s0' in line 2\)\. If each row is one step .* --task\.id 'who'",
        ),
        ("s0,1,2,x\ns1,3,4,y\n", r"'s0' in line 1\).*name the columns in a first line and pass"),
        ("a,b,c\n1,up,x\n2,down,y\n", r"text in column 2 \('up' in line 2\)"),
        ("a,b,c\n1,2,x\n2,down,y\n", r"got 'down' in line 3, value 2\. Correct it"),
    ],
)
def test_a_column_of_text_is_named_with_what_it_may_be(write, text, says):
    with pytest.raises(DataError, match=says):
        Table(TableOptions(data=write(text)))


def test_options_of_tables_need_one_another(write):
    path = write(rows())
    for given in ({"target": "what"}, {"time": "when"}, {"columns": ("a",)}):
        with pytest.raises(ArgumentError, match=r"must come with id.*pass --task\.id NAME"):
            Table(TableOptions(data=path, **given))
    with pytest.raises(ArgumentError, match="id must come with target"):
        Table(TableOptions(data=path, id="who"))
    with pytest.raises(ArgumentError, match="must come with time"):
        long(path, times="column")
    with pytest.raises(UnknownNameError, match="when"):
        long(path, time="when")


GAPS = [0, 2, 3, 7]
STAMPS = {
    "numbers": lambda i, t: 100 + GAPS[t],
    "dates": lambda i, t: datetime.date(2024, 2, 27) + datetime.timedelta(GAPS[t]),
    "times": lambda i, t: datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=GAPS[t]),
    "zoned": lambda i, t: f"2024-01-0{1 + GAPS[t]}T00:00:00Z",
}


@pytest.mark.parametrize("kind", STAMPS)
def test_uneven_times_are_multiples_of_the_usual_one(write, kind):
    path = write(rows(times=STAMPS[kind]))
    task = long(path, time="when")
    for _, _, length, dt in everything(task):
        expected = [1.0, 1.0, 0.5, 2.0] if length == 4 else [1.0, 1.0, 0.5, 1.0]
        assert dt.tolist() == expected  # padding has 1
    column = long(path, time="when", times="column")
    assert column.d_input == 3
    assert {x[1, 2].item() for x, *_ in everything(column)} == {1.0}
    assert {x[2, 2].item() for x, *_ in everything(column)} == {0.5}
    assert all(len(item) == 3 for item in everything(long(path, time="when", times="none")))


def test_even_times_are_none_and_a_file_must_keep_to_them(write):
    path = write(rows(times=lambda i, t: 10 * t))
    task = long(path, time="when")
    assert all(len(item) == 3 for item in everything(task))
    given = task.read_given(task_path(path))
    assert given.dt is None
    assert given.ids == tuple(f"s{i}" for i in range(20))
    other = write(rows(times=lambda i, t: 20 * t), "other.csv")
    with pytest.raises(DataError, match=r"must be 10 apart.* as in training, got 20"):
        task.read_given(task_path(other))


def task_path(path):
    from pathlib import Path

    return Path(path)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (lambda i, t: 3 - t, r"must rise, got '2' after '3' in line 22, column when"),
        (lambda i, t: 0, "must rise"),
        (lambda i, t: "soon", "all numbers, or all dates.* got 'soon' in line 2"),
        (lambda i, t: t if i else "2024-01-01", "got '2024-01-01'|got '0'"),
        (
            lambda i, t: f"2024-01-0{t + 1}" + ("T00:00Z" if i else ""),
            "with a time zone or without",
        ),
    ],
)
def test_times_that_are_none(write, times, says):
    with pytest.raises(DataError, match=says):
        long(write(rows(times=times)), time="when")


def test_missing_values_are_filled_or_marked(write):
    def cell(i, t):
        return f"{'' if t == 0 or i == 3 else i},{'NA' if t == 1 else t}"

    path = write(rows(lambda i: 4, cell))
    with pytest.raises(DataError, match="missing"):
        long(path)
    filled = everything(long(path, missing="ffill", normalise=False))
    marked = everything(long(path, missing="mask", normalise=False))
    for (x, _), (y, _) in zip(filled, marked, strict=True):
        assert x[:, 1].tolist() == [0, 0, 2, 3]  # the second is the first
        assert x[0, 0] == 0  # nothing came before
        assert y[:, 1].tolist() == [0, 0, 2, 3]
        assert y[:, 3].tolist() == [0, 1, 0, 0]
        assert y[0, 2] == 1
        alone = y[1, 2] == 1
        assert (y[:, 2] == (1 if alone else torch.tensor([1.0, 0, 0, 0]))).all()
    scaled = long(path, missing="mask")
    assert scaled.d_input == 4
    assert all((x[0, 0], x[0, 2]) == (0, 1) for x, _ in everything(scaled))
    with pytest.raises(DataError, match=r"must have a value in the training part.* channel 1"):
        long(
            write(rows(cell=lambda i, t: f"nan,{t}"), "none.csv"),
            missing="mask",
            columns=("a", "b"),
        )


def test_missing_values_of_wide_rows(write, tmp_path):
    text = "".join(f"{i},?,{i + 2},{'xy'[i % 2]}\n" for i in range(20))
    with pytest.raises(DataError, match=r"got '\?' in line 1.*--task\.missing"):
        Table(TableOptions(data=write(text)))
    for x, _ in everything(Table(TableOptions(data=write(text), missing="ffill", normalise=False))):
        assert x[:, 0].tolist() == [x[0, 0], x[0, 0], x[0, 0] + 2]
    archive = "@classLabel true a b\n@data\n" + "".join(
        f"1,?,{i}:{'ab'[i % 2]}\n" for i in range(20)
    )
    for x, _ in everything(Table(TableOptions(data=write(archive, "x.ts"), missing="mask"))):
        assert x[:, 1].tolist() == [0, 1, 0]
    values = np.ones((20, 3))
    values[:, 2] = np.nan
    np.savez(tmp_path / "x.npz", x=values, y=np.arange(20) % 2)
    task = Table(TableOptions(data=str(tmp_path / "x.npz"), missing="mask"))
    assert all(x[:, 1].tolist() == [0, 0, 1] for x, _ in everything(task))


def test_files_of_the_ucr_archive(write):
    text = "".join(
        f"{i % 2 + 1}\t{i}\t{i + 1}" + ("\tNaN\n" if i < 9 else "\t7\n") for i in range(20)
    )
    task = Table(TableOptions(data=write(text, "x.tsv"), label="first", normalise=False))
    assert task.class_names == ("1", "2")
    lengths = [int(length) for *_, length in everything(task)]
    assert sorted(lengths) == [2] * 9 + [3] * 11
    write(text, "X_TRAIN.tsv")
    test = write("1\t5\t6\t7\n", "X_TEST.tsv").replace("_TEST", "_TRAIN")
    parts = Table(TableOptions(data=test, label="first")).datasets()
    assert [len(part) for part in parts] == [18, 2, 1]


def test_files_of_weka(write):
    pytest.importorskip("scipy")
    head = "@relation x\n@attribute a numeric\n@attribute b numeric\n@attribute class {one,two}\n"
    data = "".join(f"{i},{i + 1},{['one', 'two'][i % 2]}\n" for i in range(20))
    task = Table(TableOptions(data=write(head + "@data\n" + data, "x.arff"), normalise=False))
    assert task.class_names == ("one", "two")
    found = sorted((x[:, 0].tolist(), int(y)) for x, y in everything(task))
    assert found == [([i, i + 1], i % 2) for i in range(20)]
    broken = data.replace("3,4,two", "3,two", 1)
    for text in ("", head, head + "@data\n" + broken, head + "@data\n" + data + "1,2,three\n"):
        with pytest.raises(DataError, match=r"x\.arff"):
            Table(TableOptions(data=write(text, "x.arff")))


def test_arrays_in_two_files(tmp_path):
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    options = TableOptions(
        data=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.npy"), normalise=False
    )
    found = sorted((x[:, 0].tolist(), int(y)) for x, y in everything(Table(options)))
    assert found == [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    with pytest.raises(DataError, match=r"--task\.labels FILE"):
        Table(replace(options, labels=""))
    np.save(tmp_path / "y.npy", y[1:])
    with pytest.raises(DataError, match="y must be numbers or words"):
        Table(options)


def test_parquet_is_what_csv_is(write, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = write(rows(times=STAMPS["times"]))
    table = pandas.read_csv(path, parse_dates=["when"])
    table.loc[5, "a"] = None
    table.to_parquet(tmp_path / "x.parquet")
    table.to_csv(path, index=False)
    options = {"time": "when", "missing": "mask"}
    ours, theirs = (everything(long(str(p), **options)) for p in (path, tmp_path / "x.parquet"))
    for a, b in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, a, b))
    for index in ("when", ["who", "when"]):  # which pandas puts beside the columns
        table.set_index(index).to_parquet(tmp_path / "indexed.parquet")
        indexed = everything(long(str(tmp_path / "indexed.parquet"), columns=("a", "b"), **options))
        for a, b in zip(ours, indexed, strict=True):
            assert all(map(torch.equal, a, b))
    wide = pandas.DataFrame(np.arange(40.0).reshape(20, 2)).assign(label=["x", "y"] * 10)
    wide.columns = [str(c) for c in wide.columns]
    wide.to_parquet(tmp_path / "wide.parquet")
    task = Table(TableOptions(data=str(tmp_path / "wide.parquet"), normalise=False))
    assert sorted(x[0].item() for x, _ in everything(task)) == list(range(0, 40, 2))
    (tmp_path / "wide.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="table in Parquet"):
        Table(TableOptions(data=str(tmp_path / "wide.parquet")))


def series(cell=str, when=lambda t: t, n=100):
    return "when,a,b\n" + "".join(f"{when(t)},{cell(t)},{t % 5}\n" for t in range(n))


def forecast(path, **options):
    return Forecast(ForecastOptions(data=path, length=6, horizon=3, **options))


def test_a_column_of_times_is_no_series_and_a_forecast_has_its_times(write):
    path = write(series(when=lambda t: datetime.date(2024, 1, 1) + datetime.timedelta(t)))
    numbers = write(series(when=lambda t: 5 * t + 2), "numbers.csv")
    assert forecast(numbers).d_input == 3
    for given, last in ((path, "2024-04-12"), (numbers, "512")):
        task = forecast(given, time="when")
        assert task.history().names == ["a", "b"]
        assert all(len(part[0]) == 2 for part in task.datasets())
        times = task.read_given(task_path(given)).times
        assert len(times) == 3
        assert times[-1] == last


def test_uneven_times_of_a_series(write):
    path = write(series(when=lambda t: t + (t % 3 == 0) / 2))
    task = forecast(path, time="when")
    x, _, dt = task.datasets().train[4]
    assert x.shape == (6, 2)
    gaps = {0: 1.5, 1: 0.5, 2: 1.0}  # each as often, so that the usual one is 1
    assert dt.tolist() == [gaps[t % 3] for t in range(4, 10)]
    given = task.read_given(task_path(path))
    assert given.times == ()
    assert given.dt[0].tolist() == [gaps[t % 3] for t in range(94, 100)]


def test_missing_values_of_a_series_are_not_asked_about(write):
    gone = {7, 8, 50, 75, 76, 77, 78, 90}
    path = write(series(lambda t: "" if t in gone else str(t)))
    with pytest.raises(DataError, match=r"got '' in line 9, column a.*--task\.missing"):
        forecast(path, columns=("a",))
    task = forecast(path, columns=("a",), missing="ffill")
    part = task.datasets().train
    (x, target), (_, hole) = part[3], part[0]
    assert not x.isnan().any()
    assert x[-2:, 0].tolist() == [x[-3, 0]] * 2  # steps 7 and 8
    assert hole.isnan().tolist() == [False, True, True]
    wrong = torch.zeros(1, 3)
    assert task.scores(wrong, hole[None])[0] == hole[0] ** 2
    assert task.loss(wrong, hole[None]) == hole[0] ** 2
    # forecasts of nothing that is known are left out: of steps 75 to 77 and 76 to 78
    assert len(task.datasets().validation) == 80 - 70 - 3 + 1 - 2
    marked = forecast(path, columns=("a",), missing="mask")
    assert (marked.d_input, marked.d_output, marked.channels) == (2, 3, 1)
    x, _ = marked.datasets().train[3]
    assert x[:, 1].tolist() == [0, 0, 0, 0, 1, 1]
    assert marked.numbers(target[None]).shape == (1, 3, 1)


def test_columns_are_those_of_the_training_by_name(write, tmp_path):
    path = write(rows())
    task = long(path, test=path.replace("x.csv", "./x.csv"))
    lines = [line.split(",") for line in rows().splitlines()]

    def arranged(*places):
        return "".join(",".join(line[i] for i in places) + "\n" for line in lines)

    expected = task.read(task_path(path))
    swapped = write(arranged(2, 0, 3, 1), "swapped.csv")
    assert torch.equal(task.read(task_path(swapped)), expected)
    more = write(arranged(0, 3, 2, 1, 3).replace("a,what", "a,note", 1), "more.csv")
    assert torch.equal(task.read(task_path(more)), expected)
    whole = long(path, test=write(rows(), "same.csv")).datasets().test[:]
    for a, b in zip(long(path, test=swapped).datasets().test[:], whole, strict=True):
        assert torch.equal(a, b)
    lacking = write(rows().replace(",b,", ",c,", 1), "lacking.csv")
    says = r"lacking\.csv: the table must have the columns who, a, b, .*got who, a, c, .*without b"
    with pytest.raises(DataError, match=says):
        task.read(task_path(lacking))
    with pytest.raises(DataError, match=says):
        long(path, test=lacking)
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(path)
    assert torch.equal(task.read_frame("predict", table[table.columns[::-1]]).x, expected)
    with pytest.raises(DataError, match=r"predict: the table must have .* without a"):
        task.read_frame("predict", table.drop(columns="a"))


def test_an_answer_that_is_missing_is_said_to_be(write):
    text = rows().replace("s3,3.5,0,y", "s3,3.5,0,", 1)
    with pytest.raises(DataError, match=r"must have its label.* missing value, '', in line 5, col"):
        long(write(text))
    nowhere = "\n".join(
        line.rstrip("xy") if line.startswith("s3,") else line for line in rows().splitlines()
    )
    with pytest.raises(DataError, match=r"missing value, '', in line 5, column what"):
        long(write(nowhere))


@pytest.mark.parametrize("head", [",", "Unnamed: 0,"])
def test_a_count_of_rows_is_no_series(write, head):
    lines = series().splitlines()
    counted = "\n".join([head + lines[0], *(f"{i},{line}" for i, line in enumerate(lines[1:]))])
    path = write(counted)
    with pytest.raises(DataError, match=r"must have a name, got '.*' with '0'.*--task\.columns"):
        forecast(path, time="when")
    plain = forecast(write(series(), "plain.csv"), time="when")
    assert forecast(path, time="when", columns=("a", "b")).known == plain.known
    assert torch.equal(plain.read(task_path(path)), plain.read(task_path(plain.options.data)))


def day(t):
    return datetime.date(2024, 1, 20) + datetime.timedelta(t)


ZONE = datetime.timezone(datetime.timedelta(hours=2))
#: how a step of an even series is written
WRITTEN = {
    "day": day,
    "day without hyphens": lambda t: day(t).strftime("%Y%m%d"),
    "hour": lambda t: datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=t),
    "hour with T": lambda t: f"{day(t)}T08:00:00",
    "zone": lambda t: datetime.datetime(2024, 1, 1, tzinfo=ZONE) + datetime.timedelta(t),
    "Z": lambda t: f"{day(t)}T08:00:00Z",
    "number": lambda t: 10_000_000 + 7 * t,
    "eight digits": lambda t: 20240131 + t,
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_times_that_are_forecast_are_written_as_those_before(write, kind):
    when = WRITTEN[kind]
    path = write(series(when=when))
    task = forecast(path, time="when")
    assert task.known.even
    given = task.read_given(task_path(path))
    assert given.times == tuple(str(when(t)) for t in range(100, 103))
    assert task.as_stamps(given.times) == task.as_stamps([str(when(t)) for t in range(100, 103)])
    assert all(type(x) is type(task.as_stamps(given.times)[0]) for x in task.as_stamps(given.times))
    # a few rows may look like dates where those of the training were none
    few = write(series(when=when, n=6), "few.csv")
    assert task.read_given(task_path(few)).times == tuple(str(when(t)) for t in range(6, 9))
    other = "day" if task.known.stamps == "numbers" else "number"
    wrong = write(series(when=WRITTEN[other]), "other.csv")
    with pytest.raises(DataError, match=f"must be {task.known.stamps}, as in training, got"):
        task.read_given(task_path(wrong))


def test_dates_without_hyphens_are_days_apart(write):
    dated = rows(times=lambda i, t: day(10 * t + i).strftime("%Y%m%d"))
    task = long(write(dated), time="when")
    assert (task.known.stamps, task.known.even, task.known.unit) == ("dates", True, 864_000)


@pytest.mark.parametrize("offset", [0, 1.7e9, -4e6])
def test_what_is_far_from_zero_is_not_rounded_before_its_mean_is_taken_off(write, tmp_path, offset):
    rng = np.random.RandomState(0)
    values = rng.randn(20, 5)
    scaled = (values - 0.0).tolist()
    wide = "".join(
        ",".join(repr(v + offset) for v in row) + f",{'xy'[i % 2]}\n"
        for i, row in enumerate(scaled)
    )
    task = Table(TableOptions(data=write(wide, "wide.csv")))
    mean, std = task.known.mean[0] - offset, task.known.std[0]
    asked = (values - mean) / std
    np.save(tmp_path / "new.npy", values + offset)
    np.savez(tmp_path / "new.npz", x=values + offset)
    unlabelled = write(
        "".join(line.rpartition(",")[0] + "\n" for line in wide.splitlines()), "n.csv"
    )
    for path in (tmp_path / "new.npy", tmp_path / "new.npz", unlabelled):
        found = task.read(task_path(path))[..., 0].numpy()
        np.testing.assert_allclose(found, asked, atol=1e-5)
    steps = "who,a,what\n" + "".join(
        f"s{i},{v + offset!r},{'xy'[i % 2]}\n" for i, row in enumerate(scaled) for v in row
    )
    each = long(write(steps, "steps.csv"))
    assert each.known.std == pytest.approx(task.known.std, rel=1e-6)
    np.testing.assert_allclose(each.read(task_path(write(steps)))[..., 0], asked, atol=1e-5)
    assert all(x.std() > 0.1 for x, *_ in everything(each))
