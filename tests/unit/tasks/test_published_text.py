"""Texts with a published split: Penn Treebank, WikiText, enwik8 and text8, PG-19."""

import gzip
import math
import shutil

import numpy as np
import pytest
import torch
from made_data import options, write_published_texts

from linrnn import tasks
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks.enwik8 import Enwik8, Enwik8Options
from linrnn.tasks.pg19 import PG19, PG19Options
from linrnn.tasks.ptb import PTB, PTBOptions
from linrnn.tasks.wikitext import WikiText, WikiTextOptions

NAMES = ("ptb", "wikitext", "enwik8", "pg19")
each_text = pytest.mark.parametrize("name", NAMES)
SMALL = {"train_size": 900, "validation_size": 50, "test_size": 50}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """The folder of all data, which is also where tokens go."""
    write_published_texts(tmp_path / "data")
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def make(name, root, **more):
    cls = tasks.load(name)
    return cls(cls.Options(**(options(name, root) | {"length": 20} | more)))


def read(path):
    return path.read_text(encoding="utf-8")


def test_penn_treebank_by_words_is_the_published_one(shared_data):
    task = PTB(PTBOptions(data=str(shared_data / "ptb")))
    sizes = [len(corpus.tokens) for corpus in task.parts.values()]
    assert sizes == [929_589, 73_760, 82_430]
    assert task.d_input == task.tokenizer.vocabulary_size == 10_000
    assert task.tokenizer.decode(task.held_out) == read(shared_data / "ptb" / "ptb.test.txt")
    assert task.chance == pytest.approx(math.log2(10_000))
    perplexities = {name: 2**bits for name, bits in task.baselines().items()}
    assert perplexities["unigram counts"] == pytest.approx(639.8, abs=0.1)
    assert perplexities["bigram counts"] == pytest.approx(199.8, abs=0.1)


def test_penn_treebank_by_characters_is_the_published_one(shared_data):
    task = PTB(PTBOptions(data=str(shared_data / "ptb"), level="char"))
    sizes = [len(corpus.tokens) for corpus in task.parts.values()]
    assert sizes == [5_017_482, 393_042, 442_423]
    assert task.d_input == 50
    lines = read(shared_data / "ptb" / "ptb.test.txt").splitlines()
    assert task.tokenizer.decode(task.held_out) == "".join(f"{line.strip()}\n" for line in lines)
    baselines = task.baselines()
    assert baselines["unigram counts"] == pytest.approx(4.346, abs=1e-3)
    assert baselines["bigram counts"] == pytest.approx(3.365, abs=1e-3)


def test_parts_of_wikitext_2_are_the_published_ones(shared_data, tmp_path):
    """The training part is not there: the others stand for it, and give the vocabulary."""
    folder = tmp_path / "w"
    folder.mkdir()
    texts = {}
    for part in ("valid", "test"):
        packed = shared_data / "wikitext2" / f"{part}.txt.gz"
        texts[part] = gzip.decompress(packed.read_bytes())
        shutil.copy(packed, folder)
    (folder / "train.txt").write_bytes(texts["valid"] + texts["test"])
    task = WikiText(WikiTextOptions(data=str(folder), check_counts=False))
    _, validation, test = (len(corpus.tokens) for corpus in task.parts.values())
    assert (validation, test) == (217_646, 245_569)
    assert task.tokenizer.decode(task.held_out).split() == texts["test"].decode().split()
    with pytest.raises(
        DataError, match=r"must be 2,088,628 train tokens in .* as published, got 463,215"
    ):
        WikiText(WikiTextOptions(data=str(folder))).datasets()


