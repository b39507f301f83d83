"""A user's own sequences: `linrnn.tasks.table` and the files it reads."""

import gzip

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks.table import Table, TableOptions

HEADER = "# about\n@problemName X\n@timeStamps false\n@classLabel true a b\n@data\n"
STAMPED = HEADER.replace("false", "true")
CASES = "".join(f"{i},2,3:4,{i},6:{'ab'[i % 2]}\n" for i in range(20))
CSV = "".join(f"{i},{i + 1},{'xy'[i % 2]}\n" for i in range(20))


def make(path, **options):
    return Table(TableOptions(data=str(path), **options))


@pytest.fixture
def write(tmp_path):
    def put(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return put


PROBLEMS = {  # cases to train and to test with, channels, longest, classes
    "BasicMotions": (40, 40, 6, 100, 4),
    "JapaneseVowels": (270, 370, 12, 29, 9),
    "GunPoint": (50, 150, 1, 150, 2),
    "ItalyPowerDemand": (67, 1029, 1, 24, 2),
    "OSULeaf": (200, 242, 1, 427, 6),
    "ACSF1": (100, 100, 1, 1460, 10),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_real_archive(shared_data, name):
    train, test, channels, longest, classes = PROBLEMS[name]
    task = make(shared_data / "timeseries" / f"{name}_TRAIN.ts.gz")
    splits = task.datasets()
    assert len(splits.train) + len(splits.validation) == train
    assert len(splits.test) == test
    assert (task.d_input, task.sequence_length) == (channels, longest)
    assert task.d_output == len(task.class_names) == classes
    assert all(len(part.tensors[1].unique()) == classes for part in (splits.train, splits.test))
    x, _, *lengths = splits.train[:]
    assert x.shape[1:] == (longest, channels)
    if lengths:
        assert (lengths[0].min(), lengths[0].max()) == (7, 26)
        mask = torch.arange(longest) < lengths[0][:, None]
        assert (x[~mask] == 0).all()
        x = x[mask]
    torch.testing.assert_close(x.flatten(0, -2).mean(0), torch.zeros(channels), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.flatten(0, -2).std(0), torch.ones(channels), atol=1e-3, rtol=0)


def test_real_archive_of_one_part_is_split_in_proportion(shared_data):
    splits = make(shared_data / "timeseries" / "ECG5000_TRAIN.ts.gz").datasets()
    assert [len(part) for part in splits] == [350, 50, 100]
    counts = [torch.bincount(part.tensors[1], minlength=5).tolist() for part in splits]
    assert np.sum(counts, 0).tolist() == [292, 177, 10, 19, 2]
    assert counts[2][:4] == pytest.approx([58, 35, 2, 4], abs=1)


def test_real_values(shared_data):
    path = shared_data / "timeseries" / "BasicMotions_TRAIN.ts.gz"
    cases = gzip.decompress(path.read_bytes()).decode().split("@data\n")[1].splitlines()
    rows = {}
    for case in cases:
        *dimensions, label = case.split(":")
        values = np.array([d.split(",") for d in dimensions], np.float32).T
        rows[values.tobytes()] = label
    task = make(path, normalise=False)
    splits = task.datasets()
    for part in splits[:2]:
        for x, target in part:
            assert rows.pop(x.numpy().tobytes()) == task.class_names[target]
    assert not rows


def test_ts_columns_and_labels(write):
    task = make(write("x.ts", HEADER + CASES), normalise=False)
    assert (task.d_input, task.sequence_length, task.class_names) == (2, 3, ("a", "b"))
    x, target = task.datasets().train[:]
    assert torch.equal(x[:, 0, 0], x[:, 1, 1])
    assert torch.equal(x[:, 0, 0].long() % 2, target)
    assert torch.equal(x[0, :, 1], torch.tensor([4.0, x[0, 0, 0], 6.0]))


def test_csv_rows_of_different_lengths(write):
    text = "one,two,label\n" + "".join(f"{'7,' * (2 + 2 * (i % 3))}{i % 2}\n" for i in range(30))
    task = make(write("x.csv", text + "1,2,3,4,,,1\n"), channels=2, normalise=False)
    assert (task.d_input, task.sequence_length) == (2, 3)
    x, _, lengths = task.datasets().train[:]
    assert set(lengths.tolist()) == {1, 2, 3}
    assert torch.equal(x.sum((1, 2)) > 0, torch.ones(len(x), dtype=torch.bool))


def test_csv_label_in_front(write):
    text = "".join(f"c{i % 2},{i % 2},5\n" for i in range(20))
    x, target = make(write("x.csv", text), label="first", normalise=False).datasets().train[:]
    assert torch.equal(x[:, 0, 0].long(), target)


@pytest.mark.parametrize("letter", ["x", "X"])
@pytest.mark.parametrize("end", ["", "_train"])
def test_npz(tmp_path, end, letter):
    x = np.random.RandomState(0).randn(30, 5, 2)
    arrays = {f"{letter}{end}": x, f"y{end}": np.arange(30) % 3}
    arrays |= {f"lengths{end}": 1 + np.arange(30) % 5}
    if end:
        arrays |= {f"{letter}_test": x[:6, :4], "y_test": np.arange(6) % 3}
    np.savez(tmp_path / "x.npz", **arrays)
    task = make(tmp_path / "x.npz")
    splits = task.datasets()
    assert len(splits.test) == 6
    assert task.class_names == ("0", "1", "2")
    assert len(splits.train[0]) == 3
    assert splits.test[0][0].shape == (5, 2)


def test_test_file_of_its_own(write):
    path = write("a.csv", CSV)
    splits = make(path, test=str(write("b.csv", "1,2,y\n"))).datasets()
    assert [len(part) for part in splits] == [18, 2, 1]
    assert splits.test[0][1] == 1


def test_splits_are_fixed_and_apart(write):
    path = write("x.csv", CSV)
    first, again = make(path).datasets(), make(path).datasets()
    assert [len(part) for part in first] == [14, 2, 4]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a[:][0], b[:][0])
    assert len({x[0].item() for part in first for x, _ in part}) == 20


def test_regression(write):
    text = "".join(f"{i},{i + 1},{10 * i + 3}\n" for i in range(20))
    task = make(write("x.csv", text), kind="regression", channels=2)
    assert (task.metric, task.higher_is_better, task.d_output) == ("mse", False, 1)
    splits = task.datasets()
    x, target = splits.train[:]
    assert target.shape == (14, 1)
    torch.testing.assert_close(x[:, 0, :1], target)
    assert task.chance == pytest.approx(splits.test[:][1].square().mean().item())
    assert task.scores(target, target).tolist() == [0.0] * 14
    assert task.loss(target + 1, target).item() == pytest.approx(1)


def test_classes_that_are_numbers_are_ordered_by_size(write):
    text = "".join(f"1,2,{i % 12}\n" for i in range(120))
    assert make(write("x.csv", text)).class_names == tuple(map(str, range(12)))


def test_read_normalises_as_in_training(write):
    path = write("x.csv", CSV)
    task = make(path)
    rows = write("new.csv", "".join(line.rpartition(",")[0] + "\n" for line in CSV.splitlines()))
    x = task.read(rows)
    assert x.shape == (20, 2, 1)
    seen = {row.numpy().tobytes() for row in x}
    assert all(row.numpy().tobytes() in seen for part in task.datasets() for row, _ in part)


UNLABELLED = {
    "x.csv": "one,two\n1,2,3,4\n5,6\n",
    "x.ts": "@classLabel false\n@data\n1,3:2,4\n5:6\n",
    "y.ts": "@classLabel true a b\n@data\n1,3:2,4:?\n5:6:a\n",
}


@pytest.mark.parametrize("name", UNLABELLED)
def test_sequences_without_what_is_asked_are_read_with_their_lengths(write, name):
    task = make(write("train.csv", CSV), channels=2, normalise=False)
    x, lengths, *_ = task.read_given(write(name, UNLABELLED[name]))
    assert x.tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    assert lengths.tolist() == [2, 1]


def test_of_two_arrays_that_differ_in_the_letter_the_exact_name_counts(tmp_path):
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    np.savez(tmp_path / "x.npz", x=x, X=x[:5], y=y)
    assert sum(map(len, make(tmp_path / "x.npz").datasets())) == 20


@pytest.mark.parametrize("name", ["x", "X", "whatever"])
def test_an_archive_without_what_is_asked_may_be_longer_than_in_training(write, tmp_path, name):
    task = make(write("train.csv", CSV), normalise=False)
    x = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "x.npz", **{name: x})
    read, lengths, *_ = task.read_given(tmp_path / "x.npz")
    assert read[..., 0].tolist() == x.tolist()
    assert lengths is None


