"""An option of a model is in the constructor of SequenceModel, and so everywhere."""

import dataclasses
import inspect
import json

import pytest
import torch

from linrnn import SequenceModel
from linrnn._options.declared import SET_BY_THE_TASK
from linrnn.backbone import model_options
from linrnn.cli import main
from linrnn.errors import ArgumentError
from linrnn.train import Config, ModelConfig, load_model
from linrnn.train.config import from_json, to_json

# of every module of PyTorch, and what is no option of the stack but of what stands in it
NO_OPTIONS = {"device", "dtype", "mixer", "mixer_options", "block_options", *SET_BY_THE_TASK}
OPTIONS = [n for n in inspect.signature(SequenceModel).parameters if n not in NO_OPTIONS]


def test_a_configuration_has_every_option_of_the_constructor():
    parameters = inspect.signature(SequenceModel).parameters
    fields = {f.name: f for f in dataclasses.fields(ModelConfig)}
    assert list(fields) == OPTIONS
    differ = {n for n in OPTIONS if fields[n].default != parameters[n].default}
    assert differ == {"dropout"}
    assert all(fields[n].type == parameters[n].annotation for n in OPTIONS)


def test_a_model_of_transformers_has_them_too():
    pytest.importorskip("transformers")
    from linrnn.interop._hf_config import KEYS
    from linrnn.interop.hf import LinrnnConfig

    fields = {f.name for f in dataclasses.fields(LinrnnConfig)}
    # one output a step, read forward
    own = {"tie_embeddings": "tie_word_embeddings"}
    wanted = {own.get(n, n) for n in OPTIONS} - {"pool", "bidirectional"}
    assert wanted <= fields
    assert wanted <= set(KEYS)
    handed = set(LinrnnConfig(vocab_size=3).options())
    parts = {"mixer", "mixer_options", "block_options"}
    assert handed == {*OPTIONS, *parts} - {"pool", "bidirectional"}


def test_the_command_line_has_them_with_their_words(capsys):
    with pytest.raises(SystemExit):
        main(["train", "digits", "--help"])
    out = capsys.readouterr().out
    page = " ".join(out.replace("│", " ").split())
    for option in model_options(dropout=0.1):
        assert f"--model.{option.name.replace('_', '-')} " in page.replace(",", " "), option.name
        assert len(option.help) > 10, f"{option.name} is not described"
        assert " ".join(option.help.split()[:4]) in page, option.name


CHANGED = {
    "d_model": 6,
    "n_layers": 2,
    "tiers": (3, 2),
    "expand": 3,
    "unet": True,
    "norm": "layer",
    "norm_eps": 0.25,
    "prenorm": False,
    "out_norm": ("lru",),
    "skip_scale": 0.5,
    "skip": False,
    "dropout": 0.5,
    "block": "channel_mix",
    "block_pattern": ("mlp", "bare"),
    "residual_scale": 0.25,
    "conv_width": 3,
    "d_ffn": 5,
    "bidirectional": True,
    "pool": "last",
    "encoder_norm": True,
    "encoder_scale": 2.5,
    "final_norm": True,
    "head_bias": False,
    "head_scale": 0.25,
    "logit_soft_cap": 30.0,
    "tie_embeddings": True,
    "identity_ends": "in",
    "ends_init": "rwkv",
}


class StartedError(Exception):
    """In the place of a run."""


@pytest.mark.unchecked
@pytest.mark.parametrize("option", OPTIONS)
def test_what_the_command_line_says_reaches_the_model(option, monkeypatch):
    heard = []

    def run(config, **_):
        heard.append(config)
        raise StartedError

    monkeypatch.setattr("linrnn.train.run", run)
    value, flag = CHANGED[option], f"--model.{option.replace('_', '-')}"
    words = [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    words = words[:1] if isinstance(value, bool) else words
    words += ["--model.tiers", "2"] if option == "unet" else []
    if value is False:
        words = [f"--model.no-{option.replace('_', '-')}"]
    with pytest.raises(StartedError):
        main(["train", "digits", *words])
    assert getattr(heard[0].model, option) == value
    back = from_json(json.loads(json.dumps(to_json(heard[0]))))
    assert back == heard[0]
    built = {}
    monkeypatch.setattr("linrnn.train.model.SequenceModel", lambda *_, **all: built.update(all))
    from linrnn.train.model import build_model, build_task

    build_model(back, build_task(back))
    assert built[option] == value
    assert built.keys() >= {*OPTIONS, "mixer", "mixer_options"}


@pytest.mark.parametrize(
    "name",
    [
        *("encoder_norm", "norm_eps", "head_bias", "encoder_scale", "logit_soft_cap", "d_ffn"),
        *("tiers", "expand", "unet", "block_pattern", "residual_scale", "head_scale"),
        *("out_norm", "skip_scale"),
    ],
)
def test_runs_of_before_an_option_have_its_default(name):
    values = to_json(Config(task="digits"))
    del values["model"][name]
    assert from_json(values) == Config(task="digits")


@pytest.mark.unchecked
@pytest.mark.parametrize("eps", [0.0, -1.0, float("inf"), float("nan"), "small"])
def test_an_eps_is_checked(eps):
    with pytest.raises(ArgumentError, match=r"model\.norm_eps must be"):
        Config(task="digits", model=ModelConfig(norm_eps=eps))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "name", ["encoder_scale", "logit_soft_cap", "residual_scale", "head_scale"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), "small"])
