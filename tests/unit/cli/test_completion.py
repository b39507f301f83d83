"""Completions of a command line, by the function and by the shells themselves."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linrnn import cli, mixers, reproductions, tasks
from linrnn.cli._verbs.complete import FILES, FOLDERS, complete
from linrnn.cli.completion import SCRIPTS
from linrnn.errors import UnknownNameError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], ["train"]),
        (["-q", "COMP"], ["compare", "completion"]),
        (["train", "psm"], ["psmnist"]),
        (["train", "digits", "--mixer", "RG-"], ["rg_lru"]),
        (["train", "digits", "--mixer", "=", "rg"], ["rg_lru"]),
        (["train", "digits", "--mixer=rg"], ["--mixer=rg_lru"]),
        (["train", "digits", "--mixer", "lru,2*ming"], ["lru,2*mingru"]),
        (["train", "digits", "--mixer", "mingru", "--mixer.e"], ["--mixer.expansion"]),
        (["train", "digits", "--train.order", "s"], ["shuffled"]),
        (["train", "digits", "--task.sh"], ["--task.shift"]),
        (["train", "lm", "--dat"], ["--data"]),
        (["train", "listops", "--scale", "p"], ["paper"]),
        (["train", "digits", "--recipe", "dig"], ["digits"]),
        (["train", "--resume", ""], [FOLDERS]),
        (["compare", "digits", "--mixers", "lru,minl"], ["lru,minlstm"]),
        (["reproduce", "lru-table-4"], ["lru-table-4"]),
        (["reproduce", "LRU-Table-1", "--scale", "c"], ["cpu"]),
        (["reproduce", "nothing", "--scale", "c"], []),
        (["check", "lru", "--property", "ca"], ["causal"]),
        (["show", "lru-table_4"], ["lru_table_4"]),
        (["list", "t"], ["tasks"]),
        (["help", "ev"], ["eval"]),
        (["completion", "f"], ["fish"]),
        (["eval", ""], [FOLDERS]),
        (["predict", "run", ""], [FILES]),
        (["predict", "run", "a.csv", ""], [FILES]),
        (["eval", "run", "--le"], ["--lengths"]),
        (["nonsense", ""], []),
        (["eval", "run", "--examples", ""], []),
    ],
)
def test_what_may_come_next(words, expected):
    assert complete(words) == expected


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ([""], cli.verbs()),
        (["train", ""], tasks.names()),
        (["check", ""], mixers.names()),
        (["reproduce", ""], [name.replace("_", "-") for name in reproductions.names()]),
    ],
)
def test_nothing_is_left_out(words, known):
    assert set(known) <= set(complete(words))


@pytest.mark.parametrize("verb", cli.verbs())
def test_every_option_of_a_verb_is_completed(verb):
    import importlib

    parser = importlib.import_module(f"linrnn.cli.{verb}").parser()
    known = {flag for flag in parser._option_string_actions if flag.startswith("--")}
    assert known <= set(complete([verb, "--"]))
    assert {"--help", "--quiet", "--verbose"} <= known


def test_completion_imports_nothing_heavy(python):
    code = """
import sys
from linrnn.cli import main
main(["completion", "--words", "train", "digits", "--mixer", "lru", "--mixer."])
result = [name for name in ("torch", "numpy", "tyro") if name in sys.modules]
"""
    assert python(code) == []


@pytest.mark.unchecked
def test_another_shell_is_an_error():
    with pytest.raises(UnknownNameError, match=r"shell named 'zhs'\. Did you mean 'zsh'"):
        cli.completion.main(["zhs"])


@pytest.fixture
def asked(tmp_path):
    """An environment in which a shell finds ``linrnn``, and a folder with a run and a file."""
    script = tmp_path / "bin" / "linrnn"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m linrnn "$@"\n')
    script.chmod(0o755)
    (tmp_path / "work" / "runs_here").mkdir(parents=True)
    (tmp_path / "work" / "rows_here.csv").touch()
    for name, text in SCRIPTS.items():
        (tmp_path / f"complete.{name}").write_text(text)
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(tmp_path), "TERM": "xterm", "PS1": "> "}


class Terminal:
    """A shell in a terminal of its own, to which keys are sent."""

    def __init__(self, argv, environment, folder):
        self._pid, self._fd = pty.fork()
        if not self._pid:
            os.chdir(folder)
            os.execvpe(argv[0], argv, environment)

    def types(self, keys):
        os.write(self._fd, keys.encode())

    def shows(self, text, seconds=20.0):
        """The screen once a text appears, or the time is over."""
        seen, end = "", time.monotonic() + seconds
        while text not in seen and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.1)[0]:
                seen += os.read(self._fd, 4096).decode(errors="replace")
        return seen

    def close(self):
        os.close(self._fd)
        os.waitpid(self._pid, 0)


KEYS = [
    ("linrnn trai", "linrnn train"),
    ("linrnn train digits --mixer=rg_l", "linrnn train digits --mixer=rg_lru"),
    ("linrnn train digits --mixer lru --mixer.max", "--mixer lru --mixer.max-phase"),
    ("linrnn eval runs_", "linrnn eval runs_here"),
    ("linrnn predict x rows_", "linrnn predict x rows_here.csv"),
]


def _type_all(terminal, start):
    terminal.types(f"{start}\n")
    terminal.types("echo rea''dy\n")
    assert "ready" in terminal.shows("ready\r")
    for keys, text in KEYS:
        # to the beginning of the line, which is then printed and not run
        terminal.types(f"{keys}\t\x01echo '[' \r")
        line = f"[ {text}" if text.startswith("linrnn") else text
        assert line in terminal.shows(line), keys


def test_completion_in_bash(asked, tmp_path):
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    argv = ["bash", "--norc", "--noprofile", "-i"]
    terminal = Terminal(argv, asked, Path(asked["HOME"], "work"))
    try:
        _type_all(terminal, f"source {tmp_path / 'complete.bash'}")
    finally:
        terminal.close()


def test_completion_in_zsh(asked, tmp_path):
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    terminal = Terminal(["zsh", "-f", "-i"], asked, Path(asked["HOME"], "work"))
    try:
        start = "autoload -Uz compinit; compinit -u -d $HOME/dump"
        _type_all(terminal, f"{start}; source {tmp_path / 'complete.zsh'}")
    finally:
        terminal.close()


def test_completion_in_fish(asked, tmp_path):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    lines = [f"source {tmp_path / 'complete.fish'}"]
    lines += [f"complete -C '{keys}'; echo --" for keys, _ in KEYS]
    work = Path(asked["HOME"], "work")
    done = subprocess.run(
        ["fish", "--no-config", "-c", "\n".join(lines)],
        env=asked,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [part.split() for part in done.stdout.split("--\n")]
    wanted = ["train", "--mixer=rg_lru", "--mixer.max-phase", "runs_here/", "rows_here.csv"]
    for found, one in zip(said, wanted, strict=False):
        assert one in found, done.stdout
