"""Every reader of files returns what it should, or refuses in one line that names the file."""

import json
from dataclasses import dataclass
from typing import Any

import formats
import fuzzing
import numpy as np
import pytest
import torch
from formats import packed, packed_xz, safetensors_files, texts_of
from fuzzing import BUDGETS, refused_or, share
from hypothesis import strategies as st
from mutations import json_files, spoilt, texts, trees

from linrnn import state as states
from linrnn import tokenizers
from linrnn.errors import LinrnnError
from linrnn.mixers import LRU
from linrnn.streaming import Session, fingerprint
from linrnn.tasks import listops, pg19
from linrnn.tasks._kinds import images
from linrnn.tasks._kinds.pathfinder import read_image, released
from linrnn.tasks._kinds.windows import read_history
from linrnn.tasks._reading.audio import read_wav
from linrnn.tasks._reading.corpus import read_corpus
from linrnn.tasks._reading.fasta import read_bed, read_fasta
from linrnn.tasks._reading.files import read_packed, read_tar
from linrnn.tasks._reading.known import read_kept
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.table import read_ids, read_table
from linrnn.tasks.forecast import Forecast
from linrnn.tasks.imdb import IMDb
from linrnn.tasks.lm import LM
from linrnn.tasks.ptb import PTB
from linrnn.tasks.retrieval import Retrieval
from linrnn.tasks.scifar import read_binary, read_npz
from linrnn.tasks.spoken_digits import SpokenDigits
from linrnn.tasks.table import Table
from linrnn.tokenizers import ByteTokenizer, Tokenizer
from linrnn.train import Config
from linrnn.train._report import EpochReport, Result
from linrnn.train.checkpoint import load_tensors, load_tree
from linrnn.train.config import to_json
from linrnn.train.folder import RunFolder, _seal
from linrnn.train.metrics import read_metrics

pytestmark = pytest.mark.unchecked


@dataclass(frozen=True)
class Parser:
    """A reader, the file it is given, and what it may return."""

    file: str
    content: Any
    read: Any
    returns: Any
    cases: int = 8


def use_tokenizer(path):
    """Read one and use it: a text it returned for must be encoded and decoded, or refused."""
    made = tokenizers.load(path)
    for text in ("ab é", b"\xff", ""):
        try:
            ids = made.encode(text)
            assert ids.dtype == made.dtype
            assert isinstance(made.decode(ids), str)
        except LinrnnError:
            pass
    decoded = made.decode(list(range(min(made.vocabulary_size, 300))))
    assert isinstance(decoded, str)
    json.dumps(made.to_json())
    return made


def whole_table(path, **options):
    """All that the task does with a file before training."""
    task = Table(Table.Options(data=str(path), **options))
    for part in task.datasets():
        for i in range(min(len(part), 2)):
            assert all(isinstance(x, torch.Tensor) for x in part[i])
    return task


def spoken(path):
    task = SpokenDigits(SpokenDigits.Options(data=str(path), length=20))
    return task.datasets()


def reviews(path):
    task = IMDb(IMDb.Options(data=str(path), length=20, validation_size=1))
    return task.datasets()


def treebank(path):
    """All three parts of a word-level text are the file."""
    for part in ("valid", "test"):
        (path.parent / f"ptb.{part}.txt").write_bytes(path.read_bytes())
    task = PTB(PTB.Options(data=str(path.parent), length=2, check_counts=False))
    return task.datasets()


def pairs(path):
    (path.parent / "new_aan_pairs.test.tsv").write_bytes(path.read_bytes())
    task = Retrieval(Retrieval.Options(data=str(path.parent), length=8))
    found = task._pairs("test")
    return found.batch(range(min(len(found), 4)))


def retrieval_input(path):
    return Retrieval(Retrieval.Options(length=8)).read_given(path)


def expression(path):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return 0
    try:
        return listops.evaluate(text)
    except LinrnnError as error:
        raise type(error)(f"{path}: {error}") from error


