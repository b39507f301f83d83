"""One of something is not said to be several."""

import dataclasses
import re
from pathlib import Path
from typing import get_type_hints

from linrnn._options.numbers import counted
from linrnn.cli._line.progress import heading, summary
from linrnn.train import Result
from linrnn.train._report import Plan

SEVERAL_OF_ONE = re.compile(r"(?<![\d.,])1 (?:\w+ )?\w+s\b(?! of training)")


def of_ones(cls):
    values = {"task": "digits", "folder": Path("runs/a")}
    for field in dataclasses.fields(cls):
        kind = get_type_hints(cls)[field.name]
        values.setdefault(field.name, "lru" if kind is str else 1)
    return cls(**values)


def test_the_pattern_sees_what_it_is_for():
    assert SEVERAL_OF_ONE.search("1 epochs")
    assert SEVERAL_OF_ONE.search("1 test sequences")
    assert not SEVERAL_OF_ONE.search("1 epoch, 21 steps and 1.1 points")


def test_a_run_of_one_step_is_announced_and_summed_up_in_the_singular():
    for text in (heading(of_ones(Plan)), summary(of_ones(Result))):
        assert SEVERAL_OF_ONE.findall(text) == []
        assert "1 parameter" in text


def test_several_are_several():
    assert counted(0, "step") == "0 steps"
    assert counted(1_000, "step") == "1,000 steps"
