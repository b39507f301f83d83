"""Numbers in text, at every reader: one rule, and nothing dropped or swallowed without a word."""

import gzip

import numpy as np
import pytest
import torch

from linrnn._options.numbers import like_number, number, whole
from linrnn.cli._verbs.watch import Answers
from linrnn.errors import DataError, LinrnnError, RunFolderError
from linrnn.tasks._kinds.images import read_pixels
from linrnn.tasks._kinds.windows import read_history
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.table import read_ids, read_table
from linrnn.tasks.ett import ETT, ETTOptions
from linrnn.tasks.forecast import Forecast, ForecastOptions
from linrnn.tasks.mackey_glass import MackeyGlass
from linrnn.tasks.table import Table, TableOptions
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import COLUMNS, read_metrics

pytestmark = pytest.mark.unchecked

# each is a number to Python's float() or int(), or to some other program
NO_NUMBERS = {
    "underscore": "1_000",
    "arabic": "\u0661\u0662",
    "devanagari": "\u0967",
    "fullwidth": "\uff11\uff12",
    "mathematical": "\U0001d7d9",
    "fullwidth point": "1\uff0e5",
    "minus sign": "\u22121",
    "superscript": "\u00b2",
    "hexadecimal": "0x10",
    "sign alone": "-",
    "two points": "1.2.3",
    "no exponent": "1e",
    "words": "1 2",
}
NUMBERS = {"1": 1, "+2": 2, "-3.5": -3.5, ".5": 0.5, "4.": 4, "1e2": 100, "1E-2": 0.01, "007": 7}


def plain(text):
    """A table of three columns with one cell in its second row."""
    return f"1,2,3\n4,{text},6\n7,8,9\n"


def many(text, label="x"):
    """Enough sequences for a split, of which one has the cell."""
    return "".join(f"{i},{i + 1},{label}{i % 2}\n" for i in range(11)) + f"1,{text},{label}1\n"


def answers(path):
    """Lines of ``linrnn stream``."""
    from linrnn import SequenceModel

    model = SequenceModel(3, 1, d_model=4, n_layers=1, pool="none").eval()
    watcher = Answers(model, MackeyGlass())
    return [watcher.parse(line, 1) for line in path.read_bytes().splitlines()]


def ids_of_lines(path):
    from linrnn import SequenceModel

    model = SequenceModel(2000, 2, d_model=4, n_layers=1, encoder="tokens").eval()
    watcher = Answers(model, MackeyGlass())
    return [watcher.parse(line, 1) for line in path.read_bytes().splitlines()]


def whole_table(path, **options):
    task = Table(TableOptions(data=str(path), **options))
    return task.datasets().train.tensors


def metrics(path):
    folder = RunFolder(path.parent)
    path.rename(folder.metrics)
    return read_metrics(folder)


def packed(path):
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    return path.with_suffix(".csv.gz")


TS = "@classLabel true a b\n@data\n1,2:3,4:a\n5,{}:7,8:b\n"
SERIES = "date,a,b\n" + "".join(f"day {i},{i},{i}\n" for i in range(40))
EPOCHS = ",".join(COLUMNS) + "\n" + ",".join("1" * len(COLUMNS)) + "\n"

