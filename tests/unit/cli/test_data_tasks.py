"""A command that names data and no task is told which tasks take such data."""

import re

import pytest

from linrnn import tasks
from linrnn.cli import main
from linrnn.cli._line.data_tasks import _OF_ENDING, _OTHERS

pytestmark = pytest.mark.unchecked


def said(capsys, *args):
    assert main(["train", *args]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--data {}", "--data={}", "--task.data {}"])
@pytest.mark.parametrize("ending", [*_OF_ENDING, ".CSV", "", ".unknown"])
def test_tasks_by_the_ending(ending, flag, capsys):
    given = flag.format(f"x{ending}")
    text = said(capsys, *given.split(), "--seed", "1")
    first, *others = _OF_ENDING.get(ending.lower(), _OTHERS)
    assert f"Try: linrnn train {first} {given} --seed 1" in text
    assert all(re.search(rf"\b{name}\b", text) for name in others)


def test_without_data_any_task_will_do(capsys):
    assert f"Try: linrnn train {tasks.names()[0]} --seed 1" in said(capsys, "--seed", "1")


@pytest.mark.parametrize(
    ("ending", "task"), [(ending, task) for ending, found in _OF_ENDING.items() for task in found]
)
def test_they_take_such_files(ending, task, capsys, tmp_path):
    path = tmp_path / f"missing{ending}"
    more = ["--task.labels", str(path)] if (task, ending) == ("table", ".npy") else []
    code = main(["train", task, "--data", str(path), *more, "--out", str(tmp_path / "run")])
    text = capsys.readouterr().err
    assert code in (1, 2)
    assert "no such file" in text.lower()
    assert "->" not in text
    assert not (tmp_path / "run").exists()
