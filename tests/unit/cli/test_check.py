"""linrnn check."""

import json
import sys

import pytest
import torch

from linrnn import mixers
from linrnn.cli import main
from linrnn.testing import MIXER_PROPERTIES, BrokenPropertyError, check_close
from linrnn.testing._tolerance import recording

SOURCE = '''
from linrnn.mixers import LRU


class Kept(LRU):
    """It has the properties."""


class Ahead(LRU):
    """It looks a step ahead."""

    forms = ("scan",)
    declared = {}

    def forward(self, x, state=None, *, reset=None):
        y, state = super().forward(x, state, reset=reset)
        return y + x.roll(-1, 1), state


class Off(LRU):
    """Its steps are a little off."""

    forms = ("scan",)
    declared = {"trains": "it does not say why"}

    def step(self, x_t, state):
        y, state = super().step(x_t, state)
        return y * (1 + 1e-7), state


class Raises(LRU):
    """It cannot be called."""

    def forward(self, x, state=None, *, reset=None):
        raise KeyError("weights")
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "layers_of_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("layers_of_mine", None)


def check(capsys, *args):
    code = main(["check", *args])
    return code, capsys.readouterr().out


def table(out):
    return {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:-1]}


QUICK = ("forms_agree", "causal", "constant_memory", "edges")


def laws(*names):
    return [word for name in names for word in ("--property", name)]


def test_a_layer_that_keeps_the_laws(capsys):
    code, out = check(capsys, "layers_of_mine:Kept", *laws(*QUICK))
    assert code == 0
    rows = table(out)
    assert list(rows) == list(QUICK)
    assert [rows[law][0] for law in QUICK] == ["pass", "declared", "pass", "pass"]
    assert 0 < float(rows["forms_agree"][1]) < 1
    assert rows["constant_memory"][1] == "-"
    assert "(form 'conv')" in " ".join(rows["causal"])
    assert out.endswith("layers_of_mine:Kept passes or declares all 4 contract tests\n")


def test_layers_that_break_them(capsys):
    code, out = check(capsys, "layers_of_mine:Ahead", *laws(*QUICK))
    assert code == 1
    rows = table(out)
    assert rows["causal"][0] == rows["forms_agree"][0] == "broken"
    assert "depends on it" in " ".join(rows["causal"])
    assert float(rows["forms_agree"][1]) > 1e6
    assert rows["constant_memory"][0] == "pass"
    assert out.endswith("fails 3 of 4 contract tests: forms_agree, causal, edges\n")


def test_what_is_declared_and_holds_is_broken(capsys):
    code, out = check(capsys, "layers_of_mine:Off", *laws("forms_agree", "trains"))
    assert code == 1
    rows = table(out)
    assert 1 < float(rows["forms_agree"][1]) < 1e6
    assert "declared impossible (it does not say why), yet it holds" in out
    assert rows["trains"][0] == "broken"


def test_a_layer_that_raises_breaks_the_law(capsys):
    code, out = check(capsys, "layers_of_mine:Raises", *laws("edges", "untraceable"))
    assert code == 1
    assert "raised KeyError: KeyError('weights')" in out


def test_verbose_shows_where_a_layer_fails(capsys):
    code, out = check(capsys, "layers_of_mine:Raises", "-v", *laws("edges"))
    assert code == 1
    assert "Traceback (most recent call last)" in out
    assert "layers_of_mine.py" in out
    assert "-v shows" not in out
    code, out = check(capsys, "layers_of_mine:Raises", *laws("edges"))
    assert "Traceback" not in out
    assert "-v shows the tracebacks\n" in out


def test_names_options_and_json(capsys):
    code, out = check(capsys, "lru:form=conv:d_state=4", "--json", *laws("causal", "trains"))
    assert code == 0
    found = json.loads(out)
    assert found["mixer"] == "lru:form=conv:d_state=4"
    assert [row["property"] for row in found["properties"]] == ["causal", "trains"]
    assert found["properties"][0]["status"] == "declared"
    assert found["properties"][0]["reason"] == (
        mixers.LRU.declared["causal:conv"] + " (form 'conv')"
    )
    assert found["properties"][1]["worst_error"] is None


def test_without_a_law_all_are_checked(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("linrnn.testing.check_property", lambda name, make: seen.append(name))
    code, out = check(capsys, "gru")
    assert code == 0
    assert seen == list(MIXER_PROPERTIES)
    assert out.endswith(f"gru passes or declares all {len(seen)} contract tests\n")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lur"], "no mixer named 'lur'. Did you mean 'lru'"),
        (["lru", "--property", "edge"], "no property named 'edge'. Did you mean 'edges'"),
        (["layers_of_mine:Nothing"], "has Nothing, got AttributeError"),
        (["lru:d_stat=3"], "no option of mixer 'lru' named 'd_stat'"),
        (["lru+gru"], "MIXER must be one mixer, got the pattern 'lru,gru'"),
    ],
)
def test_wrong_commands_are_explained(capsys, args, message):
    assert main(["check", *args]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.unchecked
def test_the_worst_error_is_that_of_all_comparisons():
    one, eps = torch.ones(3), 2.0**-23
    with recording() as worst:
        check_close("first", one + eps, one)
        check_close("second", one + 3 * eps, one)
        check_close("third", one, one, roundings=0)
    assert (worst.error, worst.what) == (0.75, "second")
    with recording() as worst:
        with pytest.raises(BrokenPropertyError):
            check_close("fourth", one + eps, one, roundings=0)
        with recording() as inner:
            pass
    assert worst.error == float("inf")
    assert inner.error is None
    check_close("outside", one, one)
    assert worst.what == "fourth"


def test_the_former_name_of_the_option(capsys):
    code, out = check(capsys, "layers_of_mine:Kept", "--law", "causal")
    assert code == 0
    assert "--law is called --property" in out
    assert "causal" in table(out)
