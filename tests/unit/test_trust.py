"""A file names a class: its module is imported where the user says so, and only there."""

import json
import sys

import pytest

from linrnn import SequenceModel, mixers
from linrnn.cli import main
from linrnn.errors import ArgumentError, UntrustedError
from linrnn.mixers import LRU
from linrnn.train import Config, ModelConfig, TrainConfig, load_model, run
from linrnn.train.config import from_json, to_json

SOURCE = '''
from pathlib import Path
from linrnn.mixers import LRU

Path("imported").touch()

class Mine(LRU):
    """One of somebody else."""

    def __init__(self, d_model, *, gain: float = 2.0, device=None, dtype=None):
        super().__init__(d_model, d_state=3, device=device, dtype=dtype)
        self.gain = gain
'''
PATH = "strangers_module:Mine"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run whose mixer is an import path, and of its module."""
    place = tmp_path_factory.mktemp("trust")
    (place / "strangers_module.py").write_text(SOURCE)
    patch = pytest.MonkeyPatch()
    patch.chdir(place)
    patch.syspath_prepend(place)
    model = ModelConfig(d_model=4, n_layers=2)
    loop = TrainConfig(epochs=1, batch_size=512)
    run(Config(task="digits", mixer=f"lru,{PATH}", model=model, train=loop), out=place / "run")
    patch.undo()
    _forget(place)
    return place


@pytest.fixture
def stranger(trained, monkeypatch):
    """The same in a process that has not imported the module."""
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield trained
    _forget(trained)


def _forget(place):
    sys.modules.pop("strangers_module", None)
    (place / "imported").unlink(missing_ok=True)


def imported():
    from pathlib import Path

    return Path("imported").is_file()


COMMANDS = [
    ["distill", "run"],
    ["eval", "run"],
    ["predict", "run", "x.png"],
    ["export", "run", "step.onnx"],
    ["stream", "run"],
    ["generate", "run"],
]


@pytest.mark.unchecked
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_no_verb_imports_what_a_run_names(stranger, capsys, command):
    assert main(command) == 1
    assert not imported()
    error = capsys.readouterr().err
    assert error.startswith(
        "linrnn: run/config.json: the mixer must be of a module that you import"
    )
    assert f"give --trust {PATH}, or set LINRNN_TRUST={PATH}." in error
    assert error.count("\n") == 1


@pytest.mark.unchecked
def test_resume_imports_nothing_either(stranger, capsys):
    assert main(["train", "--resume", "run"]) == 1
    assert not imported()
    assert "give --trust" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--trust", PATH]) == 0
    assert imported()


@pytest.mark.parametrize("spelling", [["--trust", PATH], [f"--trust={PATH}"]])
def test_trust_on_the_command_line(stranger, capsys, spelling):
    assert main(["eval", "run", *spelling]) == 0
    assert imported()
    assert "lru,strangers_module:Mine" in capsys.readouterr().out


def test_trust_in_the_environment(stranger, capsys, monkeypatch):
    monkeypatch.setenv("LINRNN_TRUST", f"another.one:There, {PATH}")
    assert main(["eval", "run"]) == 0
    assert imported()


@pytest.mark.unchecked
def test_another_path_of_the_environment_does_not_count(stranger, monkeypatch):
    monkeypatch.setenv("LINRNN_TRUST", "strangers_module:Other,strangers")
    with pytest.raises(UntrustedError, match="to import strangers_module runs its code"):
        load_model(stranger / "run")
    assert not imported()


def test_what_was_imported_is_known(stranger, monkeypatch):
    monkeypatch.syspath_prepend(stranger)
    mixers.load(PATH)
    model, _, config = load_model(stranger / "run")
    assert [type(m).__name__ for m in model.mixers] == ["LRU", "Mine"]
    assert config.mixer == f"lru,{PATH}"


def test_trust_in_python(stranger, monkeypatch):
    monkeypatch.syspath_prepend(stranger)
    model, _, _ = load_model(stranger / "run", trust=True)
    assert [type(m).__name__ for m in model.mixers] == ["LRU", "Mine"]


@pytest.mark.unchecked
def test_what_is_trusted_must_be_there(stranger, capsys, monkeypatch):
    monkeypatch.chdir(stranger / "run")
    assert main(["eval", ".", "--trust", PATH]) == 2
    assert "must be a module that can be imported" in capsys.readouterr().err
    assert main(["eval", ".", "--trust"]) == 2
    assert "--trust must be followed by" in capsys.readouterr().err


def test_the_options_of_a_class_on_the_command_line(stranger, monkeypatch, capsys):
    heard = []
    monkeypatch.setattr("linrnn.train.run", lambda config, **_: heard.append(config) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "digits", "--mixer", PATH, "--mixer.gain", "3"])
    assert (heard[0].mixer, heard[0].mixer_options) == (PATH, {"gain": 3.0})
    both = f"attention,{PATH},attention"
    args = ["--mixer.Mine.gain", "4", "--mixer.attention.n-heads", "2", "--model.n-layers", "3"]
    with pytest.raises(ZeroDivisionError):
        main(["train", "digits", "--mixer", both, *args])
    assert heard[1].mixer == both
    assert heard[1].mixer_options["Mine"] == {"gain": 4.0}
    assert heard[1].mixer_options["attention"]["n_heads"] == 2
    with pytest.raises(SystemExit):
        main(["train", "digits", "--mixer", both, "--help"])
    assert "--mixer.Mine.gain FLOAT" in capsys.readouterr().out


def test_a_configuration_keeps_a_text():
    config = Config(task="digits", mixer=(LRU(64, d_state=5), "attention"))
    assert config.mixer == "lru,attention"
    assert config.mixer_options["lru"]["d_state"] == 5
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    model = SequenceModel(1, 2, mixer=config.mixer, mixer_options=config.mixer_options)
    assert [m.d_state for m in model.mixers[::2]] == [5, 5]


@pytest.mark.unchecked
def test_a_configuration_says_why_it_cannot_keep_a_class():
    class Here(LRU):
        """A class defined inside a function."""

    with pytest.raises(ArgumentError, match="must be a class at the top of a module"):
        Config(task="digits", mixer=Here)
    with pytest.raises(ArgumentError, match="must have d_model=64, got 8"):
        Config(task="digits", mixer=LRU(8))
    with pytest.raises(ArgumentError, match=r"must be a name, an import path, .* got 3"):
        Config(task="digits", mixer=3)


def test_a_model_of_transformers(stranger, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM

    monkeypatch.syspath_prepend(stranger)
    own = {"Mine": {"gain": 3.0}}
    config = LinrnnConfig(vocab_size=5, mixer=("lru", PATH), mixer_options=own, d_model=4)
    assert config.mixer == f"lru,{PATH}"
    LinrnnForCausalLM(config).save_pretrained(tmp_path)
    assert LinrnnForCausalLM.from_pretrained(tmp_path).model.mixers[1].gain == 3.0
    _forget(stranger)
    for trust in ({}, {"trust_remote_code": False}):
        with pytest.raises(UntrustedError, match="LINRNN_TRUST"):
            LinrnnForCausalLM.from_pretrained(tmp_path, **trust)
    assert not imported()
    told = LinrnnForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert told.model.mixers[3].gain == 3.0
    _forget(stranger)
    monkeypatch.setenv("LINRNN_TRUST", PATH)
    assert LinrnnForCausalLM.from_pretrained(tmp_path).model.mixers[1].gain == 3.0