def image_list(path):
    """A list of images and, beside it, the images it may name."""
    level = path.parent / "pathfinder8" / "curv_contour_length_14"
    for i in range(2):
        image = level / "imgs" / "0" / f"sample_{i}.png"
        if not image.is_file():
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(b"x")
    (level / "metadata").mkdir(exist_ok=True)
    (level / "metadata" / path.name).write_bytes(path.read_bytes())
    found, labels = released(path.parent, 8)
    assert all(level in image.resolve().parents for image in found)
    return labels


def text_of_run(path):
    (path.parent / "tokenizer.json").write_text(ByteTokenizer().to_json())
    return LM.of_run(None, path.parent)


def kept_of_run(path, cls):
    """A task of a user's data, by what its run folder keeps of them."""
    return cls.of_run(cls.Options(data="gone.csv"), path.parent).run_files()


SCALE = {"mean": [0.5], "std": [2.0], "chance": 0.5, "stamps": "dates", "unit": 60.0, "even": True}
SERIES_KEPT = SCALE | {"names": ["a"], "sha256": "0" * 64}
TABLE_KEPT = SCALE | {
    "columns": ["a"],
    "label": "",
    "width": 0,
    "longest": 3,
    "classes": ["x", "y"],
    "asked": [0.0, 1.0],
    "sha256": "0" * 64,
}
torch.manual_seed(0)
MODEL = LRU(2, d_state=2)
FRESH = MODEL.init_state(1)
STREAM_HEADER = {
    "format": 1,
    "linrnn": "0.1.0",
    "model": fingerprint(MODEL),
    "steps": 3,
    "pending": [],
}


def session(path):
    made = Session(MODEL.eval())
    made.load(path)
    return made


def plain(values):
    return json.loads(json.dumps(values))


def sealed_config(tree):
    if isinstance(tree, dict) and "config" in tree:
        return tree | {"sha256": _seal(tree["config"])}
    return tree


def sealed_result(tree):
    if isinstance(tree, dict):
        rest = {name: value for name, value in tree.items() if name != "sha256"}
        return rest | {"sha256": _seal(rest)}
    return tree


CONFIGS = [
    {
        "format": 1,
        "linrnn": "0.1.0",
        "files": {"a.json": "0" * 64},
        "config": plain(to_json(Config(task=name))),
    }
    for name in ("digits", "adding", "table")
]
RESULT = {f: 1 for f in Result.__dataclass_fields__ if f != "folder"}


def run_of(path):
    return RunFolder(path.parent)