@pytest.mark.unchecked
def test_sequences_of_other_channels_are_refused(write, tmp_path):
    task = make(write("train.csv", CSV), channels=2)
    with pytest.raises(DataError, match=r"x\.ts: sequences must have 2 channels .* got 1"):
        task.read(write("x.ts", "@classLabel true a b\n@data\n1,3:a\n"))
    with pytest.raises(DataError, match=r"must hold steps of 2 numbers, got 3 numbers in line 1"):
        task.read(write("x.csv", "1,2,3\n"))
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(DataError, match="must hold x, and lengths if rows are padded, got a, b"):
        task.read(tmp_path / "x.npz")


def test_numbers_are_those_of_the_file(write):
    text = "".join(f"{i},{10 * i + 3}\n" for i in range(20))
    task = make(write("x.csv", text), kind="regression", normalise=False)
    x, target = task.datasets().test[:]
    torch.testing.assert_close(task.numbers(target).float(), 10 * x[:, 0] + 3)


def stamped(i, *, dates=False):
    """A case of two dimensions at uneven times, and what it holds."""
    at = np.cumsum(1 + np.arange(4) * (i % 3))
    x = np.array([[i + step, i - step] for step in range(4)])
    day = "2024-03-01 {:02}:00:00" if dates else "{}"
    parts = [
        ",".join(f"({day.format(a)},{v})" for a, v in zip(at, column, strict=True))
        for column in x.T
    ]
    return f"{':'.join(parts)}:{'ab'[i % 2]}\n", at, x