def test_bytes_of_wikipedia_go_by_position(shared_data):
    path = shared_data / "enwik" / "enwik5"
    sizes = {"train_size": 80_000, "validation_size": 9_000, "test_size": 9_000}
    task = Enwik8(Enwik8Options(data=str(path), **sizes))
    content = path.read_bytes()
    parts = [bytes(corpus.tokens) for corpus in task.parts.values()]
    assert parts == [content[:80_000], content[80_000:89_000], content[89_000:98_000]]
    bits = task.baselines()
    assert 8 > bits["unigram counts"] > bits["bigram counts"] > bits["trigram counts"] > 2


@each_text
def test_windows_follow_one_another_and_the_state_may_be_carried(name, root):
    task = make(name, root)
    assert task.contiguous
    for part, windows in zip(task.parts.values(), task.datasets(), strict=True):
        x, target, *_ = windows[range(len(windows))]
        tokens = torch.from_numpy(np.array(part.tokens, np.int64))
        n = len(windows) * 20
        assert n > len(tokens) - 21
        assert torch.equal(x.flatten(), tokens[:n])
        assert torch.equal(target.flatten(), tokens[1 : n + 1])


@each_text
def test_metric_of_equal_chances_is_the_chance(name, root):
    task = make(name, root)
    task.datasets()
    y = torch.zeros(2, 20, task.d_output)
    target = torch.zeros(2, 20, dtype=torch.long)
    assert task.scores(y, target).tolist() == pytest.approx([task.chance] * 2)
    assert task.loss(y, target).item() == pytest.approx(math.log(task.d_output))


@each_text
def test_baselines_are_better_than_chance_and_shown(name, root, capsys):
    from linrnn.cli import main

    values = make(name, root).baselines()
    assert set(values) >= {"unigram counts", "bigram counts"}
    assert all(0 < value < make(name, root).chance for value in values.values())
    assert main(["show", "ptb"]) == 0
    assert "Nothing is downloaded" not in capsys.readouterr().out


@each_text
def test_a_run_keeps_its_vocabulary_and_refuses_other_text(name, root, tmp_path):
    task = make(name, root)
    first = task.datasets().train[0][0]
    (tmp_path / "run").mkdir()
    for file, text in task.run_files().items():
        (tmp_path / "run" / file).write_text(text, encoding="utf-8")
    again = type(task).of_run(task.options, tmp_path / "run")
    assert again.d_input == task.d_input
    assert torch.equal(again.datasets().train[0][0], first)
    for path in root.rglob("*"):
        if path.is_file() and "tokens" not in path.parts:
            path.write_text(read(path).replace("the", "of").replace("one", "two") + " of \n")
            if name == "enwik8":
                path.write_text("x" + read(path))
    other = type(task).of_run(task.options, tmp_path / "run")
    assert other.d_input == task.d_input
    for changed in (other, other.at_length(10)):
        with pytest.raises(DataError, match="must be the one the run was trained on, SHA-256"):
            changed.datasets()


@each_text
def test_at_length_reads_the_same_text_in_other_windows(name, root):
    task = make(name, root)
    x = task.datasets().test[0][0]
    other = task.at_length(10)
    assert other.sequence_length == 10
    assert torch.equal(other.datasets().test[0][0], x[:10])


def test_vocabulary_is_that_of_the_training_part_by_frequency(root):
    (root / "ptb" / "ptb.train.txt").write_text(" b a b \n a b c <unk> \n")
    (root / "ptb" / "ptb.test.txt").write_text(" a z \n")
    task = make("ptb", root, length=1)
    assert task.tokenizer.decode(range(5)) == " b a <unk> c \n"
    assert task.held_out.tolist() == [1, 2, 4]
    (root / "ptb" / "ptb.train.txt").write_text(" b a b \n")
    message = r"ptb\.valid\.txt: text must hold words of the vocabulary only, .* got 'stock'"
    with pytest.raises(DataError, match=message):
        make("ptb", root, length=1).datasets()


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_packed_files_are_read(root, suffix):
    import lzma

    expected = make("ptb", root).parts["test"].tokens.tolist()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    for path in list((root / "ptb").iterdir()):
        path.with_name(path.name + suffix).write_bytes(pack(path.read_bytes()))
        path.unlink()
    assert make("ptb", root).parts["test"].tokens.tolist() == expected


