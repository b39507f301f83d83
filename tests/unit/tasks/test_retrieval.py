"""Retrieval: pairs of documents in files of the released layout."""

import pytest
import torch
from made_data import write_pairs

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._reading.pairs import Pairs, decode
from linrnn.tasks.retrieval import Retrieval, RetrievalOptions


def make(folder, **options):
    return Retrieval(RetrievalOptions(**({"data": str(folder), "length": 40} | options)))


@pytest.fixture
def folder(tmp_path):
    write_pairs(tmp_path)
    return tmp_path


def test_texts_and_labels(folder):
    splits = make(folder, length=100).datasets()
    assert [len(part) for part in splits] == [6, 6, 6]
    for name, part in zip(("train", "eval", "test"), splits, strict=True):
        x, target, lengths = part[range(6)]
        assert x.shape == (6, 2, 100)
        assert x.dtype == target.dtype == lengths.dtype == torch.int64
        assert target.tolist() == [0, 1] * 3
        for i in range(6):
            first, second = (decode(row) for row in x[i])
            assert first == f"{name} paper {i} " + "abc " * (i % 3) + "~" * 30
            assert second == (first if i % 2 else f"{name} other {i} ??")
            for row, end in zip(x[i], lengths[i].tolist(), strict=True):
                assert row[end - 1] == 2
                assert not row[end:].any()
                assert (row[: end - 1] != 2).all()


def test_ids_are_the_published_number_of_symbols(tmp_path):
    everything = "".join(map(chr, range(32, 127)))
    (tmp_path / "x.tsv").write_text(f"1\ta\tb\t{everything}\té\n")
    x, _, lengths = Pairs(tmp_path / "x.tsv", 200)[0]
    assert x[0, :95].tolist() == list(range(3, 98))
    assert x[1, :3].tolist() == [1, 1, 2]  # two bytes that are not ASCII
    assert lengths.tolist() == [96, 3]
    assert make(tmp_path).d_input == 98


def test_long_documents_are_cut(folder):
    x, _, lengths = make(folder, length=8).datasets().test[range(6)]
    assert (lengths == 8).all()
    assert (x[..., 7] == 2).all()
    assert decode(x[0, 0]) == "test pa"
    assert make(folder).at_length(16).datasets().test[0][0].shape == (2, 16)


def test_any_rows_in_any_order(folder):
    data = make(folder).datasets().train
    whole = data[range(6)]
    some = data[[5, 0, 3]]
    for a, b in zip(some, whole, strict=True):
        assert torch.equal(a, b[[5, 0, 3]])
    assert torch.equal(data[4][0], whole[0][4])
    with pytest.raises(IndexError):
        data[6]


@pytest.mark.parametrize("ending", ["\n", "", "\r\n"])
def test_the_last_line_may_end_in_any_way(tmp_path, ending):
    text = "0\ta\tb\tone\ttwo\n1.0\ta\tb\tthree\tfour" + ending
    (tmp_path / "x.tsv").write_bytes(text.encode())
    pairs = Pairs(tmp_path / "x.tsv", 20)
    assert len(pairs) == 2
    x, target, _ = pairs[1]
    assert [decode(row) for row in x] == ["three", "four"]
    assert target == 1


@pytest.mark.parametrize("below", ["tsv_data", "lra_release/lra_release/tsv_data"])
def test_folder_of_the_release(tmp_path, below):
    write_pairs(tmp_path / below)
    assert len(make(tmp_path).datasets().train) == 6


def test_example(folder):
    assert make(folder).example().splitlines() == [
        "input test paper 0 " + "~" * 26 + " ...",
        "input test other 0 ?? ...",
        "target apart",
    ]


def test_read_padded(tmp_path, folder):
    (tmp_path / "x.tsv").write_text("one paper\tanother\nthird\tfourth\n")
    x, lengths, *_ = make(folder).read_given(tmp_path / "x.tsv")
    assert x.shape == (2, 2, 40)
    assert lengths.tolist() == [[10, 8], [6, 7]]
    assert decode(x[1, 1]) == "fourth"
    (tmp_path / "x.tsv").write_text("one paper\tanother\nthird\n")
    with pytest.raises(DataError, match="line 2 must hold two texts with a tab"):
        make(folder).read(tmp_path / "x.tsv")


@pytest.mark.unchecked
def test_files_that_are_missing_or_damaged(tmp_path, folder):
    with pytest.raises(DataError, match=r"new_aan_pairs\.train\.tsv must exist.*lra_release\.gz"):
        make(tmp_path / "none").datasets()
    path = folder / "new_aan_pairs.train.tsv"
    for line, message in (
        (
            "2\ta\tb\tx\ty",
            "line 1 must have a label of 0 or 1, .* got 5 fields that begin with '2'",
        ),
        ("1\ta\tb\tx", "got 4 fields"),
        ("<html>", "got 1 fields that begin with '<html>'"),
    ):
        path.write_text(line)
        with pytest.raises(DataError, match=message):
            make(folder).datasets().train[0]
    path.write_text("")
    with pytest.raises(DataError, match="must hold lines of text, got: cannot mmap an empty file"):
        make(folder).datasets()
    with pytest.raises(ArgumentError, match="length must be an integer of at least 1, got 0"):
        make(folder, length=0)
