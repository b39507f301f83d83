"""`docs/first_minutes.py` types what README.md tells a newcomer to type, and notices a failure."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def first_minutes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("first_minutes")


@pytest.fixture
def parts(first_minutes):
    return first_minutes.sections((ROOT / "README.md").read_text(encoding="utf-8"))


def test_installation_lines_are_those_of_the_readme(first_minutes, parts):
    lines = first_minutes.shell_lines(parts["Install"])
    assert lines[:2] == ["make quickstart", "source .venv/bin/activate"]
    assert "pip install -c constraints.txt '.[train]'" in lines
    assert not any("#" in line for line in lines)


def test_commands_and_expressions_are_those_of_the_table(first_minutes, parts):
    commands, expressions = first_minutes.spans(parts["Where to go"])
    assert {"linrnn train table --data rows.csv", "linrnn list mixers"} <= {*commands}
    assert "linrnn.quantize(model, bits=4)" in expressions


def test_a_run_without_weights_is_passed_over(first_minutes, tmp_path):
    assert first_minutes.newest_run(tmp_path) == "RUN"
    for name in ("whole", "stopped"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "whole" / "model.safetensors").touch()
    assert first_minutes.newest_run(tmp_path) == "runs/whole"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no bash, and no process group")
@pytest.mark.parametrize(
    ("command", "failed"),
    [
        ("true", False),
        ("sh -c 'exit 2'", True),
        ("sh -c 'echo install it: pip install linrnn[rl]; exit 1'", False),
        ("sleep 60", False),
    ],
)
def test_what_fails_is_noticed_and_what_lasts_is_stopped(first_minutes, tmp_path, command, failed):
    reader = first_minutes.Reader(tmp_path, limit=0.2 if "sleep" in command else 60)
    result = reader.type(command, tmp_path)
    assert result.stopped == ("sleep" in command)
    assert result.failed == failed
    assert result.seconds < 60
