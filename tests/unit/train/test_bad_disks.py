"""A disk that is full, read-only or damages files: said in one line, and nothing is lost."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from linrnn import tokenizers, train
from linrnn._files.storage import link, write_atomically
from linrnn.errors import InterruptedRunError, RunFolderError, StorageError
from linrnn.train._recover import usable_checkpoint
from linrnn.train.checkpoint import load_tree, save_tree
from linrnn.train.folder import RunFolder

pytestmark = pytest.mark.unchecked

LAST, BEST = "checkpoints/last.safetensors", "checkpoints/best.safetensors"


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    """Nothing here looks at them, and they take most of the time of so small a run."""
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)


@pytest.fixture
def copied(finished, tmp_path):
    """A run trained to its end, of which the result is missing."""
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    (folder / "result.json").unlink()
    return folder


@pytest.fixture
def fail_after(monkeypatch):
    """Let the disk fail at the n-th flush and all that follow."""

    def after(count, number):
        done, fsync = [], os.fsync

        def fail(handle):
            done.append(handle)
            if len(done) > count:
                raise OSError(number, os.strerror(number))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", fail)

    return after


class Notes(train.Reporter):
    def __init__(self):
        self.texts = []

    def noticed(self, text):
        self.texts.append(text)


def hidden(folder):
    return [p.name for p in Path(folder).rglob(".*") if p.name != ".lock"]


def same(ours, theirs):
    ours, theirs = load_file(ours), load_file(theirs)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[n]) for n, x in ours.items())


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "got: No space left on device. Free space on the disk"),
        (errno.EROFS, "got: Read-only file system. Choose a folder that can be written to"),
        (errno.EACCES, "got: Permission denied. Choose a folder that can be written to"),
        (errno.EIO, "got: Input/output error. Check the disk"),
    ],
)
def test_write_atomically_says_what_is_wrong_and_keeps_the_file(
    tmp_path, fail_after, number, advice
):
    path = tmp_path / "x.bin"
    write_atomically(path, b"old")
    fail_after(0, number)
    with pytest.raises(StorageError, match=rf"x\.bin: the file must be writable, {advice}; what"):
        write_atomically(path, b"new", keep=tmp_path / "kept.bin")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_write_atomically_keeps_what_was_there_under_another_name(tmp_path):
    path, keep = tmp_path / "x.bin", tmp_path / "kept.bin"
    for text in (b"1", b"2", b"3"):
        write_atomically(path, text, keep=keep)
    assert (path.read_bytes(), keep.read_bytes()) == (b"3", b"2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.bin", "x.bin"]


def test_link_copies_where_there_are_no_links(tmp_path, monkeypatch):
    def no_link(*_, **__):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", no_link)
    (tmp_path / "a").write_bytes(b"1")
    link(tmp_path / "a", tmp_path / "b")
    link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"1"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_link_twice_leaves_nothing_behind(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    for _ in range(2):
        link(tmp_path / "a", tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_full_disk_stops_the_run_and_the_newest_checkpoint_stays(
    tiny, finished, tmp_path, fail_after, monkeypatch
):
    class FullAfter(train.Reporter):
        def epoch_done(self, report):
            if report.epoch == 2:
                fail_after(0, errno.ENOSPC)

    with pytest.raises(
        RunFolderError,
        match=r"No space left on device\. Free space .* is as it was\. Then continue with: linrnn "
        r"train --resume \S+$",
    ):
        train.run(tiny, out=tmp_path / "run", reporter=FullAfter())
    monkeypatch.undo()
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
    assert hidden(tmp_path / "run") == []
    train.resume(tmp_path / "run")
    for name in (LAST, "model.safetensors"):
        same(tmp_path / "run" / name, finished.folder / name)


@pytest.mark.slow
def test_limit_on_file_size_in_a_process_of_its_own(tmp_path):
    """No simulation: the kernel refuses to write past 2 KiB."""
    words = ["train", "digits", "--model.d-model", "6", "--train.epochs", "1", "--out"]
    done = subprocess.run(
        [sys.executable, "-m", "linrnn", *words, str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "File too large. Free space on the disk" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert hidden(tmp_path / "run") == []


@pytest.fixture
def unprivileged():
    """Someone who may read this folder, and not write to it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder), lambda: os.geteuid() == 0 and os.seteuid(65534)
        if os.getuid() == 0:
            os.seteuid(0)
        for path in Path(folder).rglob("*"):
            path.chmod(0o755)