#: name of the file, its text around the cell, its reader
READERS = {
    "table": ("x.csv", plain, lambda p: read_table(p, 3)),
    "table of words": ("x.txt", lambda v: plain(v).replace(",", " "), lambda p: read_table(p, 3)),
    "table of semicolons": (
        "x.csv",
        lambda v: plain(v).replace(",", ";"),
        lambda p: read_table(p, 3),
    ),
    "table in its first row": ("x.csv", lambda v: f"{v}\n1\n", lambda p: read_table(p, 1)),
    "ids": ("x.csv", plain, lambda p: read_ids(p, 3, 2000)),
    "pixels": ("x.csv", lambda v: plain(v), lambda p: read_pixels(p, (3, 1))),
    "series": ("x.csv", many, lambda p: read_series(p, Layout(1, False))),
    "series, label first": (
        "x.csv",
        lambda v: f"a,1,2\nb,3,{v}\n",
        lambda p: read_series(p, Layout(1, True)),
    ),
    "series without labels": ("x.csv", plain, lambda p: read_series(p, Layout(1, False, False))),
    "series, packed": ("x.csv", many, lambda p: read_series(packed(p), Layout(1, False))),
    ".ts": ("x.ts", TS.format, lambda p: read_series(p, Layout(1, False))),
    "task table": ("x.csv", many, whole_table),
    "target in regression": (
        "x.csv",
        lambda v: "".join(f"{i},{i}\n" for i in range(11)) + f"1,{v}\n",
        lambda p: whole_table(p, kind="regression"),
    ),
    "history": ("x.csv", lambda v: SERIES + f"day,{v},1\n", read_history),
    "history in its first row": (
        "x.csv",
        lambda v: SERIES.replace("day 0,0", f"day 0,{v}"),
        read_history,
    ),
    "history, packed": (
        "x.csv",
        lambda v: SERIES + f"day,{v},1\n",
        lambda p: read_history(packed(p)),
    ),
    "task forecast": (
        "x.csv",
        lambda v: SERIES + f"day,{v},1\n",
        lambda p: Forecast(ForecastOptions(data=str(p), length=4, horizon=2)),
    ),
    "task ett": (
        "x.csv",
        lambda v: SERIES.replace("a,b", "a,OT") + f"day,1,{v}\n",
        lambda p: ETT(ETTOptions(data=str(p))).history(),
    ),
    "lines": ("x.txt", lambda v: f"1,2,3\n4,{v},6\n", answers),
    "lines of ids": ("x.txt", lambda v: f"1,2,3\n4,{v},6\n", ids_of_lines),
    "metrics.csv": ("m.csv", lambda v: EPOCHS.replace(",1,1\n", f",{v},1\n"), metrics),
    "metrics.csv, a step": ("m.csv", lambda v: EPOCHS.replace("\n1,1", f"\n1,{v}"), metrics),
}


