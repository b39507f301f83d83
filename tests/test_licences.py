"""`make audit` refuses licences that it should, and does not pass where it could not look."""

import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def licences():
    import importlib.util

    pytest.importorskip("packaging")
    spec = importlib.util.spec_from_file_location("licences", ROOT / ".ci" / "licences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Package:
    name, version = "made-up", "1.0"

    def __init__(self, **fields):
        self.metadata = Message()
        for key, value in fields.items():
            self.metadata[key.replace("_", "-")] = value


@pytest.mark.parametrize(
    "fields",
    [
        {"License_Expression": "Apache-2.0"},
        {"License_Expression": "MIT OR GPL-3.0-only"},
        {"License": "BSD 3-Clause\nRedistribution ..."},
        {"Classifier": "License :: OSI Approved :: MIT License"},
    ],
)
def test_permitted(licences, fields):
    assert licences.complaint(Package(**fields)) == ""


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "says no licence"),
        ({"License_Expression": "GPL-3.0-only"}, "GPL-3.0-only"),
        ({"License_Expression": "MIT AND AGPL-3.0-only"}, "AGPL"),
        ({"License": "all rights reserved"}, "all rights reserved"),
        (
            {"Classifier": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"},
            "GNU General Public",
        ),
    ],
)
def test_refused(licences, fields, text):
    assert text in licences.complaint(Package(**fields))


def test_what_is_installed_here_is_permitted():
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "licences.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 5
    assert "all permitted" in done.stdout


def test_audit_without_its_tool_fails(tmp_path):
    """The Makefile's rules, with a pip that installs nothing and an audit that reaches nobody."""
    made = tmp_path / ".venv"
    (made / "bin").mkdir(parents=True)
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for name in ("python", "pip-audit"):
        (made / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (made / "bin" / name).chmod(0o755)
    for stamp, text in ((".dev", "nothing was checked"), (".audit", "")):
        (made / stamp).touch()
        done = subprocess.run(
            ["make", "-o", ".venv/.dev", "-C", tmp_path, "audit"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert text in done.stderr