def test_resume_in_a_folder_that_is_read_only(finished, unprivileged):
    place, drop = unprivileged
    run = Path(shutil.copytree(finished.folder, place / "run"))
    (run / "result.json").unlink()
    (run / ".lock").unlink()
    run.chmod(0o555)
    drop()
    with pytest.raises(RunFolderError, match=r"must be writable, got: Permission denied\. Copy"):
        train.resume(run)


def test_run_where_nothing_may_be_made(tiny, unprivileged, monkeypatch):
    place, drop = unprivileged
    place.chmod(0o555)
    monkeypatch.chdir(place)
    drop()
    with pytest.raises(RunFolderError, match=r"one that can be made, got: .*Choose another --out"):
        train.run(tiny, out=place / "run")
    with pytest.raises(RunFolderError, match=r"be made, got: Permission denied\. Name another"):
        train.run(tiny)


def offsets(path):
    """Places to cut a safetensors file at, one of every kind."""
    data = path.read_bytes()
    header = int.from_bytes(data[:8], "little")
    tensors = 8 + header
    middle = (tensors + len(data)) // 2
    return [0, 1, 7, 8, 9, 8 + header // 2, tensors - 1, tensors, tensors + 1, middle, -2, -1]


def damages(path):
    """The file, cut and with single bytes flipped, at every kind of place."""
    data = path.read_bytes()
    places = offsets(path)
    for end in places:
        yield data[:end]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 0x04
        yield bytes(flipped)
    yield bytes(len(data))
    yield data + b"\0"


@pytest.mark.parametrize("name", [LAST, "model.safetensors"])
def test_every_damage_is_refused_and_the_way_out_named(copied, name):
    folder, path = RunFolder(copied), copied / name
    whole = path.read_bytes()
    for damaged in [*damages(path), None]:
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=rf"--resume {copied} --fallback$") as caught:
            usable_checkpoint(folder, train.Reporter(), fallback=False)
        assert "\n" not in str(caught.value)
        assert not path.exists() or path.read_bytes() == damaged
        path.write_bytes(whole)


def test_fallback_takes_the_checkpoint_before(copied):
    folder = RunFolder(copied)
    folder.best.unlink()  # of the same step as the last
    path = folder.last
    for damaged in [*damages(path), None]:
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        notes = Notes()
        step = usable_checkpoint(folder, notes, fallback=True).step
        run = load_tree(path)["run"]
        assert step == run["step"] == 10
        assert "the run continues after step 10, from previous.safetensors" in notes.texts[0]
        if damaged is not None:
            aside = path.with_name("last.safetensors.damaged")
            assert aside.read_bytes() == damaged
    # another damaged one must not take the place of what is whole
    assert load_tree(folder.previous)["run"]["step"] == 10


def test_resume_with_fallback_ends_with_the_same_bits(copied, finished):
    path = copied / LAST
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunFolderError, match="--fallback"):
        train.resume(copied)
    notes = Notes()
    assert train.resume(copied, fallback=True, reporter=notes).test_loss == finished.test_loss
    assert len(notes.texts) == 1
    for name in (LAST, "model.safetensors"):
        same(copied / name, finished.folder / name)


def test_fallback_makes_the_weights_again(copied, finished):
    folder = RunFolder(copied)
    folder.model.write_bytes(b"")
    notes = Notes()
    assert usable_checkpoint(folder, notes, fallback=True).step == 15
    same(folder.model, finished.folder / "model.safetensors")
    assert "was made again from best.safetensors" in notes.texts[0]


