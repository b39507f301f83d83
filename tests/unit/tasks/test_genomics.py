import gzip
import math

import numpy as np
import pytest
import torch
from made_data import write_genome

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._reading.fasta import LETTERS, read_bed, read_fasta
from linrnn.tasks.genomics import Genomics, GenomicsOptions


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "none"))


def make(path, **options):
    return Genomics(GenomicsOptions(data=str(path), **{"length": 8} | options))


def spelled(ids):
    return "".join(LETTERS[i] for i in ids)


def test_sequences_are_read_by_their_names(tmp_path):
    text = ">one first\nACGT\nnnac\n\n>two\r\nRYgU\r\n"
    (tmp_path / "a.fa").write_text(text)
    (tmp_path / "a.fa.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.fa", "a.fa.gz"):
        found = read_fasta(tmp_path / name)
        assert {k: spelled(v) for k, v in found.items()} == {"one": "ACGTNNAC", "two": "NNGN"}
        assert all(v.dtype == np.uint8 for v in found.values())


def test_without_intervals_parts_go_by_position(tmp_path):
    sequences = write_genome(tmp_path / "g.fa")
    task = make(tmp_path / "g.fa")
    for part, begin, end in (("train", 0, 18), ("validation", 18, 19), ("test", 19, 20)):
        pieces = [s[len(s) * begin // 20 : len(s) * end // 20] for s in sequences.values()]
        corpus = task.parts[part]
        assert spelled(corpus.tokens) == "".join(pieces)
        assert corpus.starts.tolist() == np.cumsum([0, *map(len, pieces[:-1])]).tolist()
    assert task.tokenizer.decode(task.held_out) == spelled(task.held_out)
    assert (task.d_input, task.d_output, task.chance) == (5, 5, 2.0)


def test_intervals_say_what_each_part_is(tmp_path):
    sequences = write_genome(tmp_path / "g.fa")
    first, second = sequences
    lines = [f"{first}\t0\t30\ttrain", f"{second}\t5\t15\tvalid", f"{second} 40 50 train"]
    lines += ["# comment", f"{first}\t60\t75\ttest\tmore"]
    (tmp_path / "i.bed").write_text("\n".join(lines))
    task = make(tmp_path / "g.fa", intervals=str(tmp_path / "i.bed"))
    train = sequences[first][:30] + sequences[second][40:50]
    assert spelled(task.parts["train"].tokens) == train
    assert spelled(task.parts["validation"].tokens) == sequences[second][5:15]
    assert spelled(task.parts["test"].tokens) == sequences[first][60:75]
    x, target, reset = task.datasets().train[range(4)]
    assert spelled(x.flatten()) == train[:32]
    assert spelled(target.flatten()) == train[1:33]
    assert torch.nonzero(reset.flatten()).flatten().tolist() == [30]


def test_chains_find_what_was_planted(tmp_path):
    rng = np.random.RandomState(0)
    word = "ACGTTGCATC"
    text = "".join(word if rng.rand() < 0.5 else "ACGT"[rng.randint(4)] for _ in range(8000))
    (tmp_path / "g.fa").write_text(f">a\n{text}\n")
    bits = list(make(tmp_path / "g.fa").baselines().values())
    assert bits[0] > bits[1] > bits[2]
    assert bits[0] == pytest.approx(2, abs=0.05)
    assert bits[2] < 1
    task = make(tmp_path / "g.fa")
    y = torch.zeros(1, 8, 5)
    assert task.scores(y, torch.zeros(1, 8, dtype=torch.long)).item() == pytest.approx(math.log2(5))


def test_a_run_refuses_another_genome(tmp_path):
    write_genome(tmp_path / "g.fa")
    task = make(tmp_path / "g.fa")
    (tmp_path / "run").mkdir()
    for name, content in task.run_files().items():
        (tmp_path / "run" / name).write_text(content)
    again = Genomics.of_run(task.options, tmp_path / "run")
    assert torch.equal(again.datasets().test[0][0], task.datasets().test[0][0])
    (tmp_path / "g.fa").write_text(">x\n" + "ACGT" * 200)
    with pytest.raises(DataError, match="must be the one the run was trained on"):
        Genomics.of_run(task.options, tmp_path / "run").datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold sequences of bases, got none"),
        ("ACGT\n", r"must be FASTA and begin with a line '>name', got b'ACGT' in line 1"),
        (">\nAC\n", "must have another name, got '' in line 1"),
        (">a\nAC\n>a\nAC\n", "must have another name, got 'a' in line 3"),
        (">a\n>b\nAC\n", "must hold sequences of bases, got none of 'a'"),
        (">a\nAC\nAXT\n", "or another code of a nucleotide, got 'X' in line 3"),
        (">a\nACGT\n", "the train part of .* must hold a window of 8 tokens and one more, got 3"),
    ],
)
def test_files_that_are_no_genome(tmp_path, text, message):
    (tmp_path / "g.fa").write_text(text)
    with pytest.raises(DataError, match=message):
        make(tmp_path / "g.fa").datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "must hold intervals, got none"),
        ("z\t0\t3\ttrain", "got 'z 0 3 train' in line 1, with no such sequence"),
        ("a\t0\t9\ttrain", "got 'a 0 9 train' in line 1, with 8 bases"),
        ("a\t3\t3\ttrain", "one of train, valid, validation, test, got 'a 3 3 train' in line 1"),
        ("a\t-1\t3\ttrain", "begin and end in the sequence"),
        ("a\t0\t3\tother", "got 'a 0 3 other' in line 1"),
        ("a\t0", "got 'a 0' in line 1"),
    ],
)
def test_lines_that_are_no_intervals(tmp_path, line, message):
    (tmp_path / "i.bed").write_text(f"{line}\n")
    with pytest.raises(DataError, match=message):
        read_bed(tmp_path / "i.bed", {"a": np.zeros(8, np.uint8)})


@pytest.mark.unchecked
def test_a_genome_that_is_not_there(tmp_path):
    with pytest.raises(
        DataError, match=r"must hold a FASTA file of the name hg38\.fa, .* got no s"
    ):
        make(tmp_path / "none").datasets()
    (tmp_path / "g.fa.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="must be readable, got: Not a gzipped file"):
        make(tmp_path / "g.fa.gz").datasets()
    with pytest.raises(ArgumentError, match="Genomics: length must be an integer of at least 1"):
        make(tmp_path, length=0)
