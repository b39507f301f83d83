"""Adding a mixer touches its file, its key in the bibliography and its test; all else finds it."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

import linrnn.mixers
from linrnn import RNN, SequenceModel, mixers
from linrnn.cli import main

ROOT = Path(__file__).parents[2]
FILE = '''
"""An LRU that forgets slowly."""

from typing import ClassVar

import torch

from linrnn.mixers.lru import LRU


class SlowLRU(LRU):
    """An LRU that forgets slowly.

    Equation:
        h_t = lam * h_{t-1} + gamma * B x_t

    Shapes:
        x: (batch, time, d_model)

    Args:
        d_model: channels in and out.
        slowness: smallest modulus of an eigenvalue, dimensionless.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: a slowness outside [0, 1).

    Departures from the paper:
        None was written.

    Example:
        >>> SlowLRU(4).slowness
        0.5

    Reference:
        Orvieto et al. 2023. Key: orvieto2023resurrecting.
    """

    family: ClassVar[str] = "slow"
    forms: ClassVar[tuple[str, ...]] = ("scan",)
    declared: ClassVar[dict[str, str]] = {}

    def __init__(self, d_model: int, *, slowness: float = 0.5, device=None, dtype=None) -> None:
        super().__init__(d_model, r_min=slowness, device=device, dtype=dtype)
        self.slowness = slowness
'''
LAWS = ("forms_agree", "reset_and_packing", "gradients", "trains", "round_trip", "edges")


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A second folder of the catalogue, with one file."""
    (tmp_path / "slow_lru.py").write_text(FILE)
    monkeypatch.setattr(linrnn.mixers, "__path__", [*linrnn.mixers.__path__, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    yield "slow_lru"
    sys.modules.pop("linrnn.mixers.slow_lru", None)
    vars(linrnn.mixers).pop("slow_lru", None)


def test_code_finds_it(added):
    assert added in mixers.names()
    assert mixers.SlowLRU is mixers.load(added)
    model = SequenceModel(3, 2, mixer=("slow_lru", "gru"), d_model=4, n_layers=4)
    assert [type(m).__name__ for m in model.mixers] == ["SlowLRU", "GRU"] * 2
    assert RNN(added, 3, 4)(torch.zeros(5, 3))[0].shape == (5, 4)


def test_the_laws_are_checked_on_it(added, capsys):
    assert main(["check", added, *(w for law in LAWS for w in ("--law", law))]) == 0
    assert f"{added} keeps or declares all {len(LAWS)} laws" in capsys.readouterr().out


def test_the_command_line_finds_it(added, capsys):
    assert main(["list", "mixers"]) == 0
    assert "\nslow\n  slow_lru       An LRU that forgets slowly.\n" in capsys.readouterr().out
    assert main(["show", added]) == 0
    out = capsys.readouterr().out
    assert "Family: slow" in out
    assert "slowness  float" in out


def test_it_is_trained_streamed_and_compared(added, capsys):
    small = ["--model.d-model", "4", "--model.n-layers", "1", "--train.batch-size", "512"]
    words = ["--mixer", added, "--mixer.slowness", "0.75", "--train.epochs", "2"]
    assert main(["train", "digits", *small, *words]) == 0
    assert main(["eval", "runs/digits-slow_lru-1"]) == 0
    assert "slow_lru, seed 0" in capsys.readouterr().out
    from linrnn.train import load_model

    model, task, config = load_model("runs/digits-slow_lru-1")
    assert config.mixer_options == {"slowness": 0.75}
    x = task.datasets().test[:2][0]
    y, _ = model(x)
    state = model.init_state(2)
    for t in range(x.shape[1]):
        y_t, state = model.step(x[:, t], state)
    torch.testing.assert_close(y_t, y, rtol=1e-3, atol=1e-4)


def test_the_pages_are_made_with_it(added, monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(ROOT / "docs")
    lists, hooks = importlib.import_module("lists"), importlib.import_module("hooks")
    assert lists.mixer_table().endswith("| slow | `slow_lru` |")
    readme = lists.filled_in((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "\n| slow | `slow_lru` |\n" in readme
    config = type("Config", (), {"nav": [{"Mixers": []}]})()
    hooks.on_config(config)
    assert config.nav[0]["Mixers"][-1] == {"slow": [{"SlowLRU": "mixers/slow_lru.md"}]}
    page = hooks.mixer_page(added)
    assert "::: linrnn.mixers.slow_lru.SlowLRU" in page
    key = re.search(r"Key: (\w+)\.", inspect.getdoc(mixers.load(added)))[1]
    assert f"../references.md#{key}" in page
