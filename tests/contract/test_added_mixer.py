"""Adding a mixer touches its file, its key in the bibliography and its test; all else finds it."""

import importlib
import inspect
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import linrnn.mixers
from linrnn import RNN, SequenceModel, mixers
from linrnn.cli import main

ROOT = Path(__file__).parents[2]
FILE = '''
"""An average that forgets slowly."""

import torch
from torch import nn

from linrnn.mixers import Mixer
from linrnn.ops import linear_scan
from linrnn.state_spec import real


class SlowLRU(Mixer):
    """An average that forgets slowly.

    Equation:
        h_t = a * h_{t-1} + W x_t,  y_t = h_t + V x_t,  a = sigmoid(logit)

    Args:
        slowness: the initial a, dimensionless.

    Departures from the paper:
        None was written.

    Example:
        >>> SlowLRU(4).slowness
        0.5

    Reference:
        Orvieto et al. 2023. Key: orvieto2023resurrecting.
    """

    family = "slow"

    def __init__(self, d_model, *, slowness=0.5, device=None, dtype=None):
        super().__init__()
        self.d_model, self.slowness = d_model, slowness
        self.logit = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.W, self.V = (
            nn.Linear(d_model, d_model, device=device, dtype=dtype) for _ in range(2)
        )
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.logit, torch.logit(torch.tensor(self.slowness)).item())
        self.W.reset_parameters()
        self.V.reset_parameters()

    def state_spec(self):
        return real(d_model=self.d_model)

    def _read(self, x, state, reset):
        x = x.to(self.W.weight.dtype)
        a = self.logit.to(state.dtype).sigmoid()
        h, last = linear_scan(a, self.W(x).to(state.dtype), state, reset=reset)
        return h.to(x.dtype) + self.V(x), last
'''
LAWS = ("forms_agree", "reset_and_packing", "gradients", "trains", "every_option", "bad_input")


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


@pytest.mark.unchecked
def test_the_laws_are_checked_on_it(added, capsys):
    assert main(["check", added, *(w for law in LAWS for w in ("--property", law))]) == 0
    assert f"{added} passes or declares all {len(LAWS)} contract tests" in capsys.readouterr().out


def test_the_command_line_finds_it(added, capsys):
    assert main(["list", "mixers"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^slow\n  slow_lru +An average that forgets slowly\.$", out, re.MULTILINE)
    assert main(["show", added]) == 0
    out = capsys.readouterr().out
    assert "Family: slow" in out
    assert "slowness  " in out


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


def test_a_file_that_comes_or_goes_later_is_noticed(added, tmp_path):
    assert "slower_lru" not in mixers.names()
    time.sleep(0.05)  # clocks of file systems go by milliseconds
    (tmp_path / "slower_lru.py").write_text(FILE)
    assert {"slow_lru", "slower_lru"} <= {*mixers.names()}
    time.sleep(0.05)
    (tmp_path / "slower_lru.py").unlink()
    assert "slower_lru" not in mixers.names()


def test_the_pages_are_made_with_it(added, monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(ROOT / "docs")
    lists, hooks = importlib.import_module("lists"), importlib.import_module("hooks")
    assert lists.mixer_table().endswith("| slow | `slow_lru` |")
    config = type("Config", (), {"nav": [{"Mixers": []}, {"Results": []}], "repo_url": None})()
    hooks.on_config(config)
    assert config.nav[0]["Mixers"][-1] == {"slow": [{"SlowLRU": "mixers/slow_lru.md"}]}
    page = importlib.import_module("_pages.mixer").pages()[f"mixers/{added}.md"]
    assert "::: linrnn.mixers.slow_lru.SlowLRU" in page
    key = re.search(r"Key: (\w+)\.", inspect.getdoc(mixers.load(added)))[1]
    assert f"../references.md#{key}" in page