@pytest.mark.parametrize("text", NO_NUMBERS.values(), ids=NO_NUMBERS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_number_is_refused(tmp_path, reader, text):
    name, content, read = READERS[reader]
    if text == "1 2" and reader in (
        "table of words",
        "lines",
        "lines of ids",
        "table in its first row",
    ):
        pytest.skip("blanks separate numbers there")
    path = tmp_path / name
    path.write_text(content("1"), encoding="utf-8")
    read(path)
    (tmp_path / "metrics.csv").unlink(missing_ok=True)
    path.write_text(content(text), encoding="utf-8")
    with pytest.raises((DataError, RunFolderError)) as error:
        read(path)
    if "metrics" not in reader:
        assert text in str(error.value)
        assert "line" in str(error.value) or "target in regression" in str(error.value)


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_a_number_is_read(tmp_path, reader, text):
    name, content, read = READERS[reader]
    path = tmp_path / name
    path.write_text(content(text), encoding="utf-8")
    value = NUMBERS[text]
    refused = {
        "lines of ids": whole(text) is None or value < 0,
        "metrics.csv, a step": whole(text) is None,
        "ids": value < 0 or value % 1,
        "pixels": value < 0,
    }
    if refused.get(reader):
        with pytest.raises(LinrnnError):
            read(path)
    else:
        read(path)


def test_numbers_are_those_of_python_where_they_are_numbers():
    for text, value in NUMBERS.items():
        assert number(text) == number(text.encode()) == number(f" {text}\t") == value
        assert like_number(text)
    for text in NO_NUMBERS.values():
        assert number(text) is None
        assert number(text.encode()) is None
        assert whole(text) is None
    assert [whole(text) for text in ("12", b"-1", "1.0", "", "9" * 5000)] == [
        12,
        -1,
        None,
        None,
        None,
    ]
    assert np.isnan(number("nan"))
    assert number("1e999") == float("inf")
    assert [like_number(text) for text in ("1_000", "\u0661", "a", "", "1a")] == [
        True,
        True,
        False,
        False,
        False,
    ]


QUOTES = ['1,"2,3', '1,2",3', '"1,2,3', '1,2,3"', '1,""2,3', '"1"x,2,3', '1,2,"3\n4,5,6"']


@pytest.mark.parametrize("row", QUOTES)
@pytest.mark.parametrize(
    "reader",
    [
        lambda p: read_table(p, 3),
        lambda p: read_series(p, Layout(1, False)),
        lambda p: read_series(p, Layout(1, True)),
        lambda p: read_series(p, Layout(1, False, False)),
        read_history,
    ],
)
def test_a_lone_quotation_mark_is_refused_at_its_line(tmp_path, reader, row):
    (tmp_path / "x.csv").write_text(f"a,b,c\n1,2,3\n{row}\n4,5,6\n7,8,9\n")
    with pytest.raises(DataError, match="in line 3"):
        reader(tmp_path / "x.csv")


def test_pairs_of_quotation_marks_are_read(tmp_path):
    (tmp_path / "x.csv").write_text('"1","2","a, ""b"""\n3,"4",c\n')
    series = read_series(tmp_path / "x.csv", Layout(1, False))["train"]
    assert series.y == ['a, "b"', "c"]
    assert [x.ravel().tolist() for x in series.x] == [[1, 2], [3, 4]]
    (tmp_path / "x.csv").write_text('"date, of the day","a"\n"1, May","2"\n"2, May","3"\n')
    values, names = read_history(tmp_path / "x.csv")
    assert (values.tolist(), names) == ([[2], [3]], ["a"])


@pytest.mark.parametrize("separator", ["\v", "\f", "\x1c", "\x85", "\u2028"])
def test_a_line_ends_at_a_line_feed_alone(tmp_path, separator):
    (tmp_path / "x.csv").write_text(f"1,2\n3,4{separator}5,6\n")
    for read in (lambda p: read_table(p, 2), lambda p: read_series(p, Layout(1, False, False))):
        with pytest.raises(DataError, match="in line 2"):
            read(tmp_path / "x.csv")
    for ending in ("\n", "\r\n", "\r"):
        (tmp_path / "x.csv").write_bytes(f"1,2{ending}3,4{ending}".encode())
        assert torch.equal(read_table(tmp_path / "x.csv", 2), torch.tensor([[1.0, 2], [3, 4]]))


@pytest.mark.parametrize("missing", ["", " ", "nan", "NA", "?", "1_0", "inf"])
@pytest.mark.parametrize("place", [0, 1, 9])
def test_a_column_is_not_dropped_for_a_cell(tmp_path, missing, place):
    rows = [[f"day {i}", str(i), str(2 * i)] for i in range(10)]
    rows[place][2] = missing
    path = tmp_path / "x.csv"
    path.write_text("date,a,b\n" + "".join(",".join(row) + "\n" for row in rows))
    with pytest.raises(
        DataError,
        match=rf"got {missing.strip()!r} in line {place + 2}, column b".replace("?", r"\?"),
    ):
        read_history(path)
    values, names = read_history(path, ("a",))  # the other columns are not read
    assert names == ["a"]
    assert values.ravel().tolist() == list(range(10))
    task = Forecast(ForecastOptions(data=str(path), columns=("a",), length=2, horizon=1))
    assert task.read(path).shape == (1, 2, 1)


def test_columns_without_numbers_are_left_out_and_names_are_told_apart(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("day,note,a\nMonday,,1\nTuesday,,2\n")
    assert read_history(path)[1] == ["a"]
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="its own name, got 'a' twice"):
        read_history(path)
    path.write_bytes(b"a,b\xff\n1,2\n")
    with pytest.raises(DataError, match="must be text in UTF-8"):
        read_history(path)
