"""Rows of text: which character separates cells, and what a comma in a number is."""

import pytest
import torch

from linrnn.errors import DataError
from linrnn.tasks._reading.frame import open_frame
from linrnn.tasks._reading.rows import filled_lines, split_rows
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
