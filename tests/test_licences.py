"""`make audit` refuses licences that it should, and does not pass where it could not look."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def licences(*words, folder=ROOT):
    """pip-licenses, which reads pyproject.toml of the folder that it runs in."""
    pytest.importorskip("piplicenses")
    return subprocess.run(
        [sys.executable, "-m", "piplicenses", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_whatever_is_installed_is_permitted():
    done = licences()
    assert done.returncode == 0, done.stderr
    assert " numpy " in done.stdout
    assert " torch " in done.stdout


@pytest.mark.parametrize(
    ("text", "permitted"),
    [
        ("License-Expression: Apache-2.0", True),
        ("Classifier: License :: OSI Approved :: MIT License", True),
        ("License-Expression: GPL-3.0-only", False),
        ("License-Expression: MIT AND AGPL-3.0-only", False),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", False),
        ("License: all rights reserved", False),
        ("Summary: no licence", False),
    ],
)
def test_what_is_permitted_and_refused(text, permitted, tmp_path, monkeypatch):
    (tmp_path / "made_up-1.0.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.4\nName: made-up\nVersion: 1.0\n{text}\n"
    (tmp_path / "made_up-1.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = licences("--packages", "made-up")
    assert (done.returncode == 0) == permitted, done.stderr
    assert permitted or "made-up" in done.stderr


def test_what_is_not_looked_at_holds_nothing_else():
    files = distribution("docutils").files
    assert files
    assert not [path for path in files if path.suffix == ".el"]


@pytest.mark.parametrize(
    ("present", "fails", "text"),
    [
        (".dev", "pip", "nothing was checked"),
        (".supply", "piplicenses", ""),
        (".supply", "build/pins/1.txt", "the database could not be asked"),
        (".supply", "build/pins/2.txt", "the database could not be asked"),
    ],
)
def test_audit_fails_where_a_part_of_it_does(tmp_path, present, fails, text):
    """The Makefile's rules, with a Python of which one command fails."""
    done = audited(tmp_path, present, fails)
    assert done.returncode != 0
    assert text in done.stderr


def test_every_package_is_asked_about(tmp_path):
    done = audited(tmp_path, ".supply", "nothing of it")
    assert done.returncode == 0, done.stderr
    asked = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("-m pip_a")]
    lists = [(tmp_path / name).read_text().splitlines() for name in asked]
    lock = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split(" ")[0] for line in lock if line and not line.startswith("#")]
    assert sorted(pin for listed in lists for pin in listed) == sorted(pins)
    for listed in lists:
        assert len(listed) == len({pin.partition("==")[0] for pin in listed})


def audited(folder, present, fails):
    """`make audit` with a Python that says what it is asked to do, and once fails."""
    made = folder / ".venv"
    (made / "bin").mkdir(parents=True)
    (folder / "requirements").mkdir()
    (folder / "requirements" / "supply.txt").touch()
    for name in ("Makefile", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text())
    script = f'#!/bin/sh\necho "$*"\ncase "$*" in *"{fails}"*) exit 1;; esac\n'
    (made / "bin" / "python").write_text(script)
    (made / "bin" / "python").chmod(0o755)
    (made / present).touch()
    return subprocess.run(
        ["make", "-o", f".venv/{present}", "-C", folder, "audit"],
        capture_output=True,
        text=True,
        check=False,
    )
