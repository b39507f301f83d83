"""A run folder of a stranger: links, pipes and devices in it lead nowhere and hold nobody up."""

import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from odd_paths import KINDS, LINKS, OTHERS, replace_by, untouched

from linrnn import state, train
from linrnn._files.storage import exclusive
from linrnn.cli import main
from linrnn.compare import Entry, compare
from linrnn.errors import RunFolderError
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import read_metrics

pytestmark = pytest.mark.unchecked

LAST, MODEL = "checkpoints/last.safetensors", "model.safetensors"
READ = ("config.json", MODEL, "tokenizer.json", "text.json")
RESUMED = (*READ, "result.json", LAST, ".lock")
COMMANDS = {
    "distill": READ,
    "eval": READ,
    "generate": READ,
    "stream": READ,
    "export": READ,
    "predict": READ,
    "train": RESUMED,
}
MASK = 0o027


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A language model's run, which has every kind of file, made under a umask of its own."""
    place = tmp_path_factory.mktemp("runs")
    (place / "a.txt").write_text("to be or not to be " * 40)
    config = Config(
        task="lm",
        mixer_options={"d_state": 2},
        model=ModelConfig(d_model=4, n_layers=1, norm="layer", pool="none"),
        train=TrainConfig(epochs=2, batch_size=4),
    )
    options = replace(config.task_options, data=(str(place / "a.txt"),), length=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINRNN_DATA", str(place / "data"))
        patch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
        mask = os.umask(MASK)
        try:
            train.run(replace(config, task_options=options), out=place / "run")
        finally:
            os.umask(mask)
        yield place


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def arguments(command, run):
    """The words of a command, which must not get to where it does anything."""
    words = {
        "train": ["train", "--resume", str(run)],
        "generate": ["generate", str(run), "--max-new-tokens", "1", "--prompt", "t"],
        "predict": ["predict", str(run), str(run / "rows.csv")],
        "export": ["export", str(run), str(run.parent / "a.onnx")],
    }
    return words.get(command, [command, str(run)])


def refused(command, run, capsys, elsewhere, naming):
    """The one line that a command ends with."""
    with untouched(elsewhere):
        assert main(arguments(command, run)) == 1
    error = capsys.readouterr().err
    assert error.startswith("linrnn: ")
    assert error.count("\n") == 1
    assert str(naming) in error
    return error


SOME = ("link outside", "pipe", "device", "missing")
WORDS = {
    "pipe": "a named pipe",
    "socket": "a socket",
    "device": "a device",
    "folder": "a folder",
    "unreadable": "Permission denied",
}


@pytest.mark.parametrize(
    ("command", "file", "kind"),
    [
        (command, file, kind)
        for command, files in COMMANDS.items()
        for file in files
        # the others read a run as `eval` does
        for kind in ((*KINDS, "missing") if command in ("eval", "train") else SOME)
    ],
)
def test_command_refuses_what_is_no_file_of_the_run(
    run, tmp_path, monkeypatch, capsys, command, file, kind
):
    if command == "train" and file != "result.json":
        (run / "result.json").unlink()
    if kind == "missing" and file in ("result.json", ".lock"):
        pytest.skip("it need not be there")
    replace_by(kind, run / file, tmp_path / "elsewhere", monkeypatch)
    naming = run if kind == "missing" or file == ".lock" else run / file
    error = refused(command, run, capsys, tmp_path / "elsewhere", naming)
    if kind != "missing":
        assert WORDS.get(kind, "a symbolic link, which is not followed") in error


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unreadable"])
@pytest.mark.parametrize("file", ["metrics.csv", "environment.json", "curves.png"])
def test_what_is_written_anew_takes_the_place_of_a_link(run, tmp_path, monkeypatch, file, kind):
    (run / "result.json").unlink()
    replace_by(kind, run / file, tmp_path / "elsewhere", monkeypatch)
    with untouched(tmp_path / "elsewhere", seconds=20):
        if kind == "folder" and file != "curves.png":
            with pytest.raises(RunFolderError, match=rf"{file}: the file must be writable, got"):
                train.resume(run)
            return
        train.resume(run)
    assert (run / "result.json").is_file()
    if file != "curves.png":  # no plots are drawn here
        assert stat.S_ISREG((run / file).lstat().st_mode)


def test_lock_that_is_a_link_empties_no_file(run, tmp_path, capsys):
    (run / "result.json").unlink()
    (run / ".lock").unlink()
    (tmp_path / "mine").write_text("dear")
    (run / ".lock").symlink_to(tmp_path / "mine")
    for words in (["train", "--resume", str(run)], ["train", "lm", "--out", str(run)]):
        assert main(words) != 0
        assert (tmp_path / "mine").read_text() == "dear"
    assert ".lock: the lock must be a regular file, got a symbolic link" in capsys.readouterr().err


def test_lock_keeps_what_its_file_holds(tmp_path):
    (tmp_path / "mine").write_text("dear")
    with exclusive(tmp_path / "mine"), pytest.raises(BlockingIOError), exclusive(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").read_text() == "dear"


@pytest.fixture
def others(tmp_path):
    """A folder of somebody else, with names that a run would read, replace or remove."""
    folder = tmp_path / "others"
    (folder / "tensorboard").mkdir(parents=True)
    for name in ("last", "previous", "epoch", "best"):
        (folder / f"{name}.safetensors").write_bytes(b"mine")
        (folder / f".{name}.safetensors.ab12cd34").write_bytes(b"mine")
    return folder


@pytest.mark.parametrize("below", ["checkpoints", "tensorboard"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "pipe"])
def test_folder_in_a_run_that_leads_elsewhere(run, others, capsys, below, kind):
    (run / "result.json").unlink()
    shutil.rmtree(run / below)
    if kind == "file":
        (run / below).write_bytes(b"")
    elif kind == "pipe":
        os.mkfifo(run / below)
    else:
        (run / below).symlink_to(others if kind == "link" else others / "none")
    for flag in ([], ["--fallback"], ["--on-nan", "rollback"]):
        with untouched(others):
            assert main(["train", "--resume", str(run), *flag]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"linrnn: {run / below}: it must be a folder of the run, got: ")
        assert error.count("\n") == 1


def test_checkpoints_that_become_a_link_while_training(made, tmp_path, others):
    """After every check: what is written next lands nowhere else."""
    out = tmp_path / "run"

    class Swap(train.Reporter):
        def epoch_done(self, report):
            (out / "checkpoints").rename(out / "moved")
            (out / "checkpoints").symlink_to(others)

    config = RunFolder(made / "run").load_config()
    with untouched(others, seconds=20), pytest.raises(RunFolderError, match="a symbolic link"):
        train.run(config, out=out, reporter=Swap())


@pytest.mark.parametrize("file", ["previous", "best"])
def test_fallback_follows_no_link(run, tmp_path, capsys, file):
    (run / "result.json").unlink()
    (run / LAST).write_bytes(b"")
    whole = tmp_path / "elsewhere" / "whole.safetensors"
    whole.parent.mkdir()
    shutil.copy(run / "checkpoints" / "best.safetensors", whole)
    for name in ("previous", "best"):
        (run / "checkpoints" / f"{name}.safetensors").unlink()
    (run / "checkpoints" / f"{file}.safetensors").symlink_to(whole)
    with untouched(tmp_path / "elsewhere"):
        assert main(["train", "--resume", str(run), "--fallback"]) == 1
    assert "last.safetensors: the file must be as it was written" in capsys.readouterr().err


def test_run_given_by_a_link_is_followed(run, tmp_path, capsys):
    (tmp_path / "link").symlink_to(run, target_is_directory=True)
    (run / "result.json").unlink()
    assert main(["train", "--resume", str(tmp_path / "link")]) == 0
    assert main(["generate", str(tmp_path / "link"), "--max-new-tokens", "1"]) == 0
    assert (run / "result.json").is_file()


def metrics(run):
    return read_metrics(RunFolder(run))


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", MODEL, "tokenizer.json"])
def test_file_of_terabytes_is_not_read(run, tmp_path, name):
    with open(run / name, "r+b") as file:
        file.truncate(8 << 40)  # a hole
    (tmp_path / "elsewhere").mkdir()
    read = train.load_model if name != "metrics.csv" else metrics
    with untouched(tmp_path / "elsewhere"), pytest.raises(RunFolderError, match=name):
        read(run)


@pytest.fixture
def entry():
    config = Config(task="digits", model=ModelConfig(d_model=2, n_layers=1))
    return Entry(label="lru", config=replace(config, train=TrainConfig(epochs=1)))


@pytest.mark.parametrize("kind", [*LINKS, *OTHERS])
@pytest.mark.parametrize("name", [".lru-seed0.lock", "lru-seed0/failure.txt", "lru-seed0/.lock"])
def test_comparison_refuses_what_is_no_file_of_it(entry, tmp_path, monkeypatch, name, kind):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    replace_by(kind, out / name, elsewhere, monkeypatch)
    with untouched(elsewhere), pytest.raises(RunFolderError) as caught:
        compare([entry], seeds=[0], out=out)
    assert str(out / (name if kind != "unreadable" else "")) in str(caught.value)


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_run_of_a_comparison_that_lies_elsewhere(entry, run, tmp_path, kind):
    out = tmp_path / "out"
    out.mkdir()
    if kind == "file":
        (out / "lru-seed0").write_bytes(b"")
    else:
        (out / "lru-seed0").symlink_to(run if kind == "link" else run / "none")
    with (
        untouched(run),
        pytest.raises(RunFolderError, match="the run must lie in the folder of the comparison"),
    ):
        compare([entry], seeds=[0], out=out)


def test_files_are_made_with_what_the_umask_leaves(made):
    found = {}
    for place in (made / "run", made / "data" / "tokens"):
        for path in place.rglob("*"):
            found[str(path.relative_to(made))] = stat.S_IMODE(path.stat().st_mode)
    assert {"run/config.json", "run/.lock", f"run/{MODEL}", f"run/{LAST}"} <= set(found)
    assert any(name.startswith("data/tokens/") and name.endswith(".bin") for name in found)
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (0o777 if (made / name).is_dir() else 0o666) & ~MASK
    }
    assert wrong == {}


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002, 0])
def test_file_that_is_replaced_gets_the_mode_of_now(tmp_path, mask):
    path = tmp_path / "state"
    path.write_bytes(b"")
    path.chmod(0o644)
    before = os.umask(mask)
    try:
        state.save({"h": torch.zeros(1)}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
