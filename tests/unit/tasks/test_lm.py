import gzip
import math
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._reading import corpus as _corpus
from linrnn.tasks._reading.corpus import pieces, read_corpus
from linrnn.tasks.lm import LM, LMOptions
from linrnn.tokenizers import ByteTokenizer

TEXT = "".join(f"line {i} of a text, é\n" + "\n" * (i % 5 == 4) for i in range(200))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Tokens go here."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def make(*files, **options):
    return LM(LMOptions(data=tuple(map(str, files)), **({"length": 16} | options)))


def test_splits_of_tiny_shakespeare_are_the_usual_ones(shared_data):
    task = make(shared_data / "tinyshakespeare" / "input.txt", tokenizer="char", length=256)
    train, validation, test = task.datasets()
    assert len(task.corpus.tokens) == 1_115_394
    assert task.d_input == task.d_output == 65
    assert (len(train.tokens), len(validation.tokens)) == (1_003_854, 111_540)
    assert test is validation
    x = train[0][0]
    assert task.tokenizer.decode(x[:14].numpy()) == "First Citizen:"
    assert task.bytes_per_token == 1


def test_a_window_goes_on_where_the_one_before_ended(file):
    task = make(file)
    train, validation, test = make(file, test=0.2).datasets()
    x, target = train[[0, 1, 2]]
    assert x.shape == target.shape == (3, 16)
    data = TEXT.encode()
    assert bytes(x.flatten().tolist()) == data[:48]
    assert bytes(target.flatten().tolist()) == data[1:49]
    begins = [int(len(data) * part) for part in (0.7, 0.8)]
    for part, begin in zip((validation, test), begins, strict=True):
        assert bytes(part[0][0].tolist()) == data[begin : begin + 16]
    assert task.contiguous
    assert len(train) == (int(len(data) * 0.7) - 1) // 16


def test_a_stride_lets_training_windows_overlap(file):
    task = make(file, stride=4)
    train, validation, _ = task.datasets()
    assert bytes(train[3][0].tolist()) == TEXT.encode()[12:28]
    assert len(train) == (len(train.tokens) - 17) // 4 + 1
    assert torch.equal(validation[1][0], make(file).datasets().validation[1][0])
    assert not task.contiguous


def test_at_length_reads_the_same_text_in_longer_windows(file):
    task = make(file, stride=4, tokenizer="char")
    other = task.at_length(64)
    assert other.sequence_length == 64
    assert other.tokenizer is task.tokenizer
    x = other.datasets().validation[0][0]
    assert torch.equal(x[:16], task.datasets().validation[0][0])


def test_bits_per_byte_are_of_the_text_whatever_a_token_is(file):
    y = torch.zeros(2, 16, 5)
    for kind, expected in (("byte", 1.0), ("char", len(TEXT.encode()) / len(TEXT))):
        task = make(file, tokenizer=kind)
        target = torch.zeros(2, 16, dtype=torch.long)
        bits = task.scores(y, target)
        assert bits.shape == (2,)
        assert bits[0].item() == pytest.approx(math.log2(5) / task.bytes_per_token)
        assert task.bytes_per_token == pytest.approx(expected, rel=0.01)
        assert task.loss(y, target).item() == pytest.approx(math.log(5))
    bpe = make(file, tokenizer="bpe", vocabulary_size=300)
    assert bpe.bytes_per_token > 2
    assert bpe.characters_per_token < bpe.bytes_per_token


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_documents_are_marked_where_they_begin(file, tmp_path, kind):
    second = tmp_path / "second.txt"
    second.write_text("The second file.\n" * 9)
    task = make(second, file, second, tokenizer=kind, vocabulary_size=300)
    assert len(task.corpus.starts) == 3
    lines = make(second, file, tokenizer=kind, vocabulary_size=300, documents="blank-lines")
    starts = lines.corpus.starts
    assert len(starts) == 1 + 40
    ends = [*starts[1:], len(lines.corpus.tokens)]
    texts = [
        lines.tokenizer.decode(lines.corpus.tokens[a:b]) for a, b in zip(starts, ends, strict=True)
    ]
    assert "".join(texts) == second.read_text() + TEXT
    assert all(text.endswith("\n\n") and "\n\n" not in text[:-2] for text in texts[1:])
    x, _, reset = lines.datasets().train[range(20)]
    places = np.flatnonzero(reset.flatten().numpy()).tolist()
    assert places == [s for s in starts.tolist() if 0 < s < x.numel()]
    one = make(second, file, tokenizer=kind, vocabulary_size=300, documents="one")
    assert one.corpus.starts.tolist() == [0]
    assert len(one.datasets().train[0]) == 2


