"""`make audit` refuses licences that it should, and does not pass where it could not look."""

import importlib
import json
import re
import subprocess
import sys
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def licences():
    pytest.importorskip("packaging")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module("licences")


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
    assert licences.complaint("made-up==1.0", licences.licence(Package(**fields))) == ""


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
    assert text in licences.complaint("made-up==1.0", licences.licence(Package(**fields)))


def test_what_names_others_and_holds_nothing_is_permitted(licences):
    assert licences.complaint("made-up==1.0", licences.NOTHING) == ""


def test_what_was_judged_is_handed_to_nobody_and_holds_nothing_else(licences):
    handed_on = {x["name"] for x in json.loads(licences.locked.SBOM.read_text())["components"]}
    assert {"numpy", "torch"} <= handed_on
    assert not handed_on & set(licences.JUDGED)
    files = distribution("docutils").files
    assert files
    assert not [path for path in files if path.suffix == ".el"]
    assert licences.complaint("docutils==1.0", "") != ""


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (lambda known: known | {"pytest==9.2.0": "AGPL-3.0-only"}, "not permitted: pytest==9.2.0"),
        (lambda known: {k: v for k, v in known.items() if k != "six==1.17.0"}, "says no licence"),
        (lambda known: known | {"numpy==2.4.6": "MIT"}, "recorded wrongly: numpy==2.4.6: MIT"),
    ],
)
def test_every_package_of_the_lock_is_looked_at(licences, record, text, monkeypatch, capsys):
    known = licences.locked.licences()
    monkeypatch.setattr(licences.locked, "licences", lambda: record(known))
    assert licences.main() == 1
    assert text in capsys.readouterr().err


def test_the_whole_lock_is_permitted():
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "licences.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lock = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    count = len(re.findall("^[^#]", lock, re.MULTILINE))
    assert done.stdout == f"licences: {count} packages, all permitted\n"


@pytest.mark.parametrize(
    ("present", "fails", "text"),
    [
        (".dev", "pip", "nothing was checked"),
        (".supply", "licences.py", ""),
        (".supply", "vulnerabilities.py", "the database could not be asked"),
    ],
)
def test_audit_fails_where_a_part_of_it_does(tmp_path, present, fails, text):
    """The Makefile's rules, with a Python of which one command fails."""
    made = tmp_path / ".venv"
    (made / "bin").mkdir(parents=True)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "supply.txt").touch()
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (made / "bin" / "python").write_text(f'#!/bin/sh\ncase "$*" in *{fails}*) exit 1;; esac\n')
    (made / "bin" / "python").chmod(0o755)
    (made / present).touch()
    done = subprocess.run(
        ["make", "-o", f".venv/{present}", "-C", tmp_path, "audit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert text in done.stderr
