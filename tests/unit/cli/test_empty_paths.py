"""An empty path is refused by every verb: a variable of the shell that is not set is no folder."""

import argparse
import importlib

import pytest

from linrnn import cli
from linrnn.cli import main
from linrnn.errors import ArgumentError

pytestmark = pytest.mark.unchecked  # looks at the wording


def parsers():
    """The parser of every verb that has one of its own."""
    for verb in cli.verbs():
        make = getattr(importlib.import_module(f"linrnn.cli.{verb}"), "parser", None)
        if make is not None:
            yield verb, make()


def paths():
    """Verb, words of a command line, and the name of an argument that is a path, which is empty."""
    for verb, parser in parsers():
        positional = [a for a in parser._actions if not a.option_strings]
        for action in parser._actions:
            if parser.kinds.get(action.dest) not in ("file", "folder"):
                continue
            words = ["" if a is action else "0" for a in positional]
            name = (*action.option_strings, action.metavar or action.dest)[0]
            yield verb, words + [f"{name}="] * bool(action.option_strings), name


PATHS = [*paths()]


def test_paths_of_most_verbs_are_tried():
    assert len({verb for verb, _, _ in PATHS}) > 10
    assert len(PATHS) > 20
    for _, parser in parsers():
        for action in parser._actions:
            assert getattr(action.type, "__name__", "") != "Path" or action.dest in parser.kinds


@pytest.mark.parametrize(("verb", "words", "name"), PATHS)
def test_it_is_named(verb, words, name):
    parser = dict(parsers())[verb]
    assert isinstance(parser, argparse.ArgumentParser)
    with pytest.raises(ArgumentError, match=f"^{verb}: {name} must be a path, got ''"):
        parser.parse_known_args(words)


def test_the_folder_of_a_run_is_no_exception(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--out="]) == 2
    assert "--out must be a path, got ''" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_no_factors_are_not_those_by_default(capsys):
    words = ["compare", "digits", "--mixers", "lru", "--tune", "lr", "--tune-factors="]
    assert main(words) == 2
    assert "--tune-factors must be numbers with commas between, got ''" in capsys.readouterr().err