def test_a_scale_and_a_bound_are_checked(name, value):
    with pytest.raises(ArgumentError, match=rf"model\.{name} must be"):
        Config(task="digits", model=ModelConfig(**{name: value}))
    if not isinstance(value, str):
        with pytest.raises(ArgumentError, match=f"{name} must be positive"):
            SequenceModel(1, 1, **{name: value})


PUBLISHED = {
    "mixer": "rwkv4",
    "mixer.init": "published",
    "model.block": "channel_mix",
    "model.norm": "layer",
    "model.norm-eps": "1e-5",
    "model.encoder-norm": None,
    "model.final-norm": None,
    "model.no-head-bias": None,
    "model.conv-width": "0",
    "model.dropout": "0",
}


def trained_on_text(folder, monkeypatch, options, layers):
    """A tiny language model out of the command line: the run of it, and what was read back."""
    monkeypatch.chdir(folder)
    (folder / "text.txt").write_text("How does it read, and what does it write?\n" * 60)
    words = [w for k, v in options.items() for w in (f"--{k}", v) if w is not None]
    small = ["--recipe", "none", "--model.d-model", "8", "--model.n-layers", str(layers)]
    small += ["--task.length", "16", "--train.batch-size", "32", "--train.epochs", "1"]
    data = ["--task.data", "text.txt", "--task.tokenizer", "byte", "--model.pool", "none"]
    assert main(["train", "lm", *data, *words, *small]) == 0
    (run,) = (folder / "runs").iterdir()
    return run, *load_model(run)


def test_rwkv4_as_published_is_trained_from_the_command_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    from linrnn.interop.hf import from_run, to_rwkv

    run, trained, task, config = trained_on_text(tmp_path, monkeypatch, PUBLISHED, 2)
    assert (config.model.encoder_norm, config.model.head_bias) == (True, False)
    assert trained.head.bias is None
    assert trained.encoder_norm.eps == trained.blocks[0].norm.eps == 1e-5
    ours, _ = from_run(run)
    theirs = to_rwkv(ours)
    ids = torch.as_tensor(task.tokenizer.encode("what does it").tolist())[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, trained(ids)[0], rtol=1e-4, atol=1e-5)


GRIFFIN = {
    "mixer": "2*rg_lru,attention",
    "mixer.attention.n-heads": "1",
    "mixer.attention.n-kv-heads": "1",
    "mixer.attention.d-rotary": "4",
    "mixer.attention.window": "6",
    "mixer.attention.out-bias": None,
    "mixer.attention.init": "lecun",
    "model.block": "geglu",
    "model.norm": "rms",
    "model.norm-eps": "1e-6",
    "model.final-norm": None,
    "model.no-head-bias": None,
    "model.tie-embeddings": None,
    "model.encoder-scale": "2.828125",
    "model.logit-soft-cap": "30",
}


def test_griffin_as_published_is_trained_from_the_command_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    from linrnn.interop.hf import from_run, to_recurrent_gemma

    run, trained, task, _ = trained_on_text(tmp_path, monkeypatch, GRIFFIN, 3)
    theirs = to_recurrent_gemma(from_run(run)[0])
    ids = torch.as_tensor(task.tokenizer.encode("what does it").tolist())[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, trained(ids)[0], rtol=1e-4, atol=1e-5)


XLSTM = {"mixer": "7*mlstm,slstm", "model.block": "xlstm", "model.norm": "layer"}


def test_xlstm_as_published_is_trained_from_the_command_line(tmp_path, monkeypatch, capsys):
    _, trained, _, _ = trained_on_text(tmp_path, monkeypatch, XLSTM, 8)
    assert [type(m).__name__ for m in trained.mixers] == ["MLSTM"] * 7 + ["SLSTM"]
    assert [hasattr(block, "ffn") for block in trained.blocks] == [False] * 7 + [True]
