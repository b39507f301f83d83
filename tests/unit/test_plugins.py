"""Packages register mixers and tasks by entry points."""

import sys

import pytest
import torch

from linrnn import RNN, SequenceModel, mixers, tasks
from linrnn.backbone.pattern import stored
from linrnn.cli import main
from linrnn.errors import LinrnnError, UnknownNameError
from linrnn.train import Config

MODULE = '''
from dataclasses import dataclass

import torch
from torch.utils.data import TensorDataset

from linrnn.mixers import LRU
from linrnn.tasks import Splits, Task


class TheirMixer(LRU):
    """A mixer of a package that is not linrnn."""

    family = "borrowed"

    def __init__(self, d_model, *, gain: float = 2.0, device=None, dtype=None):
        super().__init__(d_model, d_state=3, device=device, dtype=dtype)
        self.gain = gain


class TheirTask(Task):
    """Whether the sum is positive."""

    summary = "a task of a package that is not linrnn"
    metric = "accuracy"
    chance = 0.5
    d_input, d_output = 1, 2
    sequence_length = 4
    kind = "classification"

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """None."""

    def datasets(self):
        x = torch.randn(64, 4, 1, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, (x.sum((1, 2)) > 0).long())
        return Splits(data, data, data)


NO_CLASS = 3
'''


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Install a package of these entry points."""
    number = iter(range(9))

    def install(*, mixers="", tasks="", module=MODULE):
        n = next(number)
        site = tmp_path / str(n)
        info = site / f"theirs{n}-1.{n}.dist-info"
        info.mkdir(parents=True)
        (site / f"theirs{n}.py").write_text(module)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: theirs{n}\nVersion: 1.{n}\n")
        groups = f"[linrnn.mixers]\n{mixers}\n[linrnn.tasks]\n{tasks}\n"
        (info / "entry_points.txt").write_text(groups.replace("MODULE", f"theirs{n}"))
        monkeypatch.syspath_prepend(site)
        return f"theirs{n}"

    yield install
    for name in [name for name in sys.modules if name.startswith("theirs")]:
        del sys.modules[name]


@pytest.fixture
def theirs(distribution):
    return distribution(mixers="theirs = MODULE:TheirMixer", tasks="their_task = MODULE:TheirTask")


def test_a_registered_mixer_goes_by_its_name_everywhere(theirs, capsys):
    assert theirs not in sys.modules
    assert "theirs" in mixers.names()
    assert theirs not in sys.modules, "finding it imports it"
    assert mixers.load("theirs").__name__ == "TheirMixer"
    assert mixers.build("theirs", 4, {"gain": 1.0}).gain == 1.0
    model = SequenceModel(1, 2, mixer="theirs,gru", d_model=4, n_layers=2)
    assert type(model.mixers[0]) is mixers.load("theirs")
    assert RNN("theirs", 3, 4)(torch.zeros(5, 3))[0].shape == (5, 4)
    assert stored(mixers.load("theirs"), {}, 4) == ("theirs", {})
    assert main(["list", "mixers"]) == 0
    out = capsys.readouterr().out
    assert "\nborrowed\n  theirs  " in out
    assert "A mixer of a package that is not linrnn." in out
    assert main(["show", "theirs"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"mixer theirs: {theirs}.TheirMixer\n")
    assert "gain     float" in out


def test_a_registered_task_is_trained_on(theirs, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "their_task" in tasks.names()
    assert main(["list", "tasks"]) == 0
    assert "a task of a package that is not linrnn" in capsys.readouterr().out
    assert main(["show", "their_task"]) == 0
    small = ["--model.d-model", "4", "--train.epochs", "1", "--mixer", "theirs"]
    assert main(["train", "their_task", *small, "--mixer.gain", "3"]) == 0
    assert main(["eval", "runs/their_task-theirs-1"]) == 0
    assert "their_task, theirs, seed 0" in capsys.readouterr().out


BROKEN = "import nothing_that_is_there\n"
EXITING = "raise SystemExit(3)\n"


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("entry", "module", "message"),
    [
        ("MODULE:TheirMixer", BROKEN, "must be importable, got ModuleNotFoundError: No module"),
        ("MODULE:TheirMixer", EXITING, "must be importable, got SystemExit: 3"),
        ("MODULE:NothingThere", MODULE, "must be importable, got AttributeError"),
        ("MODULE:NO_CLASS", MODULE, "must be a class derived from Mixer"),
        ("MODULE:TheirTask", MODULE, "must be a class derived from Mixer"),
    ],
)
def test_a_broken_package_breaks_itself_alone(distribution, capsys, entry, module, message):
    package = distribution(mixers=f"theirs = {entry}", module=module)
    number = package.removeprefix("theirs")
    owner = rf"linrnn\.mixers: the mixer 'theirs' of {package} 1\.{number} \({package}:"
    with pytest.raises(LinrnnError, match=f"{owner}.*{message}"):
        mixers.load("theirs")
    assert main(["list"]) == 0
    assert message in capsys.readouterr().out
    assert main(["show", "lru"]) == 0
    assert SequenceModel(1, 2, mixer="lru", d_model=4).mixers
    assert Config(task="digits")
    capsys.readouterr()
    assert main(["show", "theirs"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.unchecked
def test_a_name_of_two_is_an_error_that_names_both(distribution, capsys):
    package = distribution(mixers="lru = MODULE:TheirMixer", tasks="digits = MODULE:TheirTask")
    with pytest.raises(
        LinrnnError,
        match=rf"'lru' must be that of one mixer, got those of linrnn and {package} 1\.0 \(",
    ):
        SequenceModel(1, 2, mixer="lru")
    with pytest.raises(LinrnnError, match="'digits' must be that of one task, got those of linrnn"):
        Config(task="digits")
    assert main(["list"]) == 0
    assert "must be that of one mixer" in capsys.readouterr().out
    assert mixers.LRU.__module__ == "linrnn.mixers.lru"
    assert SequenceModel(1, 2, mixer="gru").mixers


@pytest.mark.unchecked
def test_two_packages_of_one_name(distribution):
    for _ in range(2):
        distribution(mixers="theirs = MODULE:TheirMixer")
    with pytest.raises(LinrnnError, match=r"those of theirs0 1\.0 .* and theirs1 1\.1"):
        mixers.load("theirs")


def test_what_is_not_installed_any_more_is_not_there(theirs, monkeypatch):
    assert "theirs" in mixers.names()
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "test_what_is_not_inst" not in p])
    assert "theirs" not in mixers.names()
    with pytest.raises(UnknownNameError):
        mixers.load("theirs")


def test_names_that_a_command_line_cannot_hold_are_left_out(distribution):
    distribution(mixers="a,b = MODULE:TheirMixer\n_hidden = MODULE:TheirMixer")
    assert [name for name in mixers.names() if not name[0].isalpha() or "," in name] == []
