"""Files from strangers: nothing in them runs, and nothing is believed about sizes and places."""

import gzip
import http.server
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from linrnn import state as states
from linrnn import tokenizers, train
from linrnn.cli import main
from linrnn.errors import DataError, LinrnnError, RunFolderError
from linrnn.tasks._kinds.pathfinder import read_image, released
from linrnn.tasks._reading import files as _files
from linrnn.tasks._reading import numpy
from linrnn.tasks._reading.audio import read_wav
from linrnn.tasks._reading.corpus import read_corpus
from linrnn.tasks._reading.files import fetch, read_packed, read_tar
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.table import read_table
from linrnn.tasks.scifar import read_npz
from linrnn.tokenizers import ByteTokenizer
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.checkpoint import load_tensors, load_tree
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import read_metrics

pytestmark = pytest.mark.unchecked


class Payload:
    """Unpickling this makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def pickles(marker):
    """The same code in every wrapping a loader might open."""
    payload = Payload(marker)
    yield pickle.dumps(payload, 0)
    yield pickle.dumps(payload)
    file = io.BytesIO()
    torch.save({"state_dict": payload}, file)
    yield file.getvalue()
    array = np.empty(2, object)
    array[:] = payload
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    yield file.getvalue()
    file = io.BytesIO()
    np.savez(file, x=array, y=array, x_train=array, y_train=array)
    yield file.getvalue()
    yield gzip.compress(pickle.dumps(payload))
    yield lzma.compress(pickle.dumps(payload))


def test_the_payloads_run_where_pickle_is_used(tmp_path):
    _, data, *_ = pickles(tmp_path / "ran")
    pickle.loads(data)  # noqa: S301
    assert (tmp_path / "ran").exists()


def read_state(path):
    states.load(path, {"h": torch.zeros(1, 2)})


def read_session(path):
    from linrnn import SequenceModel
    from linrnn.streaming import Session

    Session(SequenceModel(1, 2, d_model=4, n_layers=1).eval()).load(path)


READERS = {
    "x.safetensors": [load_tree, load_tensors, read_state, states.read_header, read_session],
    "x.npy": [lambda path: read_table(path, 3)],
    "x.npz": [
        lambda path: read_table(path, 3),
        lambda path: read_series(path, Layout(1, False)),
        lambda path: read_npz(path, "train"),
    ],
    "x.csv": [
        lambda path: read_table(path, 3),
        lambda path: read_series(path, Layout(1, False)),
    ],
    "x.txt": [lambda path: read_table(path, 3)],
    "x.ts": [lambda path: read_series(path, Layout(1, False))],
    "x.ts.gz": [lambda path: read_series(path, Layout(1, False))],
    "x.ts.xz": [lambda path: read_series(path, Layout(1, False))],
    "x.tar.gz": [lambda path: list(read_tar(path, lambda name: True, "an archive"))],
    "x.png": [lambda path: read_image(path, 32)],
    "x.wav": [lambda path: read_wav("x", path.read_bytes(), 16000)],
    "tokenizer.json": [tokenizers.load],
}


@pytest.mark.parametrize(
    ("name", "reader"), [(name, i) for name, found in READERS.items() for i in range(len(found))]
)
def test_no_file_is_unpickled(tmp_path, name, reader):
    path, marker = tmp_path / name, tmp_path / "ran"
    for data in pickles(marker):
        path.write_bytes(data)
        with pytest.raises(LinrnnError):
            READERS[name][reader](path)
    assert not marker.exists()


def metrics(run):
    read_metrics(RunFolder(run))


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    """A run of a language model, which has every kind of file."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("to be or not to be " * 40)
    config = Config(
        task="lm",
        mixer_options={"d_state": 2},
        model=ModelConfig(d_model=4, n_layers=1, norm="layer", pool="none"),
        train=TrainConfig(epochs=2, batch_size=4),
    )
    from dataclasses import replace

    options = replace(config.task_options, data=(str(folder / "a.txt"),), length=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINRNN_DATA", str(folder / "data"))
        patch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
        train.run(replace(config, task_options=options), out=folder / "run")
        yield folder


def test_no_file_of_a_run_is_unpickled(text_run, tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(text_run / "data"))
    run, marker = text_run / "run", tmp_path / "ran"
    files = [p for p in run.rglob("*") if p.is_file() and "tensorboard" not in p.parts]
    assert {"config.json", "tokenizer.json", "text.json", "last.safetensors"} <= {
        p.name for p in files
    }
    refused = set()
    for path in files:
        whole = path.read_bytes()
        for data in pickles(marker):
            path.write_bytes(data)
            for use in (
                train.load_model,
                train.resume,
                train.evaluate,
                lambda r: read_metrics(RunFolder(r)),
            ):
                try:
                    use(run)
                except LinrnnError:
                    refused.add(path.name)
        path.write_bytes(whole)
    assert not marker.exists()
    expected = {"config.json", "tokenizer.json", "text.json", "model.safetensors", "result.json"}
    assert expected <= refused


def test_no_file_of_kept_tokens_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    text, marker = tmp_path / "a.txt", tmp_path / "ran"
    text.write_text("to be or not to be")
    expected = read_corpus([text], ByteTokenizer(), "files").tokens.tolist()
    for path in sorted((tmp_path / "data" / "tokens").glob("[!.]*")):
        for data in pickles(marker):
            path.write_bytes(data)
            found = read_corpus([text], ByteTokenizer(), "files")
            assert found.tokens.tolist() == expected
    assert not marker.exists()


def test_flipped_byte_of_kept_tokens_is_noticed(tmp_path, monkeypatch, warnings_logged):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    text = tmp_path / "a.txt"
    text.write_text("to be or not to be")
    expected = read_corpus([text], ByteTokenizer(), "files").tokens.tolist()
    for path in sorted((tmp_path / "data" / "tokens").glob("[!.]*")):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert read_corpus([text], ByteTokenizer(), "files").tokens.tolist() == expected
    assert any("is damaged; its tokens are made again" in text for text in warnings_logged)


def claims(entries, data=b""):
    """A safetensors file with a header of our own."""
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


TERA = 1 << 40
HUGE = {"dtype": "F32", "shape": [TERA], "data_offsets": [0, 4 * TERA]}


@pytest.mark.parametrize(
    "data",
    [
        claims({"t0": HUGE}),
        claims({"t0": HUGE, "__metadata__": {"tree": "{}", "state": '{"format": 1}'}}, b"\0" * 64),
        claims({"t0": HUGE | {"data_offsets": [0, 64]}}, b"\0" * 64),
        claims({"t0": HUGE | {"shape": [1 << 62, 1 << 62]}}, b"\0" * 64),
        struct.pack("<Q", TERA) + b"{}",
        struct.pack("<Q", (1 << 64) - 1) + b"{}",
    ],
)
def test_safetensors_that_claim_terabytes(tmp_path, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    for read in READERS["x.safetensors"]:
        with pytest.raises(LinrnnError):
            read(path)


def npy(shape, data=b"\0" * 64, descr="<f8"):
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


@pytest.mark.parametrize("shape", [(TERA,), (TERA, 3), (1 << 31, 1 << 31), (3, 1 << 62)])
def test_numpy_files_that_claim_terabytes(tmp_path, shape):
    plain, packed = tmp_path / "x.npy", tmp_path / "x.npz"
    plain.write_bytes(npy(shape))
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("x", "y"):
            archive.writestr(f"{name}.npy", npy(shape))
    for path, read in ((plain, read_table), (packed, read_table)):
        with pytest.raises(DataError, match="bytes announced in"):
            read(path, 3)
    with pytest.raises(DataError, match="bytes announced in"):
        read_series(packed, Layout(1, False))


def test_archive_that_unpacks_to_far_more_than_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(numpy, "BOMB_BYTES", 1 << 20)
    monkeypatch.setattr(numpy, "BOMB_TEXT", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy((1 << 19,), bytes(8 << 19)))
    with pytest.raises(DataError, match="that would unpack to"):
        read_table(tmp_path / "x.npz", 3)
    for name, pack in (("x.gz", gzip.compress), ("x.xz", lzma.compress)):
        (tmp_path / name).write_bytes(pack(bytes(8 << 20)))
        with pytest.raises(DataError, match="that would unpack to"):
            read_packed(tmp_path / name, "bytes")
        monkeypatch.setattr(numpy, "BOMB_RATIO", 1 << 30)
        assert len(read_packed(tmp_path / name, "bytes")) == 8 << 20
        monkeypatch.setattr(numpy, "BOMB_RATIO", 100)


def test_tokenizer_of_gigabytes_is_not_read(tmp_path):
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(8 << 30)  # a hole
    with pytest.raises(DataError, match="got: a file of 8,589,934,592 bytes, more than 67,108,864"):
        tokenizers.load(tmp_path / "tokenizer.json")


def test_json_nested_too_deep(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("[" * 200_000)
    with pytest.raises(DataError):
        tokenizers.load(path)
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(RunFolderError):
        train.load_model(tmp_path)


def archive_of(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_archives_write_nothing_and_follow_no_link(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "place").mkdir()
    path = tmp_path / "place" / "x.tar.gz"
    archive_of(
        path,
        (member("../outside"), b"1"),
        (member("/tmp/linrnn-outside"), b"2"),
        (member("link", tarfile.SYMTYPE, str(tmp_path / "secret")), b""),
        (member("hard", tarfile.LNKTYPE, str(tmp_path / "secret")), b""),
        (member("device", tarfile.CHRTYPE), b""),
        (member("pipe", tarfile.FIFOTYPE), b""),
    )
    before = sorted(p.name for p in tmp_path.rglob("*"))
    found = dict(read_tar(path, lambda name: True, "an archive"))
    assert set(found) <= {"../outside", "/tmp/linrnn-outside"}
    assert b"secret" not in found.values()
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
    assert not Path("/tmp/linrnn-outside").exists()


def test_archive_with_a_file_of_holes(tmp_path):
    info = member("x", tarfile.GNUTYPE_SPARSE)
    info.size = 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"%011o\0" % (1 << 30), b"%011o\0" % 0
    block[483:495] = b"%011o\0" % (1 << 30)  # the size with its holes
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "x.tar").write_bytes(bytes(block) + bytes(1024))
    with pytest.raises(DataError, match="a file with holes"):
        list(read_tar(tmp_path / "x.tar", lambda name: True, "an archive"))


@pytest.mark.parametrize("row", ["../.. secret.png", "imgs ../../../secret.png", "/ etc/hosts"])
def test_lists_of_images_name_none_outside_their_folder(tmp_path, row):
    level = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(b"1")
    (level / "metadata" / "0.npy").write_text(f"{row} 0 1\n" * 20)
    with pytest.raises(DataError, match="line 1 must name a file below"):
        released(tmp_path, 32)


def test_configuration_names_no_file_outside_its_folder(tmp_path):
    (tmp_path / "secret").write_text("secret")
    config = Config(task="digits")
    folder = RunFolder.create(tmp_path / "run", config)
    record = json.loads(folder.config.read_text())
    for name in ("../secret", str(tmp_path / "secret")):
        folder.config.write_text(json.dumps(record | {"files": {name: "0" * 64}}))
        with pytest.raises(RunFolderError, match=rf"^{folder.path}/secret: .*No such file"):
            folder.check_kept()


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "ftp://example.org/x", "file:///etc/hosts"]
)
def test_downloads_are_over_https_alone(tmp_path, url):
    with pytest.raises(DataError, match="url must begin with https://"):
        fetch(url, "sha256:" + "0" * 64, tmp_path / "x")
    assert not (tmp_path / "x").exists()


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", "http://example.org/x")
        self.end_headers()

    def log_message(self, *args):
        pass


def test_no_redirect_leads_out_of_https(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(DataError, match="url must begin with https://, got http://example"):
            fetch(f"http://127.0.0.1:{server.server_port}/x", "sha256:" + "0" * 64, tmp_path / "x")
        server.shutdown()
    assert not (tmp_path / "x").exists()


def test_half_a_download_is_never_taken_for_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.bin.part").write_bytes(b"half")
    source = _files.Source("file.bin", "https://127.0.0.1:1/file.bin", "sha256:" + "0" * 64)
    with pytest.raises(DataError, match="must exist"):
        _files.obtain("smnist", source, "mnist")
    assert not (tmp_path / "mnist" / "file.bin").exists()


def test_command_line_says_it_in_one_line(tmp_path, capsys):
    (tmp_path / "config.json").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    assert main(["eval", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("linrnn: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert os.listdir(tmp_path) == ["config.json"]
