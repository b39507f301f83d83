import os
import pickle

import numpy as np
import pytest
import torch

from linrnn.errors import DataError
from linrnn.tasks import load
from linrnn.tasks._reading.table import read_table
from linrnn.tasks.table import Table, TableOptions

ROWS = np.arange(8.0).reshape(2, 4) / 8


def write(path, rows=ROWS):
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez(path, rows)
    else:
        np.savetxt(path, rows, delimiter="," if path.suffix == ".csv" else " ")
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".txt", ".CSV"])
def test_read_table(tmp_path, suffix):
    x = read_table(write(tmp_path / f"x{suffix}"), 4)
    assert x.dtype == torch.float32
    assert torch.equal(x, torch.from_numpy(ROWS).float())


@pytest.mark.parametrize("separator", [",", ";", "\t", " ", ", "])
@pytest.mark.parametrize("header", ["", "a{0}b{0}c{0}d\n"])
def test_read_table_separators_and_header(tmp_path, separator, header):
    text = header.format(separator) + "\n".join(separator.join(map(str, r)) for r in ROWS)
    (tmp_path / "x.csv").write_text(text + "\n\n")
    assert torch.equal(read_table(tmp_path / "x.csv", 4), torch.from_numpy(ROWS).float())


@pytest.mark.parametrize("shape", [(3, 4, 1), (3, 2, 2), (3, 4)])
def test_read_table_flattens_rows(tmp_path, shape):
    rows = np.arange(12, dtype="u1").reshape(shape)
    x = read_table(write(tmp_path / "x.npy", rows), 4)
    assert torch.equal(x, torch.arange(12.0).view(3, 4))


def test_read_table_one_flat_sequence(tmp_path):
    assert read_table(write(tmp_path / "x.npy", np.arange(4)), 4).shape == (1, 4)


def test_task_reads_token_ids(tmp_path):
    task = load("induction_heads")().at_length(4)
    x = task.read(write(tmp_path / "x.csv", np.array([[1, 2, 15, 0]])))
    assert x.tolist() == [[1, 2, 15, 0]]
    assert not x.is_floating_point()


@pytest.mark.unchecked
@pytest.mark.parametrize("bad", [16, -1, 0.5])
def test_what_is_no_token_id_is_refused(tmp_path, bad):
    task = load("induction_heads")().at_length(4)
    message = rf"ids must be integers of 0..15, got {bad} in row 1, column 2"
    with pytest.raises(DataError, match=message):
        task.read(write(tmp_path / "x.csv", np.array([[1, bad, 0, 0]])))


def test_task_read_gives_sequences(tmp_path):
    x = load("digits")().read(write(tmp_path / "x.npy", np.zeros((5, 8, 8))))
    assert x.shape == (5, 64, 1)


TEXT = {
    "1,2,3,4\n1,2,x,4\n": "values must be numbers, got 'x' in line 2, column 3",
    "1,2,3,4\n1,2,,4\n": "values must be numbers, got '' in line 2, column 3",
    "1,2,3,4\n\n1,2,3\n": "each row must hold 4 numbers, got 3 in line 3.*truncated",
    "1,2,3,4,5\n": "each row must hold 4 numbers, got 5 in line 1",
    "1,2,nan,4\n": "values must be finite, got nan in row 1, column 3. .*the 1 such",
    "1,2,3,4\n1,inf,-inf,4\n": "must be finite, got inf in row 2, column 2. .*the 2 such",
    "1,2,3,1e39\n": "values must be finite, got inf in row 1, column 4",
    "a,b,c,d\n": "must hold at least one row, got none",
    "": "must hold numbers, got an empty file",
    "\n \n": "must hold at least one row, got none",
}


@pytest.mark.unchecked
@pytest.mark.parametrize(("text", "message"), TEXT.items())
def test_read_table_text_errors(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=rf"x\.csv: .*{message}"):
        read_table(tmp_path / "x.csv", 4)


@pytest.mark.unchecked
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("size", [0, 5, 60, -1])
def test_read_table_truncated_array(tmp_path, suffix, size):
    path = write(tmp_path / f"x{suffix}")
    path.write_bytes(path.read_bytes()[:size])
    message = "got an empty file" if size == 0 else "must be a complete NumPy array"
    with pytest.raises(DataError, match=message):
        read_table(path, 4)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([["a", "b"]]), "must be real numbers, got dtype <U1"),
        (np.zeros((2, 4), complex), "must be real numbers, got dtype complex128"),
        (np.zeros((2, 5)), "each row must hold 4 numbers, got 5"),
        (np.zeros((0, 4)), "at least one row, got none"),
        (np.full((1, 4), np.nan), "must be finite, got nan in row 1, column 1"),
        (np.float64(3), "at least one row, got none"),
    ],
)
def test_read_table_array_errors(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read_table(write(tmp_path / "x.npy", rows), 4)


@pytest.mark.unchecked
def test_read_table_archive_of_two_arrays(tmp_path):
    np.savez(tmp_path / "x.npz", a=ROWS, b=ROWS)
    with pytest.raises(DataError, match=r"must hold one array, got \['a', 'b'\]"):
        read_table(tmp_path / "x.npz", 4)


@pytest.mark.unchecked
def test_read_table_missing_file_and_unknown_suffix(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv: the data file must exist"):
        read_table(tmp_path / "none.csv", 4)
    with pytest.raises(DataError, match=r"must end in one of \.csv, \.npy, .*got '\.pkl'"):
        read_table(tmp_path / "x.pkl", 4)


@pytest.mark.unchecked
def test_read_table_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(DataError, match="must be text in UTF-8"):
        read_table(tmp_path / "x.txt", 4)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt"])
def test_read_table_never_unpickles(tmp_path, suffix):
    marker, path = tmp_path / "ran", tmp_path / f"x{suffix}"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(DataError):
        read_table(path, 4)
    if suffix != ".txt":
        write(path, np.array([Payload(marker)], dtype=object))
        with pytest.raises(DataError):
            read_table(path, 4)
    assert not marker.exists()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("cell", "advice"),
    [("2026-01-01", "has its time, pass --task.time 'who'"), ("p1", "pass --task.id 'who'")],
)
def test_a_column_of_text_is_named_by_what_it_may_be(tmp_path, cell, advice):
    file = tmp_path / "rows.csv"
    file.write_text("who,a,b,label\n" + f"{cell},1,2,x\n{cell},3,4,y\n" * 3)
    with pytest.raises(DataError, match=advice):
        Table(TableOptions(data=str(file)))
