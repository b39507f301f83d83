"""After a power cut at any moment a reader finds what was before or what was after, never less."""

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from power_cut import Disk, few, half_written, materialise
from torch.utils.data import DataLoader, TensorDataset

from linrnn import SequenceModel, fit, train
from linrnn._files.storage import append, write_atomically
from linrnn.errors import RunFolderError
from linrnn.streaming import Session
from linrnn.tasks._reading import files
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.folder import RunFolder

QUICK = {"trainer": {"enable_progress_bar": False}, "accelerator": "cpu", "threads": None}


@pytest.fixture
def disk(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    disk.recorded(monkeypatch)
    return disk


def written(path, contents, disk):
    """The number of moments after which each content was reported to be there."""
    done = []
    for content in contents:
        write_atomically(path, content, keep=path.with_name("kept"))
        done.append(len(disk.moments))
    return done


def problems_of_a_file(disk, name, contents, done):
    for at, state in disk.states(samples=6, done=done):
        reported = sum(moments <= at for moments in done)
        allowed = [None, *contents][reported:]
        if state.get(name) not in allowed:
            yield at, state.get(name), allowed


CONTENTS = [b"first" * 200, b"second" * 300, b"third"]


def test_a_file_in_a_new_folder_is_whole_and_there_once_it_is_written(disk):
    path = disk.root / "runs" / "a" / "file"
    done = written(path, CONTENTS, disk)
    assert list(problems_of_a_file(disk, "runs/a/file", CONTENTS, done)) == []
    assert len(disk.moments) >= 20


def test_without_syncs_the_law_is_broken(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", syncs=False)
    disk.recorded(monkeypatch)
    done = written(disk.root / "file", CONTENTS, disk)
    assert list(problems_of_a_file(disk, "file", CONTENTS, done))


def test_a_folder_whose_name_was_never_synced_takes_all_that_is_in_it(disk, monkeypatch):
    monkeypatch.setattr("linrnn._files.door.sync_folder", lambda path: None)
    done = written(disk.root / "runs" / "file", CONTENTS, disk)
    assert list(problems_of_a_file(disk, "runs/file", CONTENTS, done))


def test_lines_that_were_added_are_there_before_a_piece_that_was_cut(disk):
    path, done = disk.root / "lines", []
    lines = [f"{i},{i * i}\n".encode() for i in range(8)]
    for line in lines:
        append(path, line)
        done.append(len(disk.moments))
    whole = b"".join(lines)
    for at, state in disk.states(samples=4, done=done):
        reported = b"".join(lines[: sum(moments <= at for moments in done)])
        content = state.get("lines", b"")
        assert content.startswith(reported)
        assert whole.startswith(content)


def test_a_stream_goes_on_where_it_was_saved_last(disk, tmp_path):
    model = SequenceModel(1, 2, d_model=4, n_layers=1, pool="none").eval()
    session, path, done = Session(model), disk.root / "streams" / "a.safetensors", []
    for _ in range(3):
        session.feed(torch.randn(5, 1))
        session.save(path)
        done.append(len(disk.moments))
    for at, state in disk.states(done=done):
        reported = sum(moments <= at for moments in done)
        materialise(state, tmp_path / "after")
        again = Session(model)
        saved = tmp_path / "after" / "streams" / "a.safetensors"
        if reported or saved.exists():
            again.load(saved)
            assert again.steps in (5 * max(1, reported), 5 * (reported + 1))


DATA = bytes(range(256)) * 40


class Answer(io.BytesIO):
    """A server's answer to a request for a file from some byte on; it may break off."""

    status = 206

    def __init__(self, start, stop=None):
        super().__init__(DATA[start:stop])
        size = len(DATA)
        self.headers = {
            "Content-Length": str(size - start),
            "Content-Range": f"bytes {start}-{size - 1}/{size}",
        }


def downloaded(folder, monkeypatch, *stops, after_each=lambda: None):
    """A file that came in pieces, each up to one of the stops."""
    left = [*stops, None]

    def transfer(url, part, start):
        whole = files._write(Answer(start, left.pop(0)), part, append=bool(start))
        after_each()
        return whole

    path = folder / "cache" / "file"
    monkeypatch.setattr(files, "_transfer", transfer)
    files.fetch("https://a/file", f"sha256:{hashlib.sha256(DATA).hexdigest()}", path)
    return path


def test_a_file_that_is_downloaded_is_whole_where_it_has_its_name(disk, monkeypatch, tmp_path):
    path = downloaded(disk.root, monkeypatch, 1000, 5000, after_each=disk.moment)
    assert path.read_bytes() == DATA
    done, parts = len(disk.moments), 0
    for at, state in disk.states(samples=6, done=[done - 1]):
        whole = state.get("cache/file")
        assert whole in ((DATA,) if at >= done - 1 else (None, DATA))
        parts += "cache/file.part" in state
        materialise(state, tmp_path / "after")
        assert downloaded(tmp_path / "after", monkeypatch).read_bytes() == DATA
    assert parts > 3


def test_a_folder_that_is_filled_is_whole_once_it_has_its_configuration(disk, tmp_path):
    def create(path):
        def fill(folder):
            write_atomically(folder.model, b"weights" * 100, inside=path)
            write_atomically(folder.distillation, b"table" * 100, inside=path)

        return RunFolder.create(path, TINY, {"tokenizer.json": "{}"}, fill)

    create(disk.root / "runs" / "a")
    done, begun = len(disk.moments), 0
    for at, state in disk.states(samples=6, done=[done - 1]):
        materialise(state, tmp_path / "after")
        path = tmp_path / "after" / "runs" / "a"
        if at >= done - 1:
            assert (path / "config.json").exists()
        if not (path / "config.json").exists():
            begun += 1
            create(path)
        folder = RunFolder(path)
        assert folder.run_files() == {"tokenizer.json": "{}"}
        assert folder.model.read_bytes() == b"weights" * 100
        assert folder.distillation.read_bytes() == b"table" * 100
        assert half_written(path) == []
    assert begun > 10


def trained(out):
    torch.manual_seed(0)
    x = torch.randn(12, 6, 2)
    loader = DataLoader(TensorDataset(x, (x.sum((1, 2)) > 0).long()), 6, shuffle=True)
    model = SequenceModel(2, 2, d_model=4, n_layers=1, dropout=0.2)
    return fit(model, loader, loss="cross_entropy", epochs=2, seed=1, out=out, **QUICK)


def check_fit(disk, tmp_path, count):
    out = Path("runs", "a")
    whole = trained(disk.root / out)
    end = len(disk.moments)
    states = list(disk.states(samples=1, done=[end - 1]))
    assert len(states) > 30
    for at, state in few(states, count):
        after = tmp_path / "after"
        materialise(state, after)
        if at >= end - 1:
            assert (after / out / "complete").exists()
        again = trained(after / out)
        assert half_written(after) == []
        assert len(again.history) == len(whole.history) == 2
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, again.model.state_dict()[name])


def test_fit_goes_on_from_what_a_cut_leaves(disk, tmp_path):
    check_fit(disk, tmp_path, 12)


@pytest.mark.slow
def test_fit_goes_on_from_all_that_a_cut_may_leave(disk, tmp_path):
    check_fit(disk, tmp_path, 10_000)


TINY = Config(
    task="digits",
    mixer="mingru",
    model=ModelConfig(d_model=4, n_layers=1),
    optim=OptimConfig(lr=1e-2),
    train=TrainConfig(epochs=2, batch_size=512, threads=1, checkpoint_minutes=1e-9),
)


def again_or_on(config, out):
    """The command of a user: the same again until a run can be resumed."""
    if (out / "config.json").is_file():
        try:
            return train.resume(out)
        except RunFolderError as error:
            if "before its first epoch" not in str(error):
                raise
    return train.run(config, out=out)


def check_beginnings(states, out, after):
    """A folder without its configuration is one in which the same run can begin."""
    begun = [state for _, state in states if str(out / "config.json") not in state]
    assert len(begun) >= 5
    for state in begun:
        materialise(state, after)
        RunFolder.create(after / out, TINY)


def check_train(disk, tmp_path, count):
    out = Path("runs", "a")
    whole = train.run(TINY, out=disk.root / out)
    states = list(disk.states(samples=1))
    assert len(states) > 60
    check_beginnings(states, out, tmp_path / "after")
    for _, state in few(states, count):
        after = tmp_path / "after"
        materialise(state, after)
        again = again_or_on(TINY, after / out)
        assert half_written(after) == []
        same = {"folder": whole.folder, "seconds": whole.seconds}
        assert replace(again, **same) == whole


def test_a_run_goes_on_from_what_a_cut_leaves(disk, tmp_path):
    check_train(disk, tmp_path, 3)


@pytest.mark.slow
def test_a_run_goes_on_from_all_that_a_cut_may_leave(disk, tmp_path):
    check_train(disk, tmp_path, 200)
