"""Data, states and tokenizers: whoever names a file may name a link; what a folder names may not.

Nothing but regular files is read, and no more of them than their kind ever has.
"""

import io
import lzma
import os
import tarfile
import threading
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from odd_paths import KINDS, OTHERS, replace_by, snapshot, untouched

from linrnn import SequenceModel, state, tasks, tokenizers
from linrnn.errors import DataError, LinrnnError
from linrnn.streaming import Session
from linrnn.tasks._kinds.pathfinder import read_image, released
from linrnn.tasks._kinds.windows import read_history
from linrnn.tasks._reading import files, numpy
from linrnn.tasks._reading.corpus import read_corpus
from linrnn.tasks._reading.files import fetch, read_packed, read_tar
from linrnn.tasks._reading.kept import KeptImages
from linrnn.tasks._reading.numpy import open_numpy
from linrnn.tasks._reading.pairs import Pairs
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.table import read_table
from linrnn.tasks.scifar import read_binary, read_npz
from linrnn.tokenizers import ByteTokenizer

pytestmark = pytest.mark.unchecked


def saved(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def array():
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3)))
    return file.getvalue()


def safetensors():
    import safetensors.torch

    return safetensors.torch.save({"0": torch.zeros(1, 2)}, {"state": '{"format": 1}'})


def session(path):
    Session(SequenceModel(1, 2, d_model=4, n_layers=1).eval()).load(path)


def corpus(path):
    return read_corpus([path], ByteTokenizer(), "files")


def wav(path):
    return tasks.load("spoken_digits")().read_given(path)


def reviews(path):
    return tasks.load("imdb")().read_given(path)


def pairs(path):
    return tasks.load("retrieval")().read_given(path)


def table(path):
    return tasks.load("table")(tasks.load("table").Options(data=str(path)))


def onnx(path):
    from linrnn.interop.onnx import metadata

    return metadata(path)