@pytest.mark.parametrize("dates", [False, True])
def test_stamps_of_ts_files_go_to_the_layers(write, dates):
    cases = [stamped(i, dates=dates) for i in range(20)]
    path = write("x.ts", STAMPED + "".join(text for text, _, _ in cases))
    task = make(path, normalise=False)
    assert (task.d_input, task.sequence_length, task.class_names) == (2, 4, ("a", "b"))
    for part in task.datasets():
        x, _, dt = part[:]
        for row, times in zip(x, dt, strict=True):
            (at,) = [at for _, at, whole in cases if np.array_equal(row.numpy(), whole)]
            unit = np.median([np.diff(a) for _, a, w in cases if in_train(task, w)])
            assert times[0] == 1
            np.testing.assert_allclose(times[1:].numpy(), np.diff(at) / unit, rtol=1e-6)
    column = make(path, times="column")
    assert column.d_input == 3
    assert column.datasets().train[:][0][:, 1:, 2].std() > 0


def in_train(task, whole):
    return any(np.array_equal(x.numpy(), whole) for x in task.datasets().train[:][0])


def test_dimensions_of_ts_files_may_have_stamps_of_their_own(write):
    case = "(0,1),(2,2),(5,3):(1,10),(5,30):{}\n"
    path = write("x.ts", STAMPED + "".join(case.format("ab"[i % 2]) for i in range(20)))
    task = make(path, normalise=False, missing="ffill")
    x, _, dt = task.datasets().train[:]
    assert x[0, :, 0].tolist() == [1, 1, 2, 3]
    assert x[0, 1:, 1].tolist() == [10, 10, 30]
    assert dt[0].tolist() == [1, 1, 1, 3]


@pytest.mark.unchecked
def test_stamps_are_in_all_files_or_in_none(write):
    cases = [stamped(i)[0] for i in range(20)]
    task = make(write("x.ts", STAMPED + "".join(cases)))
    with pytest.raises(DataError, match="steps must have time stamps, as in training, got none"):
        task.read_given(write("y.ts", HEADER + "1,2:3,4:a\n"))
    with pytest.raises(DataError, match=r"must have time stamps where --task\.times is column"):
        make(write("z.ts", HEADER + "1,2:3,4:a\n" * 20), times="column")
    with pytest.raises(DataError, match=r"y\.ts: steps must have time stamps, as in training"):
        make(task.options.data, test=str(write("y.ts", HEADER + "1,2:3,4:a\n")))
    rows = [np.zeros((3, 2), np.float32)]
    assert task.padded(rows).shape == (1, 4, 2)


def test_constant_channel_is_left_alone(write):
    text = "".join(f"7,{i},{i % 2}\n" for i in range(20))
    x, _ = make(write("x.csv", text), channels=2).datasets().train[:]
    assert torch.equal(x[..., 0], torch.zeros(14, 1))