PARSERS = {
    "csv as rows": Parser(
        "x.csv", texts(*formats.CSV), lambda p: read_table(p, 3), torch.Tensor, 20
    ),
    "txt as rows": Parser("x.txt", texts(*formats.CSV), lambda p: read_table(p, 3), torch.Tensor),
    "csv as ids": Parser("x.csv", texts(*formats.CSV), lambda p: read_ids(p, 3, 9), torch.Tensor),
    "csv as pixels": Parser(
        "x.csv", texts(*formats.CSV), lambda p: images.read_pixels(p, (3, 1)), torch.Tensor
    ),
    "npy as rows": Parser("x.npy", formats.npy(), lambda p: read_table(p, 3), torch.Tensor, 20),
    "npz as rows": Parser("x.npz", formats.npz(), lambda p: read_table(p, 3), torch.Tensor),
    "csv as series": Parser(
        "x.csv", texts(*formats.CSV), lambda p: read_series(p, Layout(1, False)), dict, 20
    ),
    "csv of two channels": Parser(
        "x.csv", texts(*formats.CSV), lambda p: read_series(p, Layout(2, True)), dict
    ),
    "csv without labels": Parser(
        "x.csv", texts(*formats.CSV), lambda p: read_series(p, Layout(1, False, False)), dict
    ),
    "npz as series": Parser(
        "x.npz", formats.npz(), lambda p: read_series(p, Layout(1, False)), dict, 20
    ),
    "npz without labels": Parser(
        "x.npz", formats.npz(), lambda p: read_series(p, Layout(1, False, False)), dict
    ),
    "ts": Parser("x.ts", texts(*formats.TS), lambda p: read_series(p, Layout(1, False)), dict, 20),
    "ts.gz": Parser(
        "x.ts.gz",
        packed(texts(*formats.TS)),
        lambda p: read_series(p, Layout(1, False, False)),
        dict,
    ),
    "csv.xz": Parser(
        "x.csv.xz", packed_xz(texts(*formats.CSV)), lambda p: read_series(p, Layout(1, False)), dict
    ),
    "table of csv": Parser("x.csv", texts(*formats.CSV), whole_table, Table, 16),
    "table of csv, regression": Parser(
        "x.csv", texts(*formats.CSV), lambda p: whole_table(p, kind="regression"), Table
    ),
    "table of npz": Parser("x.npz", formats.npz(), whole_table, Table),
    "table of ts": Parser("x.ts", texts(*formats.TS), whole_table, Table),
    "history": Parser("x.csv", texts(*formats.HISTORY), read_history, tuple),
    "ListOps": Parser("x.tsv", texts(*formats.LISTOPS, separators=r"\s"), expression, int),
    "pairs of the release": Parser(
        "x.tsv", texts(*formats.PAIRS, separators=r"\t\n"), pairs, tuple
    ),
    "FASTA": Parser("x.fa", texts(">a b\nACGT\nnn\n>c\nGR\n"), read_fasta, dict),
    "BED": Parser(
        "x.bed",
        texts("a\t0\t3\ttrain\na\t3\t9\tvalid\n"),
        lambda p: read_bed(p, {"a": np.zeros(9, np.uint8)}),
        list,
    ),
    "words of a text": Parser(
        "ptb.train.txt", texts(" a b <unk> \n c a \n", separators=r"\s"), treebank, tuple
    ),
    "pairs of a user": Parser(
        "x.tsv", texts("a\tb\nc\td\n", separators=r"\t\n"), retrieval_input, tuple
    ),
    "tokenizer": Parser(
        "tokenizer.json", json_files(*formats.tokenizer_samples()), use_tokenizer, Tokenizer, 30
    ),
    "text.json": Parser(
        "text.json", json_files({"sha256": "0" * 64, "tokens": 3}), text_of_run, LM
    ),
    "series.json": Parser(
        "series.json", json_files(SERIES_KEPT), lambda p: kept_of_run(p, Forecast), dict
    ),
    "table.json": Parser(
        "table.json", json_files(TABLE_KEPT), lambda p: kept_of_run(p, Table), dict
    ),
    "words.json": Parser(
        "words.json",
        json_files({"words": 3, "tokens": 9}),
        lambda p: read_kept(p.parent, pg19.KEPT, pg19.Counts, "the books"),
        pg19.Counts,
    ),
    "config.json": Parser(
        "config.json",
        json_files(*CONFIGS, seal=sealed_config),
        lambda p: run_of(p).load_config(),
        Config,
        30,
    ),
    "files of config.json": Parser(
        "config.json",
        json_files(*CONFIGS, seal=sealed_config),
        lambda p: run_of(p).check_kept(),
        type(None),
    ),
    "result.json": Parser(
        "result.json",
        json_files(RESULT, seal=sealed_result),
        lambda p: run_of(p).read_result(),
        Result,
    ),
    "metrics.csv": Parser(
        "metrics.csv",
        texts(",".join(EpochReport.__dataclass_fields__) + "\n" + "1," * 20 + "\n"),
        lambda p: read_metrics(run_of(p)),
        list,
    ),
    "checkpoint": Parser(
        "x.safetensors",
        safetensors_files(texts_of("tree", trees(*formats.CHECKPOINTS)), formats.TENSORS[2]),
        load_tree,
        object,
        20,
    ),
    "weights": Parser("x.safetensors", safetensors_files(st.just({})), load_tensors, tuple),
    "state": Parser(
        "x.safetensors",
        safetensors_files(texts_of("state", trees(*formats.STATE_HEADERS))),
        lambda p: states.load(p, {"h": torch.zeros(1, 2)}),
        dict,
        20,
    ),
    "header of a state": Parser(
        "x.safetensors",
        safetensors_files(texts_of("state", trees(*formats.STATE_HEADERS))),
        states.read_header,
        dict,
    ),
    "session": Parser(
        "x.safetensors",
        safetensors_files(texts_of("state", trees(STREAM_HEADER)), states.flatten(FRESH)),
        session,
        Session,
        20,
    ),
    "wav": Parser(
        "x.wav", formats.wav(), lambda p: read_wav(str(p), p.read_bytes(), 8000), np.ndarray, 16
    ),
    "tar": Parser(
        "x.tar",
        formats.tar(formats.FILES),
        lambda p: list(read_tar(p, lambda n: True, "an archive")),
        list,
        16,
    ),
    "tar.gz": Parser(
        "x.tar.gz",
        packed(formats.tar(formats.FILES)),
        lambda p: list(read_tar(p, lambda n: True, "an archive")),
        list,
    ),
    "tar.xz": Parser(
        "x.tar.xz",
        packed_xz(formats.tar(formats.FILES)),
        lambda p: list(read_tar(p, lambda n: True, "an archive")),
        list,
    ),
    "archive of clips": Parser("x.tar", formats.tar(formats.CLIPS), spoken, tuple),
    "archive of reviews": Parser("x.tar", formats.tar(formats.REVIEWS), reviews, tuple),
    "archive of photographs": Parser(
        "x.tar",
        formats.tar(
            st.tuples(
                st.sampled_from([f"cifar-10-batches-bin/{n}" for n in ("test_batch.bin",)]),
                st.sampled_from([bytes(3073), b"\xff" * 3073, bytes(12)]),
            )
        ),
        lambda p: read_binary(p, "test"),
        tuple,
    ),
    "npz of photographs": Parser(
        "x.npz", formats.npz_of_images((32, 32, 3)), lambda p: read_npz(p, "train"), tuple
    ),
    "gz": Parser("x.gz", packed(spoilt(b"abc" * 50)), lambda p: read_packed(p, "bytes"), bytes),
    "xz": Parser("x.xz", packed_xz(spoilt(b"abc" * 50)), lambda p: read_packed(p, "bytes"), bytes),
    "images of MNIST": Parser("x", formats.idx(3), lambda p: images.read_idx(p, 3), np.ndarray),
    "labels of MNIST, packed": Parser(
        "x.gz", packed(formats.idx(1)), lambda p: images.read_idx(p, 1), np.ndarray
    ),
    "image": Parser("x.png", formats.png(8), lambda p: read_image(p, 8), np.ndarray),
    "list of images": Parser(
        "0.npy", st.one_of(texts(*formats.LISTS), formats.npy()), image_list, torch.Tensor
    ),
}
for name, parser in PARSERS.items():
    share(name, parser.cases)