CSV = b"1,2,3\n4,5,6\n"
# what whoever calls names: the file's name, what it may hold, its reader
GIVEN = {
    "rows": ("x.csv", CSV, lambda p: read_table(p, 3)),
    "text rows": ("x.txt", CSV, lambda p: read_table(p, 3)),
    "array": ("x.npy", array(), lambda p: read_table(p, 3)),
    "archive of arrays": ("x.npz", saved(x=np.zeros((2, 3))), lambda p: read_table(p, 3)),
    "series": ("x.csv", CSV, lambda p: read_series(p, Layout(1, False))),
    "packed series": ("x.csv.gz", b"", lambda p: read_series(p, Layout(1, False))),
    "ts": ("x.ts", b"@classlabel true a\n@data\n1,2:a\n", lambda p: read_series(p, Layout(1, 0))),
    "labelled arrays": (
        "x.npz",
        saved(x=np.zeros((2, 3)), y=np.zeros(2)),
        lambda p: read_series(p, Layout(1, False)),
    ),
    "table": ("x.csv", b"".join(b"%d,%d,a\n" % (i, i) for i in range(20)), table),
    "history": ("x.csv", b"a,b\n1,2\n3,4\n", read_history),
    "images": (
        "x.npz",
        saved(x_train=np.zeros((1, 32, 32, 3), "u1"), y_train=np.zeros(1, "u1")),
        lambda p: read_npz(p, "train"),
    ),
    "archive": ("x.tar.gz", b"", lambda p: list(read_tar(p, bool, "an archive"))),
    "archive of images": ("x.tar.xz", b"", lambda p: read_binary(p, "train")),
    "packed": ("x.xz", b"", lambda p: read_packed(p, "bytes")),
    "clip": ("x.wav", b"", wav),
    "reviews": ("x.txt", b"good\nbad\n", reviews),
    "pairs": ("x.tsv", b"a\tb\n", pairs),
    "text": ("x.txt", b"to be or not to be", corpus),
    "state": ("x.safetensors", safetensors(), state.read_header),
    "state of a model": ("x.safetensors", b"", session),
    "tokenizer": ("x.json", ByteTokenizer().to_json().encode(), tokenizers.load),
    "tokenizer named": ("x.json", b"", lambda p: tokenizers.make(str(p), ())),
    "graph": ("x.onnx", b"", onnx),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("kind", [*OTHERS, "link to itself", "link to a device", "missing"])
@pytest.mark.parametrize("reader", GIVEN)
def test_reader_refuses_what_is_no_file(tmp_path, monkeypatch, reader, kind):
    name, content, read = GIVEN[reader]
    path = tmp_path / "given" / name
    path.parent.mkdir()
    path.write_bytes(content)
    if reader == "tokenizer named" and kind == "folder":
        pytest.skip("a folder may be named")
    if reader == "graph":
        pytest.importorskip("onnx")
    replace_by(kind, path, tmp_path / "elsewhere", monkeypatch)
    with untouched(tmp_path / "elsewhere"), pytest.raises(LinrnnError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", [name for name, (_, content, _) in GIVEN.items() if content])
def test_file_given_by_a_link_is_read(tmp_path, reader):
    name, content, read = GIVEN[reader]
    (tmp_path / "whole").write_bytes(content)
    (tmp_path / name).symlink_to("whole")
    read(tmp_path / name)


@pytest.mark.parametrize(
    "reader", [n for n in GIVEN if n not in ("text", "archive of images", "archive")]
)
def test_file_of_terabytes_is_not_read(tmp_path, reader):
    name, _, read = GIVEN[reader]
    if reader == "graph":
        pytest.importorskip("onnx")
    path = tmp_path / name
    with open(path, "wb") as file:
        file.truncate(8 << 40)  # a hole
    (tmp_path / "elsewhere").mkdir()
    with untouched(tmp_path / "elsewhere"), pytest.raises(LinrnnError, match=str(path)):
        read(path)


def options(task, **values):
    cls = tasks.load(task)
    return cls(cls.Options(**values))


def image_list(folder):
    return released(folder, 32)


LEVEL = "pathfinder32/curv_contour_length_14"
# what a folder names: the file in it, and who reads it when only the folder is named
NAMED = {
    "smnist": "train-images-idx3-ubyte.gz",
    "scifar": "cifar-10-binary.tar.gz",
    "imdb": "aclImdb_v1.tar.gz",
    "speech_commands": "speech_commands_v0.02.tar.gz",
    "spoken_digits": "x.tar.gz",
    "sound": "x.wav",
    "ett": "ETTh1.csv",
    "retrieval": "tsv_data/new_aan_pairs.train.tsv",
    "ptb": "ptb.train.txt",
    "wikitext": "wiki.train.tokens",
    "enwik8": "enwik8",
    "pg19": "train/1.txt",
    "genomics": "hg38.fa",
    "ltsf": "weather.csv",
    "uea": "EigenWorms_TRAIN.ts",
    "bidmc": "BIDMC32HR_TRAIN.ts",
    "skeletons": "S001C001P001R001A001.skeleton",
    "translation": "train.de",
    "speech_frames": "TRAIN/DR1/FCJF0/SI648.PHN",
    "sepsis": "p000001.psv",
    "har": "train/Inertial Signals/body_acc_x_train.txt",
}
OTHER_NAMES = {
    "sound": "x.tar.xz",
    "scifar": "x.npz",
    "speech_commands": "speech_commands_x.tar.xz",
    "ett": "ETTh1.csv.gz",
}


def sources(task):
    """A task whose data lies in a folder, as a function of that."""
    return lambda folder: options(task, data=str(folder)).datasets()


def beside(folder):
    (folder / "X_TRAIN.ts").write_text(
        "@classlabel true a\n@data\n" + "".join(f"{i},2:a\n" for i in range(20))
    )
    return options("table", data=str(folder / "X_TRAIN.ts"))


FOLDERS = [
    *((task, file, sources(task)) for task, file in (*NAMED.items(), *OTHER_NAMES.items())),
    ("table", "X_TEST.ts", beside),
    ("tokenizer", "tokenizer.json", lambda folder: tokenizers.make(str(folder), ())),
    ("pathfinder", f"{LEVEL}/metadata/0.npy", image_list),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("task", "file", "read"), FOLDERS, ids=[f"{t}-{f}" for t, f, _ in FOLDERS])
def test_folder_names_regular_files_alone(tmp_path, monkeypatch, task, file, read, kind):
    folder = tmp_path / "folder"
    replace_by(kind, folder / file, tmp_path / "elsewhere", monkeypatch)
    with untouched(tmp_path / "elsewhere"), pytest.raises(DataError) as caught:
        read(folder)
    text = str(caught.value)
    assert Path(file).name in text
    assert "\n" not in text
    if "link" in kind:
        assert "a symbolic link, which is not followed" in text


@pytest.mark.parametrize("below", ["pathfinder32", LEVEL, f"{LEVEL}/metadata", f"{LEVEL}/imgs/0"])
def test_images_in_a_linked_folder(tmp_path, below):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    level = folder / LEVEL
    (level / "metadata").mkdir(parents=True)
    (level / "imgs" / "0").mkdir(parents=True)
    (level / "imgs" / "0" / "a.png").write_bytes(b"x")
    (level / "metadata" / "0.npy").write_text("imgs/0 a.png 0 1\n" * 20)
    assert len(released(folder, 32)[0]) == 20
    (folder / below).rename(elsewhere)
    (folder / below).symlink_to(elsewhere)
    with untouched(elsewhere), pytest.raises(DataError, match="a symbolic link"):
        released(folder, 32)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unreadable"])
def test_image_that_is_no_file(tmp_path, monkeypatch, kind):
    level = tmp_path / "folder" / LEVEL
    (level / "metadata").mkdir(parents=True)
    (level / "metadata" / "0.npy").write_text("imgs/0 a.png 0 1\n" * 20)
    path = level / "imgs" / "0" / "a.png"
    replace_by(kind, path, tmp_path / "elsewhere", monkeypatch)
    with untouched(tmp_path / "elsewhere"):
        with pytest.raises(DataError, match=r"a\.png must be a file in its folder, got"):
            released(tmp_path / "folder", 32)
        with pytest.raises(DataError, match=r"a\.png: the file must hold an image, got"):
            read_image(path, 32)


def test_data_in_a_linked_folder_is_refused_and_a_folder_given_by_a_link_is_not(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "ETTh1.csv").write_text("t,OT\n" + "0,1\n" * 20000)
    (tmp_path / "given").symlink_to("place")
    assert options("ett", data=str(tmp_path / "given"), columns="OT").datasets()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ett").symlink_to(tmp_path / "place")
    assert options("ett", columns="OT").datasets()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [".bin", ".starts", ".json"])
def test_kept_tokens_that_are_no_file_are_made_again(tmp_path, monkeypatch, ending, kind):
    path = tmp_path / "a.txt"
    path.write_text("to be or not to be")
    expected = corpus(path).tokens.tolist()
    (kept,) = (tmp_path / "data" / "tokens").glob(f"*{ending}")
    replace_by(kind, kept, tmp_path / "elsewhere", monkeypatch)
    with untouched(tmp_path / "elsewhere"):
        if kind in ("folder", "unreadable"):
            if kind == "folder":
                with pytest.raises(DataError, match="tokens can be written to"):
                    corpus(path)
            return
        assert corpus(path).tokens.tolist() == expected
    assert kept.is_file()
    assert not kept.is_symlink()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unreadable"])
def test_kept_images_are_written_nowhere_else(tmp_path, monkeypatch, warnings_logged, kind):
    path, elsewhere = tmp_path / "kept" / "x.images", tmp_path / "elsewhere"
    replace_by(kind, path, elsewhere, monkeypatch)
    with untouched(elsewhere):
        images = KeptImages(
            4,
            3,
            lambda numbers: (np.ones((len(numbers), 3), "u1"), np.zeros(len(numbers), "u1")),
            lambda x: x,
            path,
        )
        assert images.batch([0, 3])[0].tolist() == [[1, 1, 1]] * 2
    assert any("images are kept in memory alone" in text for text in warnings_logged)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unreadable"])
@pytest.mark.parametrize("ending", [".part", ".part.lock"])
def test_download_is_written_nowhere_else(tmp_path, monkeypatch, server, ending, kind):
    path = tmp_path / "data" / "x"
    replace_by(kind, path.with_name(f"x{ending}"), tmp_path / "elsewhere", monkeypatch)
    with (
        untouched(tmp_path / "elsewhere"),
        pytest.raises(DataError, match=rf"fetch: {path} must be writable, got"),
    ):
        fetch(server, f"sha256:{'0' * 64}", path)


@pytest.fixture
def server():
    import http.server

    class Gives(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"not what was asked for")

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gives) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/x"
        made.shutdown()


