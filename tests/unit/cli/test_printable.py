"""Nothing that a user, a file or a path said reaches a terminal but as what can be seen."""

import argparse
import contextlib
import importlib
import json
import re
import shutil
import sys
import unicodedata

import pytest

from linrnn import cli
from linrnn.cli._line import output
from linrnn.errors import (
    ArgumentError,
    DataError,
    LinrnnError,
    MissingExtraError,
    StorageError,
    UnknownNameError,
    printable,
)

#: Colours, a title, a line over the one before, an eight-bit control, writing from right to left.
HOSTILE = "none\x1b[31m\x1b]0;t\x07\r\x9b2J\u202ex\u2066"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Terminal:
    """A stream that says it is one."""

    def __init__(self, stream):
        self.stream = stream

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self.stream, name)


def said(argv, capsys):
    """All that a command says to a terminal."""
    with contextlib.suppress(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal(sys.stdout))
        cli.main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return out + err


def check(text):
    assert not RAW.search(text), repr(text)


@pytest.fixture
def golden(root, tmp_path):
    """Runs in a folder of a hostile name."""
    return shutil.copytree(root / "tests" / "golden", tmp_path / HOSTILE.replace("\x00", ""))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("verb", [*cli.verbs(), HOSTILE])
def test_words_behind_a_verb(verb, count, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check(said([verb, *[HOSTILE] * count], capsys))


@pytest.mark.parametrize("verb", cli.verbs())
def test_options_of_a_verb(verb, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words in ([f"--{HOSTILE}"], ["x", f"--{HOSTILE}=1"], ["--json", HOSTILE], ["-v", HOSTILE]):
        check(said([verb, *words], capsys))


class _SeenError(Exception):
    """A parser was about to be used."""


def flags(verb):
    """Those of a verb that take a value."""

    def stop(parser, *_):
        raise _SeenError(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        try:
            importlib.import_module(f"linrnn.cli.{verb}").main(["x"])
        except _SeenError as seen:
            actions = seen.args[0]._actions
            return [a.option_strings[-1] for a in actions if a.option_strings and a.nargs != 0]
        except (LinrnnError, SystemExit):
            pass
    return []


@pytest.mark.parametrize("verb", cli.verbs())
def test_values_of_options(verb, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for flag in flags(verb):
        check(said([verb, tmp_path / "no run", f"{flag}={HOSTILE}"], capsys))


OF_RUNS = {
    "eval": ["eval", "RUN/digits"],
    "export": ["export", "RUN/digits", "RUN/no folder/a.onnx"],
    "generate": ["generate", "RUN/language", "--prompt", "to", "--max-new-tokens", "3"],
    "predict": ["predict", "RUN/digits", "RUN/no file"],
    "show": ["show", "RUN/digits"],
    "stream": ["stream", "RUN/digits"],
    "train": ["train", "--resume", "RUN/digits"],
}


@pytest.mark.parametrize("verb", OF_RUNS)
def test_folders_whose_names_are_hostile(verb, golden, capsys, monkeypatch):
    for weights in golden.rglob("*.safetensors"):  # what comes then is not of names
        weights.unlink()
    with open(golden / "text.txt") as file:
        monkeypatch.setattr(sys, "stdin", file)
        argv = [word.replace("RUN", str(golden)) for word in OF_RUNS[verb]]
        check(said(argv, capsys))


@pytest.mark.parametrize("verb", ["eval", "show", "predict", "distill"])
def test_files_that_say_hostile_things(verb, root, tmp_path, capsys):
    golden = shutil.copytree(root / "tests" / "golden", tmp_path / "golden")
    config = golden / "digits" / "config.json"
    values = json.loads(config.read_text())
    for name in ("task", "mixer", HOSTILE):
        config.write_text(json.dumps({**values, name: HOSTILE}))
        check(said([verb, golden / "digits", golden / "text.txt"], capsys))
    table = tmp_path / "table.csv"
    table.write_text(f"{HOSTILE},{HOSTILE}2,y\n{HOSTILE},1,2\n" * 3)
    check(said([verb, golden / "digits", table], capsys))
    check(said(["train", "table", "--task.data", table], capsys))


def test_answers_are_data_for_a_program_and_to_be_seen_on_a_terminal(capsys, monkeypatch):
    output.row(f"{HOSTILE}\n")
    assert capsys.readouterr().out == f"{HOSTILE}\n"
    monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    output.row(f"{HOSTILE}\tä\u3000漢\n")
    output.write(f"{HOSTILE}\n".encode())
    out = capsys.readouterr().out
    check(out)
    assert out.count("\n") == 2
    assert "\tä\u3000漢" in out


def test_json_has_no_raw_characters_and_the_same_values():
    text = output.json_text({HOSTILE: [HOSTILE, "ä漢", "\x7f"]})
    check(text)
    assert json.loads(text) == {HOSTILE: [HOSTILE, "ä漢", "\x7f"]}
    assert "ä漢" in text


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError(HOSTILE),
        DataError(f"{HOSTILE}\n{HOSTILE}"),
        StorageError(HOSTILE),
        UnknownNameError("mixer", HOSTILE, [HOSTILE]),
        MissingExtraError(HOSTILE, HOSTILE, "hf"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_one_line_that_can_be_seen(error):
    check(str(error))
    assert "\n" not in str(error)


def test_every_character_that_a_terminal_obeys_is_written_out():
    """By the tables of Unicode; what joins letters and pictures stays."""
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        kind = unicodedata.category(character)
        obeyed = kind in ("Cc", "Cs", "Zl", "Zp") or (
            kind == "Cf" and number not in (0x200C, 0x200D)
        )
        if obeyed:
            assert printable(character).isascii(), hex(number)
        elif kind not in ("Cn", "Co"):
            assert printable(character) == character, hex(number)
    assert printable("a\tb\nc", keep="\n") == "a\\tb\nc"