@BUDGETS
@pytest.mark.parametrize("name", PARSERS)
def test_reader_returns_or_refuses(name, times, tmp_path):
    parser = PARSERS[name]
    path = tmp_path / parser.file

    def check(content):
        path.write_bytes(content)
        # the task of a run folder names the folder where a file is missing in it
        refused_or(parser.returns, lambda: parser.read(path), naming=str(tmp_path))

    fuzzing.run(name, times, parser.content, check)


@BUDGETS
@pytest.mark.parametrize("name", [share("kept tokens", 12)])
def test_kept_tokens_are_read_or_made_again(name, times, tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    text = tmp_path / "a.txt"
    text.write_text("to be\n\nor not to be")

    def read():
        found = read_corpus([text], ByteTokenizer(), "blank-lines")
        return found.tokens.tolist(), found.starts.tolist()

    expected = read()
    kept = {p.suffix: p for p in (tmp_path / "data" / "tokens").glob("[!.]*")}
    assert sorted(kept) == [".bin", ".json", ".starts"]
    samples = {suffix: path.read_bytes() for suffix, path in kept.items()}
    changed = st.sampled_from(sorted(kept)).flatmap(
        lambda suffix: st.tuples(st.just(suffix), spoilt(samples[suffix]))
    )

    def check(case):
        suffix, content = case
        kept[suffix].write_bytes(content)
        assert refused_or(tuple, read) == expected
        for other, path in kept.items():
            path.write_bytes(samples[other])

    fuzzing.run(name, times, changed, check)
