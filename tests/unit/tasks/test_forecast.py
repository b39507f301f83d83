"""The tasks that forecast a series: `ett` and `forecast`."""

import numpy as np
import pytest
import torch
from made_data import write_ett

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._kinds.windows import read_history
from linrnn.tasks.ett import ETT, ETTOptions
from linrnn.tasks.forecast import Forecast, ForecastOptions


def ett(place, **options):
    return ETT(ETTOptions(data=str(place), **options))


def forecast(path, **options):
    return Forecast(ForecastOptions(data=str(path), **options))


@pytest.fixture
def write(tmp_path):
    def put(text):
        (tmp_path / "x.csv").write_text(text)
        return tmp_path / "x.csv"

    return put


@pytest.mark.parametrize(
    ("name", "month"), [("ETTh1", 720), pytest.param("ETTm1", 2880, marks=pytest.mark.slow)]
)
def test_real_files(shared_data, name, month):
    task = ett(shared_data / "ett", set=name, columns="all")
    splits = task.datasets()
    sizes = [12 * month - 384, 4 * month, 4 * month]
    assert [len(part) for part in splits] == [size - 23 for size in sizes]
    series, history = task.normalised()
    assert history.names == ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
    train = series[: 12 * month].double()
    torch.testing.assert_close(train.mean(0), torch.zeros(7).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        train.std(0, correction=0), torch.ones(7).double(), atol=1e-5, rtol=0
    )
    for columns, rows in (("all", slice(0, 7)), ("OT", slice(6, 7))):
        test = series[16 * month : 20 * month, rows]
        assert test.square().mean() == pytest.approx(
            ett("", set=name, columns=columns).chance, abs=0.02
        )


@pytest.mark.parametrize(("name", "error"), [("ETTh1", 0.035), ("ETTm1", 0.012)])
def test_real_error_of_repeating_the_last_value(shared_data, name, error):
    task = ett(shared_data / "ett", set=name)
    data = task.datasets().test
    x, target = data[range(0, len(data), 7)]
    assert task.scores(x[:, -1:, 0].expand_as(target), target).mean() == pytest.approx(
        error, abs=1e-3
    )


def test_windows_follow_one_another(tmp_path):
    table = write_ett(tmp_path / "ETTh1.csv")
    task = ett(tmp_path, columns="all", length=5, horizon=3)
    assert (task.sequence_length, task.d_input, task.d_output) == (5, 7, 21)
    train = table[: 12 * 720]
    scaled = torch.from_numpy((table - train.mean(0)) / train.std(0)).float()
    splits = task.datasets()
    for part, first, end in zip(splits, (5, 8640, 11520), (8640, 11520, 14400), strict=True):
        for index, step in ((0, first), (1, first + 1), (len(part) - 1, end - 3)):
            x, target = part[index]
            assert torch.equal(x, scaled[step - 5 : step])
            assert torch.equal(target.view(3, 7), scaled[step : step + 3])
    x, _ = splits.test[[4, 2]]
    assert torch.equal(x[1], splits.test[2][0])


def test_oil_temperature_alone(tmp_path):
    write_ett(tmp_path / "ETTh1.csv")
    x, target = ett(tmp_path, horizon=48).datasets().train[0]
    assert x.shape == (384, 1)
    assert target.shape == (48,)
    every = ett(tmp_path / "ETTh1.csv", columns="all").datasets().train[0][0]
    assert torch.equal(x[:, 0], every[:, 6])


def test_at_length(tmp_path):
    assert ett(tmp_path).at_length(96).sequence_length == 96


def test_example(tmp_path):
    write_ett(tmp_path / "ETTh1.csv")
    text = ett(tmp_path).example()
    assert text.startswith("input, of OT ... ")
    assert len(text.splitlines()) == 2


def test_published_numbers():
    found = {p.model: p.value for p in ETT.published}
    assert len(found) == 30
    assert found["S4, ETTh1, 24 steps ahead"] == 0.061
    assert found["Informer, ETTm1, 672 steps ahead"] == 0.512


