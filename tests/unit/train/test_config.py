import json
from dataclasses import FrozenInstanceError, replace

import pytest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.tasks.digits import DigitsOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.config import from_json, to_json

BAD = [
    (lambda: Config(task="digts"), "no task named 'digts'. Did you mean 'digits'"),
    (lambda: Config(task="digits", seed=-1), "seed must be an integer of at least 0, got -1"),
    (lambda: Config(task="digits", model=ModelConfig(d_model=0)), "model.d_model must be .* got 0"),
    (lambda: Config(task="digits", model=ModelConfig(norm="btch")), "Did you mean 'batch'"),
    (lambda: Config(task="digits", model=ModelConfig(block="mpl")), "Did you mean 'mlp'"),
    (lambda: Config(task="digits", model=ModelConfig(conv_width=-1)), "at least 0, got -1"),
    (lambda: Config(task="digits", model=ModelConfig(dropout=1.0)), r"in \[0, 1\), got 1.0"),
    (lambda: Config(task="digits", model=ModelConfig(pool="none")), "mean, last for the task"),
    (lambda: Config(task="digits", optim=OptimConfig(lr=0.0)), "optim.lr must be above 0, got 0.0"),
    (
        lambda: Config(task="digits", optim=OptimConfig(lr=1e-322)),
        "lr must be finite, and at",
    ),
    (lambda: Config(task="digits", optim=OptimConfig(lr=float("nan"))), "lr must be a finite"),
    (lambda: Config(task="digits", optim=OptimConfig(clip=-1.0)), "optim.clip must be at least 0"),
    (lambda: Config(task="digits", optim=OptimConfig(betas=(0.9, 1.0))), "two numbers in"),
    (lambda: Config(task="digits", optim=OptimConfig(lr=0.1, min_lr=0.2)), r"in \[0, optim.lr\]"),
    (lambda: Config(task="digits", optim=OptimConfig(warmup_fraction=2)), "warmup_fraction must"),
    (lambda: Config(task="digits", train=TrainConfig(epochs=0)), "train.epochs must be .* got 0"),
    (lambda: Config(task="digits", train=TrainConfig(threads=0)), "train.threads must be .* got 0"),
    (lambda: Config(task="digits", train=TrainConfig(precision="16")), "Known: 32-true, 64-true"),
    (lambda: Config(task="digits", train=TrainConfig(device="cpux")), "Did you mean 'cpu'"),
    (lambda: Config(task="digits", train=TrainConfig(checkpoint_minutes=0)), "above 0, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("make", "message"), BAD)
def test_config_names_what_is_wrong(make, message):
    with pytest.raises((ArgumentError, UnknownNameError), match=message) as caught:
        make()
    assert caught.value.exit_code == 2


def test_config_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Config(task="digits").seed = 3


def test_json_round_trip_keeps_types():
    config = Config(
        task="digits",
        seed=5,
        mixer_options={"d_state": None, "r_min": 0.1},
        task_options=DigitsOptions(shift=0),
        optim=OptimConfig(lr=1e-17, betas=(0.5, 0.75)),
        train=TrainConfig(threads=3),
    )
    back = from_json(json.loads(json.dumps(to_json(config))))
    assert back == config
    assert isinstance(back.optim.betas, tuple)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("optim", "lrr", 1.0, "no option named 'optim.lrr'. Did you mean 'optim.lr'"),
        ("optim", "lr", "fast", "optim.lr must be float, got 'fast'"),
        ("train", "epochs", 1.5, "train.epochs must be int, got 1.5"),
        ("train", "epochs", True, "train.epochs must be int, got True"),
        (
            "train",
            "device",
            "tpu",
            "no Config train.device named 'tpu'. Did you mean 'gpu'?",
        ),
        ("task_options", "shif", 1, "Did you mean 'task_options.shift'"),
    ],
)
def test_from_json_names_what_is_wrong(part, name, value, message):
    values = to_json(Config(task="digits"))
    values[part][name] = value
    with pytest.raises((ArgumentError, UnknownNameError), match=message):
        from_json(values)


@pytest.mark.unchecked
def test_from_json_names_what_is_missing():
    values = to_json(Config(task="digits"))
    del values["model"]["norm"]
    with pytest.raises(ArgumentError, match=r"model\.norm must be given, got nothing"):
        from_json(values)


def test_config_fills_in_the_tasks_options():
    assert Config(task="digits").task_options == DigitsOptions()
    changed = replace(Config(task="digits"), task_options=DigitsOptions(shift=2))
    assert changed.task_options.shift == 2


def test_importing_the_configuration_is_light(python):
    found = python(
        "import sys, linrnn.train\n"
        "result = [m for m in ('lightning', 'matplotlib', 'sklearn', 'tensorboard', 'torch')"
        " if m in sys.modules]"
    )
    assert found == []
