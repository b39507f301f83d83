import json
import os
import pickle
import shutil

import pytest
import torch

from linrnn import train
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.train.checkpoint import load_tensors, save_tensors
from linrnn.train.folder import RunFolder

pytestmark = pytest.mark.unchecked


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run that a test may damage."""
    return shutil.copytree(finished.folder, tmp_path / "copy")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_run_refuses_a_folder_in_use(tiny, copied):
    with pytest.raises(
        RunFolderError,
        match=rf"must be new or empty, got files in it. Continue it with --resume {copied}, or",
    ):
        train.run(tiny, out=copied)


def test_run_refuses_a_folder_of_something_else(tiny, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match=r"got files in it. Choose another --out\.$"):
        train.run(tiny, out=tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_run_refuses_a_file(tiny, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(RunFolderError, match="must be a folder, got a file"):
        train.run(tiny, out=tmp_path / "out")


def test_run_killed_as_it_began_is_begun_anew(tiny, tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.json.ab12cd_8").write_text("{")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RunFolderError, match="killed as it began: start it again with the same"):
        train.resume(tmp_path)
    with pytest.raises(RunFolderError, match="must be new or empty"):
        RunFolder.create(tmp_path, tiny)  # not of this run
    folder = RunFolder.create(tmp_path, tiny, {"tokenizer.json": "[]"})
    assert folder.load_config() == tiny
    folder.check_kept()
    assert sorted(os.listdir(tmp_path)) == [".lock", "config.json", "tokenizer.json"]


def test_run_that_cannot_start_leaves_no_folder(tiny, tmp_path):
    from dataclasses import replace

    with pytest.raises(ArgumentError, match="r_min"):
        train.run(replace(tiny, mixer_options={"r_min": 2.0}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_run_takes_the_next_free_number(tiny, tmp_path, monkeypatch, crash_at):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with pytest.raises(ConnectionAbortedError):
            train.run(tiny, reporter=crash_at(1))
    assert sorted(os.listdir("runs")) == ["digits-lru-1", "digits-lru-2"]


def test_evaluate_no_such_folder(tmp_path):
    with pytest.raises(RunFolderError, match="a run folder must exist, got no such folder"):
        train.evaluate(tmp_path / "none")


def test_evaluate_not_a_run_folder(tmp_path):
    with pytest.raises(RunFolderError, match=r"must hold config.json, got none"):
        train.evaluate(tmp_path)


def test_evaluate_newer_format(copied):
    edit(copied / "config.json", format=2, linrnn="0.9.3")
    with pytest.raises(
        RunFolderError, match=r"must be at most 1 .* got 2. .* pip install 'linrnn>=0\.9\.3'"
    ):
        train.evaluate(copied)


def test_evaluate_changed_configuration(copied):
    record = json.loads((copied / "config.json").read_text())
    record["config"]["model"]["d_model"] = 7
    edit(copied / "config.json", **record)
    with pytest.raises(RunFolderError, match="the configuration must be as it was written"):
        train.evaluate(copied)


def test_evaluate_truncated_configuration(copied):
    text = (copied / "config.json").read_text()
    (copied / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(RunFolderError, match=r"config.json: the file must be complete JSON"):
        train.evaluate(copied)


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.6, 0.999])
def test_evaluate_flipped_byte_in_the_weights(copied, part):
    data = bytearray((copied / "model.safetensors").read_bytes())
    data[int(part * len(data))] ^= 1
    (copied / "model.safetensors").write_bytes(data)
    for use in (train.evaluate, lambda run: train.predict(run, "rows.csv")):
        with pytest.raises(RunFolderError, match=r"model\.safetensors: .*damaged"):
            use(copied)


def test_evaluate_weights_of_another_model(copied):
    weights, _ = load_tensors(copied / "model.safetensors")
    weights["head.weight"] = torch.zeros(10, 99)
    save_tensors(weights, copied / "model.safetensors")
    with pytest.raises(RunFolderError, match="the weights must fit the configuration"):
        train.evaluate(copied)


@pytest.mark.skipif(os.name == "nt", reason="there are no such locks on Windows")
def test_resume_while_another_process_trains(copied):
    import fcntl

    (copied / "result.json").unlink()
    with open(copied / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="must be trained by one process at a time"):
            train.resume(copied)


def test_resume_damaged_checkpoint(copied):
    (copied / "result.json").unlink()
    path = copied / "checkpoints" / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunFolderError, match=r"last\.safetensors: .*damaged"):
        train.resume(copied)


def test_resume_damaged_result(copied):
    (copied / "result.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"result\.json: .*got other fields"):
        train.resume(copied)


@pytest.mark.parametrize("file", ["model.safetensors", "checkpoints/last.safetensors"])
def test_no_file_of_a_run_is_unpickled(copied, tmp_path, file):
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (copied / "result.json").unlink()
    (copied / file).write_bytes(pickle.dumps(Payload()))
    for use in (train.evaluate, train.resume):
        with (
            pytest.raises(RunFolderError, match="damaged")
            if (use is train.resume or file == "model.safetensors")
            else _nothing()
        ):
            use(copied)
    assert not (tmp_path / "ran").exists()


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False
