"""Answers that are kept: the same as fresh ones, and gone with what they depend on."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
import torch

import linrnn
from linrnn.cli._line import answers

SHOW = ["show", "lru"]


@pytest.fixture
def ask(monkeypatch, tmp_path, capsys):
    """Run a command that says something, as the first of a process: what it said, and whether anew.

    The package has one more folder, ``more``, in which a test may write.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(answers.OFF)
    (tmp_path / "more").mkdir()
    monkeypatch.setattr(linrnn, "__path__", [*linrnn.__path__, str(tmp_path / "more")])

    def asked(args=SHOW, text="text\n", code=0, before=lambda: None):
        computed = []

        def compute():
            sys.modules["torch"] = torch  # it takes PyTorch
            computed.append(True)
            before()
            sys.stdout.write(text)
            if code is None:
                sys.exit(0)
            return code

        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "torch")
            with contextlib.suppress(SystemExit):
                answers.answered(args, compute)
        return capsys.readouterr().out, bool(computed)

    return asked


def kept(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.json"))


def test_an_answer_is_computed_once(ask):
    assert ask() == ("text\n", True)
    assert ask(text="another\n") == ("text\n", False)
    assert ask(["show", "gru"], "another\n") == ("another\n", True)


def test_help_of_a_parser_that_ends_the_process_is_kept(ask):
    assert ask(["train", "digits", "--help"], code=None)[1]
    assert not ask(["train", "digits", "--help"], code=None)[1]


@pytest.mark.parametrize("edit", ["new", "longer", "touched", "removed"])
def test_an_edit_of_a_source_is_seen(ask, tmp_path, edit):
    source = tmp_path / "more" / "module.py"
    source.write_text("one = 1\n")
    ask()
    if edit == "new":
        (tmp_path / "more" / "other.py").write_text("")
    elif edit == "longer":
        source.write_text("one = 1  # and more\n")
    elif edit == "touched":
        os.utime(source, ns=(1, 1))
    else:
        source.unlink()
    assert ask(text="another\n") == ("another\n", True)


def test_a_package_that_is_installed_is_seen(ask, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    ask()
    assert not ask()[1]
    (folder / "plugin-1.0.dist-info").mkdir()
    assert ask()[1]
    (folder / "plugin-1.0.dist-info" / "entry_points.txt").write_text("[linrnn.mixers]\n")
    assert ask()[1]


@pytest.mark.parametrize("name", ["COLUMNS", "NO_COLOR", "LINRNN_DATA", "LANG"])
def test_the_environment_counts(ask, monkeypatch, name):
    ask()
    monkeypatch.setenv(name, "61")
    assert ask()[1]
    assert not ask()[1]


@pytest.mark.parametrize(("name", "value"), [(answers.OFF, "0"), ("LINRNN_TRUST", "mine:Mine")])
def test_nothing_is_kept_where_a_variable_says_so(ask, monkeypatch, tmp_path, name, value):
    monkeypatch.setenv(name, value)
    assert ask()[1]
    assert not kept(tmp_path)


@pytest.mark.parametrize(
    "args",
    [
        ["show", "mine.layer:Mine"],
        ["--trust", "mine:Mine", "show", "lru"],
        ["train", "digits", "--help", "--mixer", "mine:Mine"],
        ["train", "digits", "--help", "--optim.lr", "x"],
        ["train", "digits"],
        ["doctor"],
        ["show", "../lru"],
        ["list", "--unknown"],
        [],
    ],
)
def test_other_commands_are_not_kept(ask, tmp_path, args):
    assert ask(args)[1]
    assert not kept(tmp_path)


def test_an_answer_in_doubt_is_not_kept(ask, tmp_path, monkeypatch):
    outside = tmp_path / "data.csv"
    outside.write_text("1\n")
    for before in (outside.read_bytes, answers.doubt, lambda: sys.stderr.write("a remark\n")):
        assert ask(before=before)[1]
        assert not kept(tmp_path)
    ask(code=1)
    assert not kept(tmp_path)
    ask(before=lambda: (tmp_path / "more" / "edited.py").write_text(""))
    assert not kept(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(answers, "registered", lambda package: {"theirs": []})
        ask()
    assert not kept(tmp_path)
    ask()
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"digest": "0", "text": "wrong"}', b"\xff"])
def test_a_damaged_file_is_not_believed(ask, tmp_path, data):
    ask()
    (path,) = kept(tmp_path)
    record = json.loads(path.read_text())
    path.write_bytes(data)
    assert ask() == ("text\n", True)
    path.write_text(json.dumps(record | {"text": "changed\n"}))
    assert ask() == ("text\n", True)
    assert not ask()[1]


def test_a_folder_that_cannot_be_written_is_no_error(ask, tmp_path):
    (tmp_path / "cache").write_text("a file\n")
    assert ask() == ("text\n", True)
    assert ask() == ("text\n", True)


def test_old_answers_make_room(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MOST", 3)
    for name in "abcdefg":
        ask(["show", name])
    assert len(kept(tmp_path)) == 3
    assert not ask(["show", "g"])[1]


def test_the_kept_answer_of_a_command_is_the_fresh_one(tmp_path):
    command = [sys.executable, "-m", "linrnn", "show", "lru", "--json"]
    environment = {k: v for k, v in os.environ.items() if k != answers.OFF}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "here").mkdir()

    def said(**more):
        done = subprocess.run(
            command,
            env=environment | more,
            cwd=tmp_path / "here",
            capture_output=True,
            check=True,
            timeout=300,
        )
        assert not done.stderr
        return done.stdout

    fresh = said(**{answers.OFF: "0"})
    assert not kept(tmp_path)
    first = said()
    (path,) = kept(tmp_path)
    before = path.stat().st_mtime_ns
    assert said() == first == fresh
    assert [p.stat().st_mtime_ns for p in kept(tmp_path)] == [before]
