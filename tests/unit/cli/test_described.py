"""Options say what an empty default stands for, in the help and in its one source."""

import dataclasses

import pytest
import tyro._docstrings as docs

from linrnn import learn, mixers, tasks
from linrnn._options.declared import SET_BY_THE_STACK, declared
from linrnn.backbone import model_options
from linrnn.cli import main
from linrnn.cli._line.described import UNSET, in_words


def unexplained(texts):
    """Names of options whose help would end with an empty default."""
    return [
        name
        for name, text, default in texts
        if default in UNSET and in_words(text, default)[1] in ("(default: None)", "(default: )")
    ]


def test_in_words_moves_the_default_to_the_end():
    text = "Hidden width. Default: 4 d_model; for geglu 8/3, rounded up. See GLU."
    assert in_words(text, None) == (
        "Hidden width. See GLU.",
        "(default: 4 d_model; for geglu 8/3, rounded up)",
    )
    assert in_words(text, 7)[1] == "(default: 7; None: 4 d_model; for geglu 8/3, rounded up)"
    assert in_words("Taps.", (4, 4)) == ("Taps.", "(default: 4 4)")
    assert in_words("The file. Default: required.", "") == ("The file.", "(required)")


def test_unexplained_finds_an_empty_default():
    assert unexplained([("a", "Size.", None), ("b", "Size. Default: 3.", None)]) == ["a"]


@pytest.mark.parametrize("name", mixers.names())
def test_options_of_mixers_name_their_defaults(name):
    options = [o for o in declared(mixers.load(name)) if o.name not in SET_BY_THE_STACK]
    assert unexplained((o.name, o.help, o.default) for o in options) == []


@pytest.mark.parametrize("name", learn.names())
def test_options_of_learners_name_their_defaults(name):
    assert unexplained((o.name, o.help, o.default) for o in declared(learn.load(name))) == []


@pytest.mark.parametrize("name", tasks.names())
def test_options_of_tasks_name_their_defaults(name):
    options = tasks.load(name).Options
    texts = [
        (f.name, docs.get_field_docstring(options, f.name, ()) or "", f.default)
        for f in dataclasses.fields(options)
    ]
    assert unexplained(texts) == []


def test_options_of_models_name_their_defaults():
    assert unexplained((o.name, o.help, o.default) for o in model_options()) == []


@pytest.mark.unchecked
def test_help_of_a_task_has_no_empty_default(capsys):
    with pytest.raises(SystemExit):
        main(["train", "forecast", "--mixer", "lru,gla", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: None)" not in text
    assert "(default: )" not in text
    assert "(required)" in text
    assert "(default: the next free runs/TASK-MIXER-N)" in text
    assert "Complex modes. (default: d_model)" in text
