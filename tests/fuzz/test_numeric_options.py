"""Every numeric option, at every number that is no size: refused in words, or a configuration."""

import argparse
import dataclasses
import importlib
import inspect
import shutil
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import sealed
import torch
from fuzzing import quick_and_small

from linrnn import cli, mixers, tasks
from linrnn.errors import InterruptedRunError, LinrnnError
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.data import check_memory, check_order
from linrnn.train.model import build_model, build_task

pytestmark = pytest.mark.unchecked

NUMBERS = ("0", "1", "-1", str(2**31), str(2**63), str(10**30), "1" + "0" * 400)
FLOATS = (*NUMBERS, "nan", "inf", "1e320", "-1e320", "1e-320", "-1e-320")
NOT_OPTIONS = ("self", "d_model", "layer", "n_layers", "receives", "device", "dtype")
MEMORY = 1 << 24


def kinds(hint: Any) -> tuple[type, ...]:
    """The types of number that an annotation takes."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType, tuple) else (hint,)
    return tuple(kind for kind in (int, float) if kind in parts)


def options() -> list[tuple[str, str, Any]]:
    """Where, name and annotation of every numeric option there is."""
    groups: dict[str, dict[str, Any]] = {"config": {"seed": int}}
    for name, cls in (("model", ModelConfig), ("optim", OptimConfig), ("train", TrainConfig)):
        groups[name] = get_type_hints(cls)
    groups |= {f"task {name}": get_type_hints(tasks.load(name).Options) for name in tasks.names()}
    for name in mixers.names():
        hints = get_type_hints(mixers.load(name).__init__)
        known = inspect.signature(mixers.load(name).__init__).parameters
        groups[f"mixer {name}"] = {k: hints[k] for k in known if k not in NOT_OPTIONS}
    return [(g, name, h) for g, hints in groups.items() for name, h in hints.items() if kinds(h)]


def values(hint: Any) -> list[Any]:
    """Values that the command line makes of numbers; it refuses the others itself."""
    found = []
    for kind in kinds(hint):
        for text in FLOATS if kind is float else NUMBERS:
            number = float(text) if kind is float else int(text)
            found.append((number, number) if get_origin(hint) is tuple else number)
    return found


def configured(group: str, name: str, value: Any) -> Config:
    """A small configuration in which one option has a value."""
    kind, _, entry = group.partition(" ")
    start = Config(
        task=entry if kind == "task" else "reverse",
        mixer=entry if kind == "mixer" else "lru",
        model=ModelConfig(
            d_model=4,
            n_layers=1,
            pool=tasks.load(entry if kind == "task" else "reverse").pools[0],
        ),
    )
    if kind == "mixer":
        return dataclasses.replace(start, mixer_options={name: value})
    if kind == "config":
        return dataclasses.replace(start, **{name: value})
    part = "task_options" if kind == "task" else kind
    changed = dataclasses.replace(getattr(start, part), **{name: value})
    return dataclasses.replace(start, **{part: changed})


def use(config: Config) -> None:
    """All that a run does before its first step; of a task that is drawn, an example too."""
    task = build_task(config)
    model = build_model(config, task)
    check_order(config, task, model)
    if "train_size" not in {f.name for f in dataclasses.fields(task.options)}:
        return
    splits = task.datasets()
    n_train = len(splits.train)  # type: ignore[arg-type]
    rows = min(config.train.batch_size, n_train)
    check_memory(model, task, rows, examples=n_train)
    splits.train[0]


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    for module in ("linrnn.train.model", "linrnn.train.data", "linrnn.tasks._reading.kept"):
        monkeypatch.setattr(f"{module}.available", lambda: MEMORY)


def refusal(call: Callable[[], Any]) -> str:
    """The text of the error of ours that a call raises, or nothing where it returns."""
    try:
        call()
    except LinrnnError as error:
        return str(error)
    return ""


OPTIONS = options()


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """Import PyTorch's modules for shapes without numbers before anything is timed."""
    torch.empty(2, 3, 4, device="meta") @ torch.empty(2, 4, 3, device="meta")


def test_every_group_has_options():
    groups = {group for group, _, _ in OPTIONS}
    assert {"config", "model", "optim", "train"} < groups
    assert len(OPTIONS) > 150