def test_archive_of_arrays_is_limited_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(numpy, "BOMB_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "abc":
            file = io.BytesIO()
            np.save(file, np.zeros(1 << 16))  # half of what is allowed
            archive.writestr(f"{name}.npy", file.getvalue())
    with pytest.raises(DataError, match="that would unpack to 1,573,248"):
        read_series(tmp_path / "x.npz", Layout(1, False))


def test_archive_of_one_array_under_many_names(tmp_path, monkeypatch):
    """Entries that share their bytes: each is small for what it is, all are not."""
    monkeypatch.setattr(numpy, "BOMB_BYTES", 1 << 20)
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", array() + bytes(1 << 16))
        first = archive.infolist()[0]
        for i in range(200):
            other = zipfile.ZipInfo(f"b{i:05}.npy"[-5:])
            for field in ("header_offset", "CRC", "compress_size", "file_size"):
                setattr(other, field, getattr(first, field))
            archive.filelist.append(other)
        archive._didModify = True
    with pytest.raises(ValueError, match="that would unpack to"):
        open_numpy(path)


def test_archive_of_too_many_members(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MEMBERS", 10)
    monkeypatch.setattr(numpy, "_MEMBERS", 10)
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for i in range(11):
            archive.addfile(tarfile.TarInfo(str(i)))
    with pytest.raises(DataError, match="more than 10 files"):
        list(read_tar(tmp_path / "x.tar", bool, "an archive"))
    (tmp_path / "x.npz").write_bytes(saved(**{f"x{i}": np.zeros(1) for i in range(11)}))
    with pytest.raises(DataError, match="11 arrays, more than 10"):
        read_table(tmp_path / "x.npz", 3)


def test_archive_of_many_members_takes_no_memory(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for i in range(3000):
            archive.addfile(tarfile.TarInfo(str(i)))
    reading, held = read_tar(tmp_path / "x.tar", lambda name: True, "an archive"), []
    tracemalloc.start()
    for _ in reading:
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(held) == 3000
    assert held[-1] - held[1000] < 200_000


def test_text_is_limited_after_it_was_unpacked(tmp_path, monkeypatch):
    import gzip

    monkeypatch.setattr(files, "MAX_WHOLE", 1000)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(os.urandom(500).hex().encode() + b"\n"))
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        read_series(tmp_path / "x.csv.gz", Layout(1, False))


def test_a_few_bytes_of_packed_text_take_little_memory(tmp_path):
    """One row of 32 million cells: forty bytes of memory for each would be more than a gigabyte."""
    path, piece = tmp_path / "x.csv.xz", b"1," * (1 << 19)
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range(64):
            file.write(piece)
        file.write(b"1\n")
    assert path.stat().st_size < 1 << 20
    (tmp_path / "elsewhere").mkdir()
    for read in (lambda p: read_series(p, Layout(1, False)), read_history):
        with (
            untouched(tmp_path / "elsewhere"),
            pytest.raises(DataError, match="that would unpack to"),
        ):
            read(path)


def test_pairs_of_too_many_lines(tmp_path):
    """A place of eight bytes is kept for each line."""
    path = tmp_path / "x.tsv"
    with open(path, "wb") as file:
        for _ in range(20):
            file.write(b"\n" * (1 << 20))
    (tmp_path / "elsewhere").mkdir()
    with (
        untouched(tmp_path / "elsewhere"),
        pytest.raises(DataError, match="at most 4,194,304 lines, got more"),
    ):
        Pairs(path, 8)


def test_state_is_written_beside_what_a_link_leads_to(tmp_path):
    (tmp_path / "mine").write_bytes(b"dear")
    (tmp_path / "state").symlink_to(tmp_path / "mine")
    before = snapshot(tmp_path)["mine"]
    state.save({"h": torch.zeros(1)}, tmp_path / "state")
    assert snapshot(tmp_path)["mine"] == before
    assert not (tmp_path / "state").is_symlink()