@pytest.mark.parametrize("documents", ["files", "blank-lines", "one"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_pieces_are_the_file_and_end_between_characters(file, monkeypatch, documents, chunk):
    monkeypatch.setattr(_corpus, "_CHUNK", chunk)
    found = list(pieces(file, documents))
    assert b"".join(p.text for p in found).decode() == TEXT
    assert [p.offset for p in found] == np.cumsum([0, *(len(p.text) for p in found)])[:-1].tolist()
    for piece in found:
        assert piece.text.decode()
    begins = [p.offset for p in found if p.begins]
    expected = {"one": [], "files": [0]}.get(documents)
    if expected is None:
        ends = [i + 2 for i in range(len(TEXT.encode())) if TEXT.encode()[i : i + 2] == b"\n\n"]
        expected = [0, *ends[:-1]]
    assert begins == expected


def test_tokens_are_made_once_and_mapped(file, cache, monkeypatch):
    corpus = make(file).corpus
    assert isinstance(corpus.tokens, np.memmap)
    before = {path.name: path.stat().st_mtime_ns for path in cache.glob("[!.]*")}
    assert len(before) == 3
    monkeypatch.setattr(ByteTokenizer, "encode", None)  # not called again
    again = make(file).corpus
    assert np.array_equal(again.tokens, corpus.tokens)
    assert {path.name: path.stat().st_mtime_ns for path in cache.glob("[!.]*")} == before


@pytest.mark.parametrize("suffix", [".bin", ".starts", ".json"])
@pytest.mark.parametrize("cut", [0, 1, -1])
def test_a_truncated_token_file_is_made_anew(file, cache, suffix, cut):
    expected = np.array(make(file).corpus.tokens)
    (path,) = cache.glob(f"*{suffix}")
    path.write_bytes(path.read_bytes()[:cut])
    assert np.array_equal(make(file).corpus.tokens, expected)


def test_other_text_has_other_tokens(file, cache):
    first = np.array(make(file).corpus.tokens)
    file.write_text(TEXT.replace("text", "tale"))
    second = make(file).corpus
    assert bytes(second.tokens) == file.read_bytes()
    assert len(first) == len(second.tokens)


def test_packed_files_are_unpacked(file, tmp_path):
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert bytes(make(packed).corpus.tokens) == TEXT.encode()


def test_a_failed_encoding_leaves_nothing(file, cache):
    class Failing(ByteTokenizer):
        def encode(self, text, *, where="", offset=0):
            raise DataError("no")

    with pytest.raises(DataError, match="no"):
        read_corpus([file], Failing(), "files")
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_what_a_killed_encoding_left_is_removed(file, cache):
    expected = np.array(make(file).corpus.tokens)
    for path in list(cache.glob("[!.]*")):
        path.rename(path.with_name(f".{path.name}.0a1b2c3d"))  # under its name until it was whole
    assert np.array_equal(make(file).corpus.tokens, expected)
    assert list(cache.glob(".*.0a1b2c3d")) == []


def test_tokens_that_another_process_makes_are_waited_for(file, cache, monkeypatch):
    expected = np.array(make(file).corpus.tokens)
    whole = [(path, path.read_bytes()) for path in cache.glob("[!.]*")]
    for path, _ in whole:
        path.unlink()

    @contextmanager
    def waits(path, *, wait):
        for name, content in whole:
            name.write_bytes(content)
        yield

    monkeypatch.setattr(_corpus, "exclusive", waits)
    monkeypatch.setattr(_corpus, "_make", None)  # not called
    assert np.array_equal(make(file).corpus.tokens, expected)


def test_a_run_keeps_tokenizer_and_checksum(file, tmp_path):
    task = make(file, tokenizer="char")
    for name, text in task.run_files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    again = LM.of_run(task.options, tmp_path)
    assert again.d_input == task.d_input
    assert torch.equal(again.datasets().train[0][0], task.datasets().train[0][0])
    file.write_text(TEXT + "more")
    other = LM.of_run(task.options, tmp_path)
    assert other.d_input == task.d_input
    for asked in (other, other.at_length(32)):
        with pytest.raises(DataError, match="must be the one the run was trained on"):
            asked.datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "must hold text, got an empty file"),
        (b"short", {}, "the train part must hold a window of 16 tokens and one more, got 4 of the"),
        (b"x" * 100, {}, "the validation part must hold a window of 16 tokens"),
        (b"x" * 99 + b"\xff", {"tokenizer": "char"}, r"text.txt: .*byte 0xff at byte 99"),
        (b"x" * 99 + b"\xff", {"tokenizer": "bpe"}, r"text.txt: .*byte 0xff at byte 99"),
    ],
)
def test_text_that_cannot_be_used(file, content, options, message):
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        make(file, **options).datasets()