@pytest.mark.parametrize(
    ("group", "name", "hint"), OPTIONS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_number(group, name, hint):
    for value in values(hint):
        with quick_and_small():
            refused = refusal(lambda value=value: use(configured(group, name, value)))
        assert "\n" not in refused


class _SeenError(Exception):
    """A parser was about to be used."""


def verb_options() -> list[tuple[str, str]]:
    """Every numeric option that a verb has of its own."""
    found = []
    with pytest.MonkeyPatch.context() as patch:

        def stop(parser: argparse.ArgumentParser, *_: Any) -> None:
            raise _SeenError(parser)

        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        for verb in cli.verbs():
            try:
                importlib.import_module(f"linrnn.cli.{verb}").main(["x"])
            except _SeenError as seen:
                actions = seen.args[0]._actions
                flags = [a.option_strings[0] for a in actions if a.type in (int, float)]
                found += [(verb, flag) for flag in flags]
            except LinrnnError:
                assert verb == "train"  # whose options are those of the dataclasses
    return found


COMMANDS = {
    "atlas": ["atlas", "--systems", "mingru", "--until", "0s", "--out", "RUN/atlas"],
    "distill": ["distill", "RUN/digits"],
    "eval": ["eval", "RUN/digits"],
    "export": ["export", "RUN/digits", "RUN/a.onnx"],
    "generate": ["generate", "RUN/language", "--prompt", "to", "--stop", "e", "--seed", "1"],
    "serve": ["serve", "RUN/digits"],
    "stream": ["stream", "RUN/language"],
    "compare": ["compare", "digits", "--mixers", "lru", "--out", "RUN/compared"],
    "reproduce": ["reproduce", "lru-table-1", "--out", "RUN/reproduced"],
    "suggest": ["suggest", "--needs", "parity"],
    "sweep": ["sweep", "digits", "--over", "optim.lr=0.1,0.2", "--out", "RUN/swept"],
}
VERB_OPTIONS = verb_options()


@pytest.fixture
def golden(root, tmp_path):
    return shutil.copytree(root / "tests" / "golden", tmp_path / "golden")


def test_verbs_with_numbers_are_known():
    assert {verb for verb, _ in VERB_OPTIONS} == set(COMMANDS)


@pytest.mark.parametrize(
    ("verb", "flag"),
    [
        pytest.param(*pair, marks=pytest.mark.slow) if pair[0] == "export" else pair
        for pair in VERB_OPTIONS
    ],
)
def test_number_of_a_verb(verb, flag, golden, tmp_path, monkeypatch):
    def not_here(*args, **_):
        raise InterruptedRunError("not here")

    monkeypatch.setattr("linrnn.compare._runs._train", not_here)
    monkeypatch.setattr("linrnn.compare.estimate.trial", lambda config: 1.0)
    monkeypatch.setattr("linrnn.cli.reproduce._run", lambda *args: ([], True))
    if verb == "serve":
        monkeypatch.setattr("linrnn.serve.serve", not_here)
    if verb == "export":
        monkeypatch.setattr("linrnn.interop.onnx.available", lambda: MEMORY)
    argv = [word.replace("RUN", str(golden)) for word in COMMANDS[verb]]
    codes = set()
    for number in FLOATS:
        with quick_and_small(seconds=20 if verb == "export" else 2):
            answer = sealed.command([*argv, f"{flag}={number}"], b"to be\n" * 3)
        assert answer.code in (0, 1, 2, 130), (number, answer)
        assert "Traceback" not in answer.err
        assert "nan" not in answer.out, number
        codes.add(answer.code)
    assert 2 in codes  # "nan" is no option of any


@pytest.mark.parametrize(
    "text", [*FLOATS, "2^99", "9999999999^99", "1..9999999999", "٣", "1..2^99"]
)
def test_number_of_a_length(text, golden):
    answer = sealed.command(["eval", str(golden / "digits"), f"--lengths={text}"])
    assert answer.code in (1, 2)
    assert answer.err.startswith("linrnn: ")
    assert text != "٣" or "must be like 64,128" in answer.err  # digits of other scripts are none


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--train.threads=100000", "train.threads must be at most"),
        ("--train.threads=1000000000000000000000000000000", "must be int|below 2^63"),
        ("--model.n-layers=10000000", "model.n_layers must be at most 10,000"),
        ("--model.d-model=1000000000000", "the model must fit into"),
        ("--mixer.d-state=4611686018427387904", "the model must fit into"),
        ("--optim.lr=nan", "optim.lr must be a finite float, got nan"),
        ("--optim.lr=1e320", "optim.lr must be a finite float, got inf"),
        ("--optim.betas 0 1e320", "must be"),
        ("--train.batch-size=0", "train.batch_size must be an integer of at least 1"),
        ("--seed=-1", "seed must be an integer of at least 0"),
    ],
)
def test_number_on_the_command_line(option, said, tmp_path):
    answer = sealed.command(["train", "digits", "--out", str(tmp_path / "run"), *option.split()])
    assert answer.code == 2
    assert any(part in answer.err for part in said.split("|"))
    assert not (tmp_path / "run").exists()
