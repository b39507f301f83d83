"""Rows of text: which character separates cells, and what a comma in a number is."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linrnn._options.numbers import number
from linrnn.errors import DataError
from linrnn.tasks._reading.frame import open_frame
from linrnn.tasks._reading.rows import filled_lines, numbers_of, split_rows, split_table
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.table import read_table

NUMBERS = [[1.5, -2.25], [0.125, 3e-3], [1.625, 1234.5]]


def rows(path, text):
    return split_rows(path, filled_lines(path, text.encode()))


def as_written(separator, decimal, head=""):
    lines = [separator.join(f"{v:g}".replace(".", decimal) for v in row) for row in NUMBERS]
    return "\n".join([head, *lines] if head else lines) + "\n"


WAYS = [(",", "."), (";", "."), (";", ","), ("\t", "."), ("\t", ",")]


@pytest.mark.parametrize(("separator", "decimal"), WAYS)
@pytest.mark.parametrize("head", [False, True])
def test_every_reader_of_text_takes_what_spreadsheets_write(tmp_path, separator, decimal, head):
    path, want = tmp_path / "x.csv", torch.tensor(NUMBERS)
    path.write_text(as_written(separator, decimal, f"a{separator}b" if head else ""))
    assert torch.equal(read_table(path, 2), want)
    (series,) = read_series(path, Layout(1, False, labelled=False)).values()
    assert torch.equal(torch.tensor([x.ravel().tolist() for x in series.x]), want)
    if head:
        assert torch.tensor(open_frame(path).values(["a", "b"])).allclose(want.double())


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("1,2,3\n4,5\n", [["1", "2", "3"], ["4", "5"]]),  # rows may end early
        ("1,5;2;3\n4,25;5\n", [["1.5", "2", "3"], ["4.25", "5"]]),
        ("date;temp, C;b\n2020;1,5;2\n", [["date", "temp, C", "b"], ["2020", "1.5", "2"]]),
        ("a;b,c\n1,2\n", [["a;b", "c"], ["1", "2"]]),
        ('"a;b",c\n1,2\n', [["a;b", "c"], ["1", "2"]]),
        ('a,note\n1,"x;y"\n', [["a", "note"], ["1", "x;y"]]),
        ("x;y,1\nz;w,2\n", [["x;y", "1"], ["z;w", "2"]]),  # either: the comma
        ("prices\n1;2\n3;4\n", [["prices"], ["1", "2"], ["3", "4"]]),
        ("a;b\n1,5;x\n2,500;y\n", [["a", "b"], ["1.5", "x"], ["2.500", "y"]]),
        ("a;b\n0,125;1\n", [["a", "b"], ["0.125", "1"]]),
        ("a;b\n1,5e3;1,2,3\n", [["a", "b"], ["1.5e3", "1,2,3"]]),
        ("a\n1\n", [["a"], ["1"]]),
        ("", []),
    ],
)
def test_cells(tmp_path, text, cells):
    assert rows(tmp_path / "x.csv", text) == cells


@pytest.mark.parametrize("text", ["a;b\n1,234;5\n-12,500;6\n", "a\tb\n1\t123,456\n"])
def test_a_comma_that_may_be_one_between_thousands_is_not_guessed_at(tmp_path, text):
    with pytest.raises(DataError, match=r"readable in one way, got '1(,234|23,456)' in line 2"):
        rows(tmp_path / "x.csv", text)


def test_a_point_between_thousands_is_no_number(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a;b\n1.234,5;1\n0,5;2\n")
    with pytest.raises(DataError, match=r"finite numbers, got '1.234,5' in line 2, column a"):
        open_frame(path).values(["a"])


@pytest.mark.parametrize("first", ["1.5,2", "2020-01-01,1.5", "2020-01-01T08:00,1e3,-4"])
def test_a_table_without_names_is_refused(tmp_path, first):
    path = tmp_path / "x.csv"
    path.write_text(f"{first}\n{first}\n")
    with pytest.raises(DataError, match="must hold the names of the columns, got the number '1"):
        open_frame(path)


@pytest.mark.parametrize("names", [["0", "1"], ["date", "0.5"], ["1st", "2nd"], ["2024", "x"]])
def test_names_may_have_digits(tmp_path, names):
    path = tmp_path / "x.csv"
    path.write_text(",".join(names) + "\n1.5,2\n")
    assert open_frame(path).names == names


#: pieces of cells in which every reader of tables has a rule of its own
PIECES = ["1", "-2.5", "é", "\u0661", "1_0", "", " ", "#", "'", "\x0b", "\x85", "\u2028", '""']


@st.composite
def tables(draw):
    """Cells as they are written, a list for each row, all rows as wide."""
    width = draw(st.integers(1, 4))
    cell = st.lists(st.sampled_from(PIECES), max_size=3).map("".join)
    quoted = st.lists(st.sampled_from([*PIECES, ","]), max_size=3).map(lambda c: f'"{"".join(c)}"')
    plain = cell.map(lambda text: text.replace('"', ""))
    row = st.lists(plain | quoted, min_size=width, max_size=width)
    return draw(st.lists(row, min_size=1, max_size=5))


@given(tables(), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_a_table_is_what_the_module_csv_reads(cells, end, bom):
    text = end.join(",".join(row) for row in cells) + end
    content = ("\ufeff" if bom else "").encode() + text.encode()
    lines = filled_lines(Path("x.csv"), content)
    written = [",".join(row) for row in cells]
    assert list(lines.texts) == [line for line in written if line.strip()]
    assert list(lines.places) == [n for n, line in enumerate(written, 1) if line.strip()]
    if lines.texts:
        expected = [next(csv.reader([line], strict=True)) for line in lines.texts]
        assert split_table(Path("x.csv"), lines).tolist() == expected


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('"1"x,2', "',' expected after '\"' in line 5"),
        ('1",2', "a lone one in line 5"),
        ('"1,2', "unexpected end of data in line 5"),
        ('"1\n2",3', "unexpected end of data in line 5"),
        ("1", "must hold 2 cells as the first, got 1 in line 5. Is the file truncated"),
        ("1,2,", "must hold 2 cells as the first, got 3 in line 5. Is the file truncated"),
        ("1,2" + "3" * 140_000, "larger than field limit \\(131072\\) in line 5"),
    ],
)
def test_what_numpy_or_pandas_would_pass_over_is_named_with_its_line(tmp_path, row, says):
    path = tmp_path / "x.csv"
    path.write_text(f"a,b\n1,2\n \n3,4\n{row}\n5,6\n")
    with pytest.raises(DataError, match=says):
        open_frame(path)


CELLS = ["1.5", " -2e3 ", "+.5", "nan", "Infinity", "1e400", "7.", "0007", "4.9e-324", "0.1"]
NONE = ["", " ", "1_000", "\u0661", "0x1f", "1,5", "1 000", "x", "1\x00", "--1"]


@pytest.mark.parametrize("others", [[], *([none] for none in NONE), NONE])
def test_many_numbers_are_those_of_one(others):
    cells = CELLS + others
    expected = np.array([number(cell) for cell in cells], np.float64)
    np.testing.assert_array_equal(numbers_of(cells), expected)


def test_a_column_is_the_same_with_and_without_cells_that_are_no_numbers(tmp_path):
    path, other = tmp_path / "x.csv", tmp_path / "y.csv"
    values = np.random.RandomState(0).standard_normal(200) * 10.0 ** np.arange(-100, 100)
    path.write_text("a,b\n" + "".join(f"{v!r},é\n" for v in values.tolist()))
    other.write_text("a,b\n" + "".join(f"{v!r},1\n" for v in values.tolist()) + ",1\n")
    np.testing.assert_array_equal(open_frame(path).values(["a"])[:, 0], values)
    np.testing.assert_array_equal(open_frame(other).values(["a"], missing=True)[:-1, 0], values)


def test_blanks_of_any_kind_stand_around_a_number(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n\u00a01.5,\u2028 2\n\t3 ,4\u3000\n")
    assert open_frame(path).values(["a", "b"]).tolist() == [[1.5, 2], [3, 4]]
    assert read_table(path, 2).tolist() == [[1.5, 2], [3, 4]]