@pytest.mark.unchecked
def test_files_that_cannot_be_used(file, tmp_path, cache):
    with pytest.raises(DataError, match="must exist, got no such file"):
        make(tmp_path / "none").datasets()
    with pytest.raises(DataError, match="must exist, got a folder"):
        make(tmp_path).datasets()
    (tmp_path / "a.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="must be readable, got: Not a gzipped file"):
        make(tmp_path / "a.gz").datasets()
    task = make(file, tokenizer="char")
    file.write_text(TEXT + "Z" * 99)
    with pytest.raises(DataError, match=rf"text.txt: .*got 'Z' .* at byte {len(TEXT.encode())}"):
        LM(task.options, task.tokenizer).datasets()
    shutil.rmtree(cache)
    cache.write_text("no folder")
    with pytest.raises(DataError, match="must be one tokens can be written to"):
        make(file).datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "LM: length must be an integer of at least 1"),
        ({"stride": -1}, "LM: stride must be an integer of at least 0, got -1"),
        ({"validation": 0.0}, r"validation must be a part of the tokens in \(0, 1\), got 0.0"),
        ({"test": 1.0}, r"test must be a part of the tokens"),
        ({"validation": 0.5, "test": 0.5}, "must leave a part for training, got 0.5 and 0.5"),
        ({"documents": "lines"}, "no LM documents named 'lines'"),
        ({"tokenizer": "words"}, "no tokenizer, nor a file of one, named 'words'"),
        ({"tokenizer": "bpe", "vocabulary_size": 10}, "must be at least 257"),
    ],
)
def test_wrong_options(file, options, message):
    with pytest.raises((ArgumentError, UnknownNameError), match=message):
        make(file, **options)


@pytest.mark.unchecked
def test_without_files_it_is_tiny_shakespeare(cache, monkeypatch):
    def no_network(*args):
        raise DataError("fetch: no network.")

    monkeypatch.setattr("linrnn.tasks.lm.fetch", no_network)
    message = r"got none, and tiny Shakespeare is not at .*no network\. Say --data FILE, or put"
    with pytest.raises(DataError, match=message):
        LM().datasets()
    with pytest.raises(DataError, match=r"it is not there yet\. Say --data FILE"):
        LM().example()
    path = cache.parent / "tinyshakespeare" / "input.txt"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    assert bytes(LM(LMOptions(length=16)).corpus.tokens) == TEXT.encode()


def test_example(file):
    assert make(file).example().startswith("input 'line 0 of a text, é\\nline 1")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path, python):
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        for _ in range(70):
            file.write(b"a line of a large text, which is the same again and again\n" * 10_000)
    assert path.stat().st_size > 32 << 20
    code = f"""
import resource
from linrnn.tasks.lm import LM, LMOptions
small = LM(LMOptions(data=({str(path)!r},)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
train = small.datasets().train
x = train[[0, len(train) - 1]]
result = [len(train), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]
"""
    windows, grown = python(code)
    assert windows > 100_000
    assert grown < 16_000  # kilobytes