BAD = {
    "truncated header": ("x.ts", "@problemName X\n", "a line '@data', got none. Is it truncated"),
    "no case": ("x.ts", HEADER, "at least one sequence, got none"),
    "no stamps": ("x.ts", STAMPED + "1,2:a\n", r"pairs \(time,value\) .* got '1,2' in line 6"),
    "half a pair": ("x.ts", STAMPED + "(1,2),(3:a\n", "in line 6. Is it truncated"),
    "pair of three": ("x.ts", STAMPED + "(1,2,3):a\n", r"pairs \(time,value\)"),
    "falling": ("x.ts", STAMPED + "(2,1),(1,1):a\n", "must rise, got '1' after '2' in line 6"),
    "twice": ("x.ts", STAMPED + "(1,1),(1,2):a\n", "must rise, got '1' after '1' in line 6"),
    "mixed stamps": (
        "x.ts",
        STAMPED + "(1,1):a\n(2024-03-01,2):a\n",
        "all numbers, or all dates .* got '1' in line 6",
    ),
    "other stamps": (
        "x.ts",
        STAMPED + "(1,1),(2,1):(1,2):a\n",
        "same time stamps, got 1 of 2 in dimension 2 in line 6",
    ),
    "no label": ("x.ts", HEADER.replace("true a b", "false"), "class or target labels, got none"),
    "unknown class": ("x.ts", HEADER + "1,2:c\n", "one of a, b, got 'c' in line 6"),
    "truncated case": ("x.ts", HEADER + "1,2:3,4:a\n1,2:3", "one of a, b, got '3' in line 7"),
    "ragged": ("x.ts", HEADER + "1,2:3:a\n", r"equally long, got \[2, 1\] in line 6"),
    "channels": ("x.ts", HEADER + "1,2:3,4:a\n1,2:a\n", "2 channels as the first, got 1 in sequ"),
    "missing": ("x.ts", HEADER + "1,?:a\n", r"must be numbers, got '\?' in line 6"),
    "nan": ("x.ts", HEADER + "1,NaN:a\n", "finite, got nan in sequence 1, step 2, channel 1"),
    "inf": ("x.csv", CSV + "1,inf,x\n", "finite, got inf in sequence 21, step 1, channel 2"),
    "width": (
        "x.csv",
        "1,2,3,x\n",
        "2 numbers, got 3 numbers and the label 'x' in line 1",
    ),
    "word": ("x.csv", CSV + "1,two,x\n", "must be numbers, got 'two' in line 21"),
    "no steps": ("x.csv", "1,2,x\n,,x\n", "must have a step, got none in sequence 2"),
    "empty": ("x.csv", "", "at least one sequence, got none"),
    "suffix": ("x.pkl", "", "must end in one of .ts, .npz, .csv"),
    "few": ("x.csv", "1,2,a\n" * 9, "must be at least 10 sequences, got 9"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize(("name", "text", "message"), BAD.values(), ids=BAD)
def test_damaged_text(write, name, text, message):
    with pytest.raises(DataError, match=message):
        make(write(name, text), channels=2 if name == "x.csv" else 1)


@pytest.mark.unchecked
def test_damaged_archives(tmp_path, write):
    with pytest.raises(DataError, match=r"none\.csv: the data file must exist"):
        make(tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"must be a complete .npz archive of numbers"):
        make(write("x.npz", "no archive"))
    (tmp_path / "x.ts.gz").write_bytes(gzip.compress((HEADER + CASES).encode())[:-20])
    with pytest.raises(DataError, match=r"x\.ts\.gz: the file must hold text, got: .*Get it anew"):
        make(tmp_path / "x.ts.gz")
    x, y = np.zeros((20, 3)), np.zeros(20)
    for arrays, message in (
        ({"a": x}, "must hold x and y, or x_train, .*got a"),
        ({"x": y, "y": y}, r"x must be real numbers .*got float64 \(20,\)"),
        ({"x": x, "y": y[1:]}, r"y must be numbers or words \(20,\), got float64 \(19,\)"),
        ({"x": x, "y": y, "lengths": y}, "lengths must be 20 integers of 1 to 3, got float64"),
        ({"x": x, "y": y, "lengths": y.astype(int)}, "lengths must be 20 integers of 1 to 3"),
        ({"x": x, "y": np.array([None] * 20)}, "must be a complete .npz archive"),
    ):
        np.savez(tmp_path / "y.npz", **arrays)
        with pytest.raises(DataError, match=message):
            make(tmp_path / "y.npz")


@pytest.mark.unchecked
def test_parts_that_do_not_fit(write):
    path = write("x.csv", CSV)
    with pytest.raises(DataError, match=r"b\.csv: classes must be among those.*got 'z'"):
        make(path, test=str(write("b.csv", "1,2,z\n")))
    with pytest.raises(DataError, match=r"c\.ts: sequences must have 1 channels as in .*got 2"):
        make(path, test=str(write("c.ts", HEADER + CASES)))
    with pytest.raises(
        DataError, match=r"must be a finite number, got 'x'. For classes .*classification"
    ):
        make(path, kind="regression")


@pytest.mark.unchecked
def test_bad_options():
    with pytest.raises(DataError, match=r"table: the data must be a file, got none\. Pass --data"):
        Table().datasets()
    with pytest.raises(UnknownNameError, match="no Table kind named 'classify'"):
        make("x.csv", kind="classify")
    with pytest.raises(ArgumentError, match="Table: channels must be an integer of at least 1"):
        make("x.csv", channels=0)


NUMBERS = [[0.5, -1.0, 2.5], [1.5, 0.25, -3.0]] * 6
WORDS = ["x", "y"] * 6


def as_pandas(head, rows):
    return "".join(",".join(map(str, row)) + "\n" for row in [head, *rows])


COUNTED = [[i, *row] for i, row in enumerate(NUMBERS)]
#: what pandas writes, and how the label stands in it
HEADS = {
    "numbers and a name": (["0", "1", "2", "kind"], "last"),
    "from 1": (["1", "2", "3", "kind"], "last"),
    "numbers alone": (["0", "1", "2", "3"], "last"),
    "the name first": (["kind", "0", "1", "2"], "first"),
    "with a count": (["", "0", "1", "2", "kind"], "last"),
    "with a named count": (["id", "0", "1", "2", "kind"], "last"),
    "with a count, saved again": (["Unnamed: 0", "0", "1", "2", "kind"], "last"),
    "names with a count": (["", "a", "b", "c", "kind"], "last"),
    "names with a count, saved again": (["Unnamed: 0", "a", "b", "c", "kind"], "last"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("missing", ["error", "mask"])
@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("head", HEADS)
def test_what_pandas_writes_above_and_beside_rows_is_no_data(write, head, separator, missing):
    names, label = HEADS[head]
    rows = COUNTED if names[0] in ("", "id", "Unnamed: 0") else NUMBERS
    whole = [
        [*row, word] if label == "last" else [word, *row]
        for row, word in zip(rows, WORDS, strict=True)
    ]
    name = "x.tsv" if separator == "\t" and "a" not in names else "x.csv"
    text = as_pandas(names, whole).replace(",", separator)
    with pytest.raises(DataError, match=rf"{name}: .*(header=False|index=False)"):
        make(write(name, text), label=label, missing=missing)
    asked = as_pandas(names[:-1] if label == "last" else names[1:], rows)
    task = make(
        write("ok.csv", as_pandas("abcd", [[*r, w] for r, w in zip(NUMBERS, WORDS, strict=True)]))
    )
    if "id" not in names and len(NUMBERS[0]) < len(rows[0]):
        with pytest.raises(DataError, match=r"(header=False|index=False)"):
            task.read(write("new.csv", asked))
    parquet = "Unnamed: 0" in names
    if parquet:
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        path = write("x.csv", as_pandas(names, whole)).with_suffix(".parquet")
        pandas.DataFrame(whole, columns=names).to_parquet(path)
        with pytest.raises(DataError, match="index=False"):
            make(path)


def test_a_first_row_that_counts_is_data_where_its_label_says_so(write):
    rows = [[0, 1, 2, "x"], *([i, i, 5, "xy"[i % 2]] for i in range(11))]
    task = make(write("x.csv", as_pandas(rows[0], rows[1:])), normalise=False)
    assert sum(len(part) for part in task.datasets()) == 12
    named = make(write("y.csv", as_pandas(["a", "b", "c", "d"], rows)), normalise=False)
    assert sum(len(part) for part in named.datasets()) == 12
    assert task.read(write("new.csv", "1,2,3\n4,5,6\n")).shape == (2, 3, 1)
    gaps = make(task.options.data, missing="mask")
    for text in ("0,\n1,2\n", ",0\n1,2\n,3\n", "0,1,\n,,3\n"):
        assert len(gaps.read(write("new.csv", text))) == text.count("\n")


@pytest.mark.unchecked
def test_a_row_of_column_numbers_is_no_sequence_to_answer_for(write):
    task = make(write("x.csv", CSV))
    with pytest.raises(DataError, match=r"got '0,1,2,3' in line 1, which looks like the numbers"):
        task.read(write("new.csv", "0,1,2,3\n5,6,7,8\n2,3,4,5\n"))


FIRST = {"last": "0.5,-1,2.5,{}", "first": "{},0.5,-1,2.5"}


@pytest.mark.unchecked
@pytest.mark.parametrize("labels", ["12", "xy"])
@pytest.mark.parametrize("label", ["last", "first"])
def test_what_is_asked_is_no_step(write, label, labels):
    """It is found by its name, or is an error."""
    lines = [FIRST[label].format(labels[i % 2]) for i in range(12)]
    head = FIRST[label].format("kind").replace("0.5", "a").replace("-1", "b").replace("2.5", "c")
    text = "\n".join([head, *lines])
    task = make(write("x.csv", text), label=label)
    bare = "0.5,-1,2.5\n" * 12
    expected = task.read(write("bare.csv", bare))
    assert torch.equal(task.read(write("same.csv", text)), expected)
    assert torch.equal(task.read(write("headed.csv", "a,b,c\n" + bare)), expected)
    assert torch.equal(task.read(write("lacks.csv", head + "\n" + bare)), expected)
    moved = "a,kind,b,c\n" + "0.5,7,-1,2.5\n" * 12
    assert torch.equal(task.read(write("moved.csv", moved)), expected)
    empty = text.replace(f",{labels[0]}\n", ",\n") if label == "last" else text
    assert torch.equal(task.read(write("empty.csv", empty)), expected)
    says = "4 in each. Cut off the target" if labels == "12" else "only numbers, got 'x' in line"
    for name, other in (("none.csv", "\n".join(lines)), ("other.csv", text.replace("kind", "z"))):
        with pytest.raises(DataError, match=rf"{name}: a row to predict .*{says}"):
            task.read(write(name, other))
    tabs = "\n".join(lines).replace(",", "\t")
    with pytest.raises(DataError, match=rf"x\.tsv: a row to predict .*{says}"):
        task.read(write("x.tsv", tabs))
    longer = write("longer.csv", "a,b,c,d,e\n" + "1,2,3,4,5\n" * 2)
    assert task.read(longer).shape == (2, 5, 1)


def test_what_is_asked_is_no_step_of_parquet_or_weka(write, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pytest.importorskip("scipy")
    table = pandas.DataFrame(NUMBERS, columns=list("abc")).assign(kind=[1, 2] * 6)
    table.to_parquet(tmp_path / "x.parquet")
    task = make(tmp_path / "x.parquet")
    expected = task.read(write("bare.csv", as_pandas("abc", NUMBERS)))
    assert torch.equal(task.read(tmp_path / "x.parquet"), expected)
    head = "@relation x\n" + "".join(f"@attribute {n} numeric\n" for n in "abc")
    head += "@attribute kind {x,y}\n@data\n"
    rows = as_pandas([], [[*r, w] for r, w in zip(NUMBERS, WORDS, strict=True)]).strip()
    weka = make(write("x.arff", head + rows + "\n"))
    assert torch.equal(weka.read(write("new.arff", head + rows + "\n")), expected)


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_words_in_arrays_must_be_text(tmp_path, kind):
    x = np.random.RandomState(0).randn(12, 3)

    def read(y, x=x):
        if kind == "npz":
            np.savez(tmp_path / "x.npz", x=x, y=y)
            return make(tmp_path / "x.npz")
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", y)
        return make(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))

    objects, many = np.array(WORDS, dtype=object), np.array(WORDS, dtype="S")
    for wrong in (objects, many):
        with pytest.raises(DataError, match=r"text.*astype\(str\)") as error:
            read(wrong)
        assert "savez" not in str(error.value)
        assert read(wrong.astype(str)).class_names == ("x", "y")
    with pytest.raises(DataError, match=r"astype\(float\)"):
        read(many.astype(str), x.astype(object))
