"""Former names of entries go wherever a name does, and are listed nowhere."""

import importlib
import json
import pickle
import re
from dataclasses import replace

import pytest
import torch

from linrnn import RNN, SequenceModel, learn, mixers
from linrnn._options.catalogue import aliases
from linrnn._options.import_path import import_class
from linrnn.backbone.pattern import check_stored, label
from linrnn.cli import main
from linrnn.errors import UnknownNameError
from linrnn.train import Config, ModelConfig, TrainConfig, load_model, run
from linrnn.train.config import from_json, to_json
from linrnn.train.styles import place_of

MIXERS = {"flash": "FLASH", "i_rnn": "IRNN", "ran": "RAN"}
LEARNERS = {"lra": "LRA"}
FORMER = [(mixers, *of_mixer) for of_mixer in MIXERS.items()]
FORMER += [(learn, *of_learner) for of_learner in LEARNERS.items()]
each = pytest.mark.parametrize(("catalogue", "alias", "class_name"), FORMER)
each_mixer = pytest.mark.parametrize(("alias", "class_name"), MIXERS.items())
SMALL = ModelConfig(d_model=8, n_layers=1)


def test_these_are_all():
    assert set(aliases("linrnn.mixers")) == set(MIXERS)
    assert set(aliases("linrnn.learn")) == set(LEARNERS)
    assert aliases("linrnn.tasks") == {}


@each
def test_it_is_declared_on_the_class_and_listed_once(catalogue, alias, class_name, capsys):
    cls = catalogue.load(alias)
    today = cls.__module__.rpartition(".")[2]
    assert alias in cls.aliases
    assert catalogue.load(today) is cls
    assert alias not in catalogue.names()
    assert catalogue.names().count(today) == 1
    assert main(["list", "mixers" if catalogue is mixers else "learners"]) == 0
    (line,) = re.findall(rf"^ *{today} .*$", out := capsys.readouterr().out, re.MULTILINE)
    assert ", not " in line  # what it might be taken for
    assert not re.search(rf"^ *{alias} ", out, re.MULTILINE)


@each
def test_modules_and_classes_are_found_by_it(catalogue, alias, class_name):
    cls = catalogue.load(alias)
    module = importlib.import_module(f"{catalogue.__name__}.{alias}")
    assert getattr(module, class_name) is cls
    assert getattr(module, cls.__name__) is cls
    assert module.__doc__ == importlib.import_module(cls.__module__).__doc__
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018
    # as a pickle of an earlier checkout names it
    line = f"c{catalogue.__name__}.{alias}\n{class_name}\n."
    assert pickle.loads(line.encode()) is cls  # noqa: S301  it was written here
    if catalogue is mixers:
        assert getattr(mixers, class_name) is cls
        path = f"linrnn.mixers.{alias}:{class_name}"
        check_stored("a file", path)
        assert import_class("mixer", path, mixers.Mixer) is cls


@each_mixer
def test_models_and_configurations_take_it(alias, class_name):
    cls = mixers.load(alias)
    today = label(cls)
    torch.manual_seed(0)
    first = SequenceModel(3, 2, mixer=f"lru,{alias}", d_model=8, n_layers=2)
    torch.manual_seed(0)
    second = SequenceModel(3, 2, mixer=f"lru,{today}", d_model=8, n_layers=2)
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 9, 3)
    assert torch.equal(first.eval()(x)[0], second.eval()(x)[0])
    assert isinstance(RNN(alias, 3, 8).cells[0].mixer, cls)
    assert label(alias) == today
    config = Config(task="digits", mixer=f"2*lru,{alias}", model=replace(SMALL, n_layers=3))
    assert config.mixer == f"2*lru,{today}"
    stored = json.loads(json.dumps(to_json(config)).replace(today, alias))
    assert from_json(stored) == config
    assert place_of(alias) == place_of(today) == place_of(class_name)


def test_its_options_go_to_todays_mixer():
    options = {"flash": {"chunk": 3}, "gau": {"d_key": 4}}
    model = SequenceModel(3, 2, mixer="flash,gau", mixer_options=options, d_model=8, n_layers=2)
    assert [model.mixers[0].chunk, model.mixers[1].d_key] == [3, 4]
    model = SequenceModel(3, 2, mixer="flash_gau", mixer_options={"flash": {"chunk": 3}}, d_model=8)
    assert {mixer.chunk for mixer in model.mixers} == {3}
    config = Config(task="digits", mixer="gau,flash", mixer_options=options)
    assert config.mixer_options == {"flash_gau": {"chunk": 3}, "gau": {"d_key": 4}}


def test_a_learner_of_a_configuration():
    config = Config(task="digits", learner="lra", learner_options={"window": 4})
    assert config.learner == "local_representation_alignment"
    assert learn.build("lra", {"window": 4}).window == 4


def test_a_run_of_an_earlier_checkout_is_read(tmp_path, monkeypatch):
    """Its configuration names the mixer as it was called."""
    config = Config(
        task="digits",
        mixer="incremental_rnn",
        model=SMALL,
        train=TrainConfig(epochs=1, batch_size=512, threads=1),
    )
    # what an earlier checkout wrote, seals included
    monkeypatch.setattr(
        "linrnn.train.folder.to_json",
        lambda config: json.loads(json.dumps(to_json(config)).replace("incremental_rnn", "i_rnn")),
    )
    folder = run(config, out=tmp_path / "run").folder
    assert '"i_rnn"' in (tmp_path / "run" / "config.json").read_text()
    monkeypatch.undo()
    model, _, read = load_model(folder)
    assert read == config
    assert isinstance(model.mixers[0], mixers.load("incremental_rnn"))


@pytest.mark.parametrize("name", ["flash", "Flash", "i-rnn", "iRNN", "lra", "RAN"])
def test_the_command_line_takes_it(name, capsys):
    assert main(["show", name]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    known = aliases("linrnn.mixers") | aliases("linrnn.learn")
    assert (
        known[{"flash": "flash", "irnn": "i_rnn"}.get(name.lower().replace("-", ""), name.lower())]
        in title
    )


def test_runs_of_the_command_line_take_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--model.d-model", "8", "--model.n-layers", "2", "--train.batch-size", "512"]
    words = ["--mixer", "gau,FLASH", "--mixer.flash.chunk", "5", "--train.epochs", "1"]
    assert main(["train", "digits", *small, *words, "--out", "run"]) == 0
    _, _, config = load_model("run")
    assert config.mixer == "gau,flash_gau"
    assert config.mixer_options["flash_gau"]["chunk"] == 5
    assert main(["check", "flash:chunk=3", "--property", "edges"]) == 0


def test_a_package_may_have_the_name(monkeypatch):
    from importlib.metadata import EntryPoint

    theirs = EntryPoint("flash", "linrnn.mixers.lru:LRU", "linrnn.mixers")
    monkeypatch.setattr(
        "linrnn._options.catalogue.entry_points",
        lambda *, group: [theirs] if group == theirs.group else [],
    )
    monkeypatch.syspath_prepend("/nowhere")  # what is registered is looked up once a path
    assert mixers.load("flash") is mixers.LRU
    assert "flash" not in aliases("linrnn.mixers")
    assert "flash" in mixers.names()


def test_nothing_else_is_found():
    with pytest.raises(UnknownNameError, match="no mixer named 'flush'"):
        mixers.load("flush")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("linrnn.mixers.flush")
