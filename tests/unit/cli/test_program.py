"""Commands that are printed can be typed as they stand, in the shell that printed them."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from linrnn.cli import main
from linrnn.cli._line.program import runnable, spelling
from linrnn.tasks import load

SCRIPT = Path(sysconfig.get_path("scripts"), "linrnn")
TINY = ["--model.d-model", "4", "--model.n-layers", "1", "--train.epochs", "1"]

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="linrnn is not installed as a command")


def bare_shell(command, folder):
    """A command of a shell whose path has no program of this environment."""
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**kept, "PATH": os.defpath, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_next_commands_of_a_run_work_as_they_are_printed(tmp_path):
    done = bare_shell(f"{SCRIPT} train digits {shlex.join(TINY)}", tmp_path)
    assert done.returncode == 0, done.stderr
    x = 16 * load("digits")().datasets().test[:3][0].flatten(1).numpy()
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    following = done.stdout.partition("Next:\n")[2].splitlines()
    assert [len(shlex.split(line)) > 1 for line in following] == [True] * 3
    for line in following:
        line = line.replace("FILE", "x.csv")
        serves_for_ever = "tensorboard" in line
        again = bare_shell(f"{line} --version" if serves_for_ever else line, tmp_path)
        assert again.returncode == 0, (line, again.stderr)


@pytest.mark.parametrize("how", [str(SCRIPT), f"{sys.executable} -m linrnn"])
def test_so_do_those_of_an_error(how, tmp_path):
    refused = bare_shell(f"{how} show no_such_thing", tmp_path)
    assert refused.returncode == 2
    (command,) = re.findall(r"`(.+? list[^`]*)`", refused.stderr)
    assert bare_shell(command, tmp_path).returncode == 0


def test_a_program_on_the_path_keeps_its_name(monkeypatch):
    monkeypatch.setenv("PATH", str(SCRIPT.parent))
    assert runnable("Use: linrnn train --resume runs/a") == "Use: linrnn train --resume runs/a"


def test_another_program_of_that_name_on_the_path_is_not_taken_for_ours(monkeypatch, tmp_path):
    other = tmp_path / "linrnn"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spelling("linrnn") != "linrnn"


def test_a_script_below_this_folder_is_named_from_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / "a folder"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "linrnn").touch()
    monkeypatch.setattr(sys, "argv", [str(folder / "bin" / "linrnn")])
    monkeypatch.chdir(tmp_path)
    assert spelling("linrnn") == "'a folder/bin/linrnn'"
    monkeypatch.chdir(folder / "bin")
    assert spelling("linrnn") == "./linrnn"


def test_words_that_are_no_commands_stay(monkeypatch):
    monkeypatch.setenv("PATH", "")
    text = "linrnn 0.1.0, linrnn runs, .venv/bin/linrnn train, pip install linrnn"
    assert runnable(text) == text
    assert runnable("`linrnn list`") == f"`{spelling('linrnn')} list`"


@pytest.mark.unchecked
def test_an_unknown_catalogue_is_called_one(capsys):
    assert main(["list", "mixxers"]) == 2
    assert "no catalogue named 'mixxers'. Did you mean 'mixers'? Known: " in capsys.readouterr().err