def test_text8_is_of_27_letters(root):
    task = Enwik8(Enwik8Options(set="text8", length=20, **SMALL | {"train_size": 600}))
    assert task.d_input == 27
    assert task.chance == pytest.approx(math.log2(27))
    assert task.tokenizer.decode(task.parts["train"].tokens[:8]) == " one two"
    (root / "text8" / "text8").write_text("one two 3" * 100)
    with pytest.raises(DataError, match="text8: text must hold characters of the vocabulary only"):
        task.at_length(10)._whole  # noqa: B018


def test_words_of_pg19_are_counted_whatever_the_tokens_are(root):
    words = sum(len(read(path).split()) for path in (root / "pg19" / "test").iterdir())
    for kind in ("byte", "char"):
        task = make("pg19", root, tokenizer=kind)
        assert task.unit * len(task.held_out) == pytest.approx(words)
        assert len(task.parts["test"].starts) == 2
        assert task.datasets().test[0][2].dtype == torch.bool


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("ptb", r"ptb\.train\.txt, ptb\.valid\.txt and ptb\.test\.txt"),
        ("wikitext", r"wiki\.train\.tokens, wiki\.valid\.tokens and wiki\.test\.tokens"),
        ("enwik8", r"a file enwik8, unpacked from enwik8\.zip"),
        ("pg19", r"the folders train, validation and test with a file <id>\.txt"),
    ],
)
def test_another_layout_is_named_with_what_is_there(name, layout, tmp_path, root):
    place = tmp_path / "place"
    for files, seen in ((None, "no such folder"), ([], "an empty folder"), (["b", "a"], "a, b")):
        if files is not None:
            place.mkdir(exist_ok=True)
            for file in files:
                (place / file).write_text("x")
        with pytest.raises(DataError, match=rf"must hold {layout}.*, got {seen}\. Nothing is down"):
            make(name, root, data=str(place)).datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ptb", "ptb: there must be 929,589 train tokens in .* as published, got"),
        ("wikitext", "wikitext2: there must be 2,088,628 train tokens in .* as published, got"),
        ("pg19", "pg19: there must be 28,602 books in train in .* as published, got 3"),
    ],
)
def test_other_sizes_than_the_published_are_refused(name, message, root):
    with pytest.raises(DataError, match=message):
        make(name, root, check_counts=True).datasets()


@pytest.mark.unchecked
def test_wrong_options_and_files(root):
    with pytest.raises(UnknownNameError, match="no PTB level named 'words'"):
        PTB(PTBOptions(level="words"))
    with pytest.raises(UnknownNameError, match="no WikiText set named 'wikitext-2'"):
        WikiText(WikiTextOptions(set="wikitext-2"))
    with pytest.raises(ArgumentError, match="Enwik8: test_size must be an integer of at least 1"):
        Enwik8(Enwik8Options(test_size=0))
    with pytest.raises(ArgumentError, match="PG19: length must be an integer of at least 1, got 0"):
        PG19(PG19Options(length=0))
    with pytest.raises(
        DataError, match=r"enwik8: the file of .* must hold 100,000,000 tokens, got 1,3"
    ):
        Enwik8().datasets()
    with pytest.raises(
        DataError, match=r"the validation part of .* must hold a window of 500 tokens"
    ):
        make("wikitext", root, length=500).datasets()
    (root / "ptb" / "ptb.train.txt").write_bytes(b"abc \xff\n")
    with pytest.raises(DataError, match=r"ptb\.train\.txt: .*UTF-8, got the byte 0xff at byte 4"):
        make("ptb", root).datasets()
    (root / "ptb" / "ptb.train.txt").write_bytes(b" \n")
    with pytest.raises(DataError, match=r"ptb\.train\.txt: the file must hold words, got none"):
        make("ptb", root).datasets()