def test_fallback_with_nothing_left(copied):
    folder = RunFolder(copied)
    for path in (folder.last, folder.previous, folder.best):
        path.write_bytes(path.read_bytes()[:100])
    for fallback in (False, True):
        with pytest.raises(RunFolderError, match=r"last\.safetensors: .*damaged content") as caught:
            usable_checkpoint(folder, train.Reporter(), fallback=fallback)
        assert "--fallback" not in str(caught.value)


def test_two_checkpoints_are_kept_while_training(every_step, tmp_path, signal_at):
    with pytest.raises(InterruptedRunError):
        train.run(every_step, out=tmp_path / "run", reporter=signal_at(3))
    folder = RunFolder(tmp_path / "run")
    steps = [load_tree(path)["run"]["step"] for path in (folder.previous, folder.last)]
    assert steps == [2, 3]


def test_checkpoint_of_something_else(copied):
    folder = RunFolder(copied)
    save_tree({"run": {"step": "many"}}, folder.last)
    with pytest.raises(RunFolderError, match=r"last\.safetensors: the file must hold step and"):
        usable_checkpoint(folder, train.Reporter(), fallback=False)


@pytest.mark.parametrize("damage", [lambda x: x.replace(b"1", b"2"), lambda x: x[:90], None])
def test_damaged_metrics_are_those_of_the_checkpoint_again(copied, finished, damage):
    path = copied / "metrics.csv"
    whole = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(whole))
    notes = Notes()
    result = train.resume(copied, reporter=notes)
    assert path.read_bytes() == whole
    assert notes.texts == [
        f"{path} had not the rows it was written with; they are those of the checkpoint again"
    ]
    assert replace(result, folder=finished.folder) == finished


def test_every_flipped_byte_of_the_configuration_is_noticed_or_harmless(copied):
    folder = RunFolder(copied)
    data, config = folder.config.read_bytes(), folder.load_config()
    refused = 0
    for place in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[place] ^= 1
        folder.config.write_bytes(flipped)
        try:
            assert folder.load_config() == config, place
        except RunFolderError:
            refused += 1
    assert refused > len(data) / 4


def test_every_flipped_byte_of_the_result_is_noticed_or_harmless(finished, tmp_path):
    folder = RunFolder(Path(shutil.copytree(finished.folder, tmp_path / "run")))
    data, result = folder.result.read_bytes(), folder.read_result()
    refused = 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        folder.result.write_bytes(flipped)
        try:
            assert folder.read_result() == result, place
        except RunFolderError:
            refused += 1
    assert refused > len(data) / 2


def test_result_of_the_first_days_has_no_checksum(finished, tmp_path):
    folder = RunFolder(Path(shutil.copytree(finished.folder, tmp_path / "run")))
    record = json.loads(folder.result.read_text())
    for later in ("sha256", "skipped", "rollbacks"):
        del record[later]
    folder.result.write_text(json.dumps(record))
    assert folder.read_result() == replace(finished, folder=folder.path)


def test_every_flipped_byte_of_the_tokenizer_is_noticed(tiny, tmp_path):
    kept = {"tokenizer.json": tokenizers.CharTokenizer("abc ").to_json()}
    folder = RunFolder.create(tmp_path / "run", tiny, kept)
    path = folder.path / "tokenizer.json"
    data = path.read_bytes()
    folder.check_kept()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(RunFolderError, match=r"tokenizer\.json: .*damaged content"):
            folder.check_kept()
    path.unlink()
    with pytest.raises(RunFolderError, match=r"tokenizer\.json: .*No such file"):
        folder.check_kept()


def test_configuration_of_gigabytes_is_not_read(copied):
    with open(copied / "config.json", "r+b") as file:
        file.truncate(8 << 30)  # a hole
    with pytest.raises(RunFolderError, match=r"got: a file of 8,589,934,592 bytes"):
        train.resume(copied)