def test_own_series(write):
    rows = "".join(f"day {i},{i},{i % 2}\n" for i in range(100))
    path = write("date, a ,b\n" + rows)
    task = forecast(path, length=4, horizon=2)
    assert (task.d_input, task.d_output) == (2, 4)
    splits = task.datasets()
    assert [len(part) for part in splits] == [65, 9, 19]
    series, history = task.normalised()
    assert history.names == ["a", "b"]
    assert task.chance == pytest.approx(series[80:].square().mean().item())
    one = forecast(path, columns=("b",), length=4, horizon=2)
    assert torch.equal(one.datasets().test[0][0], splits.test[0][0][:, 1:])


def test_the_last_steps_of_a_new_file_are_read_and_what_is_answered_has_its_units(write, tmp_path):
    rows = "".join(f"day {i},{i},{3 * i + 5}\n" for i in range(100))
    task = forecast(write("date,a,b\n" + rows), length=4, horizon=2)
    (tmp_path / "new.csv").write_text("b,other,a\n" + "".join(f"{i},0,{-i}\n" for i in range(9)))
    mean, std = np.arange(70).mean(), np.arange(70).std()
    x = task.read(tmp_path / "new.csv")
    steps = np.arange(5, 9)
    expected = np.stack([(-steps - mean) / std, (steps - 3 * mean - 5) / (3 * std)], 1)
    np.testing.assert_allclose(x[0], expected, rtol=1e-5)
    y = task.numbers(torch.tensor([[0.0, 1.0, 2.0, 0.0]]))
    middle = 3 * mean + 5
    np.testing.assert_allclose(y[0], [[mean, middle + 3 * std], [mean + 2 * std, middle]])
    assert task.number_names == ("a", "b")


@pytest.mark.unchecked
def test_a_series_that_cannot_be_continued_is_refused(write, tmp_path):
    task = forecast(write("a,b\n" + "1,2\n" * 40), length=4, horizon=2)
    (tmp_path / "new.csv").write_text("a,c\n" + "1,2\n" * 9)
    with pytest.raises(DataError, match=r"new\.csv: the series must have 4 steps of a, b, got 9"):
        task.read(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"got 1 of a, b"):
        task.read(tmp_path / "new.csv")


BAD = {
    "empty": ("", "a row of names and others, got 0"),
    "names": ("a,b\n", "a row of names and others, got 1"),
    "truncated": ("a,b\n1,2\n1\n", "2 cells as the first, got 1 in line 3. Is the file truncated"),
    "nan": ("a,b\n1,2\n1,nan\n", "finite numbers, got 'nan' in line 3, column b"),
    "word": ("d,a\nx,2\ny,z\n", "finite numbers, got 'z' in line 3, column a"),
    "words": ("a\nx\n", "a column must hold numbers, got only a"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_damaged_tables(write, text, message):
    with pytest.raises(DataError, match=rf"x\.csv: .*{message}"):
        read_history(write(text))


@pytest.mark.unchecked
def test_series_too_short(tmp_path, write):
    write_ett(tmp_path / "ETTh1.csv", steps=17 * 720)
    with pytest.raises(DataError, match="ETT: each part of the series must hold a window of 384 "):
        ett(tmp_path, horizon=721).datasets()
    path = write("a\n" + "1\n" * 40)
    with pytest.raises(DataError, match="Forecast: each part of the series must hold a window of"):
        forecast(path).datasets()
    np.testing.assert_array_equal(forecast(path, length=2, horizon=1).datasets().test[0][0], 0)


@pytest.mark.unchecked
def test_bad_options(tmp_path, write):
    with pytest.raises(UnknownNameError, match=r"no ETT set named 'ETTh3'"):
        ETT(ETTOptions(set="ETTh3"))
    with pytest.raises(ArgumentError, match="ETT: horizon must be an integer of at least 1, got 0"):
        ETT(ETTOptions(horizon=0))
    with pytest.raises(UnknownNameError, match=r"no column of numbers named 'c'.*Known: a\."):
        forecast(write("a\n1\n"), columns=("c",))
    with pytest.raises(UnknownNameError, match=r"column of numbers named 'OT'"):
        ett(write("a\n1\n")).datasets()
    with pytest.raises(DataError, match=r"forecast: the data must be a file, got none"):
        Forecast().datasets()
    with pytest.raises(DataError, match=r"none\.csv: the data file must exist"):
        forecast(tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"ett: the data file .*ETTh2\.csv must exist, .*Get ETTh2"):
        ett(tmp_path, set="ETTh2").datasets()
